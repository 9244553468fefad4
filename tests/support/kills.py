"""Killing a real run at seeded moments, and what it trained on in the end."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from asyncrl_runtime.adapters.directory_snapshots import DirectorySnapshots
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from support.cli import rows, summary

STARTUP_SECONDS = 3.5
"""About what a start takes before its first step."""


@dataclass
class Outcome:
    """A run that was killed and started again until it was complete."""

    kills: int
    kills_after_a_step: int
    """Those that came when the start had trained at least one step."""

    starts: int
    summary: dict
    steps: dict[int, tuple[str, ...]]
    """Groups trained on, by step."""

    @property
    def consumed(self):
        """How often each prompt was trained on."""
        return Counter(group for groups in self.steps.values() for group in groups)


def trained(folder):
    """Groups by step: of what was trained again after a rollback, the last time counts."""
    events = rows(folder / "events.jsonl")
    return {e["step"]: tuple(sorted(e["groups"])) for e in events if e["kind"] == "step_trained"}


def run_to_the_end(job, folder):
    """An undisturbed run."""
    subprocess.run(_command(job, folder), check=True, stdout=subprocess.DEVNULL)
    return Outcome(0, 0, 1, summary(folder), trained(folder))


def kill_until_complete(job, folder, *, seed, max_kills, seconds_of_work=0.6, first=None):
    """Kill -9 the run's processes at seeded moments: one in eight while it starts, the others while it works.

    With `first`, one more kill precedes them, at a moment at which it holds of the folder. The fork server
    and its workers are in another session and are not killed by hand: they must end by themselves.
    """
    rng, kills, late, starts = random.Random(seed), 0, 0, 0
    if first is not None:
        starts += 1
        _kill_when(first, job, folder)
    while True:
        starts += 1
        before = _size(folder / "metrics.jsonl")
        process = _start(job, folder)
        if kills < max_kills:
            early = rng.random() < 0.125
            moment = rng.uniform(0, STARTUP_SECONDS) if early else rng.uniform(0, seconds_of_work)
            worked = early or _first_step(process, folder, before)
            time.sleep(moment)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
                late += worked and not early
                process.wait()
                continue
        code = process.wait()
        if code != 0:
            raise AssertionError(
                f"start {starts} after {kills} kills ended with {code}; see {folder}/run.log"
            )
        return Outcome(kills, late, starts, summary(folder), trained(folder))


def snapshot_is_newest(folder):
    """A start would go on from a rollout snapshot."""
    snapshots = DirectorySnapshots(DirectoryStore(folder / "checkpoints"))
    newest = next(iter(snapshots.store.bundles()), None)
    return bool(snapshots.snapshots(snapshots.anchor_of(newest)))


def _kill_when(holds, job, folder):
    """The moment is looked at while the controller stands still, so that it is still there at the kill."""
    process = _start(job, folder)
    while process.poll() is None:
        if holds(folder):
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(0.02)
            if holds(folder):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return
            os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.002)
    raise AssertionError(f"the run ended with {process.returncode} before it could be killed at its moment")


def _start(job, folder):
    return subprocess.Popen(
        _command(job, folder), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True
    )


def _command(job, folder):
    return [sys.executable, "-m", "asyncrl_runtime", "run", str(job), "--output", str(folder), "--quiet"]


def _first_step(process, folder, before):
    """Wait until this start has written a step; False if it ended first."""
    path = folder / "metrics.jsonl"
    inode, size = _identity(path)
    while process.poll() is None:
        now = _identity(path)
        if now[0] != inode:
            inode, size = now
        elif now[1] > size:
            return True
        time.sleep(0.005)
    return False


def _size(path: Path):
    return path.stat().st_size if path.exists() else 0


def _identity(path: Path):
    try:
        facts = path.stat()
    except FileNotFoundError:
        return 0, 0
    return facts.st_ino, facts.st_size
