"""What Ray costs on one machine: time to the first trained step, and calls of a shard beside a fork's.

    PYTHONPATH=tests python benchmarks/ray_host.py [--quick]

The start is that of a small job whose workers run on a Ray cluster of its own, from the command to the step,
as its summary has it. Calls are those of one shard: alone, one after the other; and batches of 64 completions
of 16 tokens, of which the quickest counts, so that what is left over a fork's is the way there and back.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from adapters.torch_bench import ENGINE
from common import Report, arguments
from ports.generator_contract import request
from support.cli import small_job, summary
from support.ray_clusters import local_cluster

from asyncrl_runtime.adapters.torch.entry import torch_host, torch_server
from asyncrl_runtime.adapters.torch.generator import TorchGenerator

FIRST_STEP_SECONDS = 30.0
REQUESTS, TOKENS = 64, 16


def seconds_to_first_step():
    """Of a small job on Ray."""
    with tempfile.TemporaryDirectory() as folder:
        job, out = small_job(Path(folder)), Path(folder) / "out"
        command = [sys.executable, "-m", "support.ray_run", "run", str(job), "--output", str(out), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return summary(out)["seconds_to_first_step"]


async def calls_of(host, *, calls, batches):
    """Seconds of an empty call, and of the quickest batch."""
    shard = TorchGenerator(0, replace(ENGINE, max_running_requests=REQUESTS), host=host)
    await shard.start()
    for _ in range(10):
        await shard.probe()
    began = time.perf_counter()
    for _ in range(calls):
        await shard.probe()
    empty, found = (time.perf_counter() - began) / calls, []
    for _ in range(batches):
        began = time.perf_counter()
        asked = (shard.generate(request(f"r{n}", max_new_tokens=TOKENS)) for n in range(REQUESTS))
        await asyncio.gather(*asked)
        found.append(time.perf_counter() - began)
    await shard.close()
    return empty, min(found)


def main():
    """Print the figures beside their bounds."""
    quick = arguments(__doc__).quick
    sizes = {"calls": 200, "batches": 20} if quick else {"calls": 2000, "batches": 200}
    report = Report("Ray on one machine")
    report.at_most("small job: first trained step", seconds_to_first_step(), FIRST_STEP_SECONDS, "s")
    fork_empty, fork_batch = asyncio.run(calls_of(torch_host(), **sizes))
    torch_server().close()
    with local_cluster(shards=1) as cluster:
        ray_empty, ray_batch = asyncio.run(calls_of(cluster.shard(0), **sizes))
    batch = f"a batch of {REQUESTS} x {TOKENS} tokens"
    for name, empty, whole in (("fork", fork_empty, fork_batch), ("Ray", ray_empty, ray_batch)):
        report.note(f"{name}: an empty call", empty * 1e3, "ms")
        report.note(f"{name}: {batch}, quickest", whole * 1e3, "ms")
    report.note(f"{batch}: Ray less fork", (ray_batch - fork_batch) * 1e3, "ms")
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
