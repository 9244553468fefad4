"""The command line, called in this process or as one of its own, on jobs that take a second or two."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import yaml
from typer.testing import CliRunner

from asyncrl_runtime.adapters.torch.entry import torch_server
from asyncrl_runtime.app.cli import app

SAMPLES = Path(__file__).parents[2] / "crds" / "samples"


@contextmanager
def shared_torch_server():
    """Imports torch once for all runs of this process; signal handlers are put back."""
    server = torch_server()
    server.start()
    close, server_class = type(server).close, type(server)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    server_class.close = lambda self: None if self is server else close(self)
    try:
        yield server
    finally:
        server_class.close = close
        server.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def asyncrl(*args):
    """Call a command in this process; gives `exit_code`, `stdout`, `stderr`."""
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


@contextmanager
def started(*args):
    """A command as a process of its own, in a session of its own; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncrl_runtime", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(found, *, seconds=60.0):
    """Ask until the answer is true, and give it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := found():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s")


def small_job(folder, **changes):
    """A manifest of three steps of four prompts; `changes` are merged into its spec."""
    spec = yaml.safe_load((SAMPLES / "copy-digits.yaml").read_text())["spec"]
    spec["algorithm"]["grpo"] |= {"numPromptsPerStep": 4, "numGenerationsPerPrompt": 4, "maxNumSteps": 3}
    spec["data"] = {"source": {"generated": {"task": "copy", "numDigits": 2, "numPrompts": 400}}}
    spec["checkpointing"] = {"savePeriod": 1, "keepTopK": 20}
    spec["generation"]["sampling"]["maxNewTokens"] = 3
    job = {"apiVersion": "asyncrl.io/v1alpha1", "kind": "AsyncRLJob", "metadata": {"name": "small"}}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**job, "spec": _merged(spec, changes)}))
    return path


def rows(path):
    """Objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(folder):
    """`summary.json` of a run folder."""
    return json.loads((folder / "summary.json").read_text())


def balanced(prompts):
    """Whether every admitted prompt is in exactly one class."""
    return prompts["admitted"] == sum(prompts[key] for key in ("trained", "dropped", "discarded", "live"))


def _merged(base, changes):
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
