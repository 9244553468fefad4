"""B8: what a checkpoint of buffered rollouts costs in bytes, pause and time.

    python benchmarks/checkpoint_cost.py [--quick]

Groups of 8 rows lie ready in the buffer; the real checkpointer saves them into a directory. The pause is what
commits and clears wait for. The figures of the whole save depend on the disk.
"""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import Report, arguments

from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.scripted import ScriptedTrainer
from asyncrl_runtime.core.ledger import PromptLedger
from asyncrl_runtime.core.records import GroupMeta, PromptRef, sample_id
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.retention import Retention
from asyncrl_runtime.core.samplers.windowed import Windowed
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Jagged
from asyncrl_runtime.pumps.checkpoint import Checkpointer, SaveSettings
from asyncrl_runtime.pumps.train import TrainProgress
from asyncrl_runtime.pumps.wakeup import Barrier

GENERATIONS = 8
CASES = ((0, 256), (100, 256), (1_000, 256), (10_000, 256), (1_000, 2_048))
"""Groups, mean tokens of a row."""

DISK_BYTES_PER_SECOND, FIXED_PAUSE_SECONDS, AMPLIFICATION = 0.25e9, 0.05, 1.05


def group_columns(rng, tokens):
    """What a commit writes for one group."""
    lengths = rng.integers(tokens // 2, tokens * 3 // 2, GENERATIONS)
    total = int(lengths.sum())
    columns = {
        name: Jagged(np.zeros(total, dtype), lengths)
        for name, dtype in (
            (col.TOKEN_IDS, np.int64),
            (col.TOKEN_MASK, np.int8),
            (col.GENERATION_LOGPROBS, np.float32),
            (col.WEIGHT_VERSIONS, np.int32),
        )
    }
    for name, dtype in ((col.SAMPLE_MASK, np.float32), (col.REWARD, np.float64), (col.TRUNCATED, np.int8)):
        columns[name] = Jagged.scalars([1] * GENERATIONS, dtype)
    return columns, tuple(lengths.tolist())


class Loader:
    """The part of the rollout pump that a cut reads."""

    def __init__(self):
        self.data_state = {"epoch": 0, "next_batch": 0}


class Quiet:
    """An observer."""

    def event(self, kind, **facts):
        """Not written down."""


def checkpointer(folder, plane, buffer, ledger):
    """The real one, over a buffer that nothing else touches."""
    store = DirectoryStore(folder)
    store.claim()
    return Checkpointer(
        store=store,
        settings=SaveSettings(
            enabled=True,
            save_period=1,
            ft_save_period=None,
            save_optimizer=False,
            save_data_plane=True,
            must_save_by_seconds=None,
            metric_name=None,
            barrier_timeout_seconds=60.0,
            timeout_seconds=600.0,
        ),
        retention=Retention(
            save_period=1, keep_top_k=1, by_metric=False, higher_is_better=True, ft_keep_latest_k=None
        ),
        trainer=ScriptedTrainer(plane=plane),
        plane=plane,
        barrier=Barrier(),
        rollout=Loader(),
        buffer=buffer,
        ledger=ledger,
        sampler=Windowed(buffer),
        versions=Versions(),
        progress=TrainProgress(),
        observer=Quiet(),
        groups_per_step=32,
        generations=GENERATIONS,
        dataset={},
        config_yaml="",
        write_tokenizer=lambda path: None,
        claims=lambda: (),
        began=0.0,
    )


async def fill(groups, tokens):
    """Committed groups."""
    plane, buffer, ledger = InProcessPlane(10_000_000), ReplayBuffer(groups + 1), PromptLedger()
    rng = np.random.default_rng(1)
    for position in range(groups):
        (entry,) = ledger.own([PromptRef(0, position)])
        attempt = ledger.begin_attempt(entry, 0)
        samples = tuple(sample_id(entry.group_id, attempt, i) for i in range(GENERATIONS))
        columns, lengths = group_columns(rng, tokens)
        await plane.put(samples, columns)
        buffer.restore(
            GroupMeta(
                entry.group_id,
                attempt,
                entry.prompt,
                samples,
                lengths,
                (0,) * GENERATIONS,
                sum(lengths),
                0,
                0,
                False,
                None,
            )
        )
        ledger.commit(entry.group_id)
    return plane, buffer, ledger


async def longest_block(stop):
    """Longest time for which the event loop did not answer."""
    loop, longest = asyncio.get_running_loop(), 0.0
    while not stop.is_set():
        began = loop.time()
        await asyncio.sleep(0.001)
        longest = max(longest, loop.time() - began - 0.001)
    return longest


async def measure(quick):
    report = Report("checkpoint of the rollout state")
    for groups, tokens in CASES[:3] if quick else CASES:
        plane, buffer, ledger = await fill(groups, tokens)
        folder, stop = Path(tempfile.mkdtemp(prefix="checkpoint-cost-")), asyncio.Event()
        try:
            saver = checkpointer(folder, plane, buffer, ledger)
            watch = asyncio.create_task(longest_block(stop))
            await saver.save()
            stop.set()
            written = sum(path.stat().st_size for path in (folder / "step_0" / "data_plane").iterdir())
        finally:
            shutil.rmtree(folder)
        live = plane.usage().bytes_outstanding
        name = f"{groups:,} groups, {tokens:,} tokens a row"
        report.note(f"{name}: live", live / 1e6, "MB")
        if live:
            report.at_most(f"{name}: written / live bytes", written / live, AMPLIFICATION)
        bound = FIXED_PAUSE_SECONDS + written / DISK_BYTES_PER_SECOND
        report.at_most(f"{name}: pause of commits", saver.pause_seconds, bound, "s")
        report.note(f"{name}: whole save", saver.seconds, "s")
        report.note(f"{name}: longest block of the event loop", await watch, "s")
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(asyncio.run(measure(arguments(__doc__).quick)))
