"""Doing one fault to a run that goes on: the target is found, and gets its signal or its wrong byte."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from asyncrl_runtime.adapters.directory_snapshots import FOLDER, DirectorySnapshots
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.app.chaos.faults import Fault
from asyncrl_runtime.app.chaos.processes import Process, descendants
from asyncrl_runtime.app.state import read_state

T = TypeVar("T")

ENDS = frozenset({"kill-run", "stop-run", "kill-trainer", "corrupt-checkpoint", "corrupt-snapshot"})
"""Words after which a start is over and the job is started again."""

MAY_END = ENDS | {"kill-advantages"}
"""Words after which it may be: a worker that is killed at work fails its train step."""

NAMES = {
    "trainer": re.compile("trainer"),
    "advantages": re.compile(r"advantage worke.*"),
    "environment": re.compile(r"\S+-\d+"),
}
"""What the processes of a role are called in process lists."""

TARGET_SECONDS, POLL_SECONDS = 3.0, 0.1
"""Longest wait for a target: `state.json` is written once a second, and a shard may be on its way back."""

STOPPED_SECONDS, RUNNING_SECONDS = 0.08, 0.02
"""Of a slow process, in turn."""


@dataclass(slots=True, kw_only=True, eq=False)
class Inflictor:
    """Does faults to one start of a run."""

    controller: Process
    folder: Path
    seed: int
    _frozen: set[int] = field(default_factory=set, init=False)
    """Processes that were stopped for good: what happens to others must not wake them."""

    struck_at: float = field(default=0.0, init=False)
    """`time.monotonic()` of the last fault, without the wait for its target."""

    async def inflict(self, fault: Fault) -> str:
        """Do it; what it was done to, empty if there was nothing."""
        what, _, whom = fault.word.partition("-")
        if what == "corrupt":
            return await self._corrupt(whom, fault.choice)
        found = [self.controller] if whom == "run" else await _within(lambda: self._candidates(whom))
        if not found:
            return ""
        target = found[int(fault.choice * len(found))]
        for_good = what == "freeze" and whom not in ("trainer", "run")
        if for_good:
            self._frozen.add(target.pid)
        self.struck_at = time.monotonic()
        await _signal(what, target, None if for_good else fault.seconds)
        return target.name

    # ── processes ───────────────────────────────────────────────────────────────────────────────────

    def _candidates(self, whom: str) -> list[Process]:
        below = [p for p in descendants(self.controller.pid) if p.pid not in self._frozen]
        if whom != "shard":
            return [process for process in below if NAMES[whom].fullmatch(process.name)]
        state = read_state(self.folder)
        shards = [] if state is None or state.pid != self.controller.pid else state.shards
        names = {s.pid: f"shard {s.index}" for s in shards if s.pid and s.state == "HEALTHY"}
        return [Process(p.pid, names[p.pid], p.started) for p in below if p.pid in names]

    # ── files ───────────────────────────────────────────────────────────────────────────────────────

    async def _corrupt(self, whom: str, choice: float) -> str:
        """Change one byte of one file while the controller stands still, and end it.

        Where nothing older could stand in, nothing is done.
        """
        await _within(lambda: self._newest(whom))
        self.struck_at = time.monotonic()
        self.controller.send(signal.SIGSTOP)
        path = self._newest(whom)
        files = [] if path is None else _files(path)
        if not files:
            self.controller.send(signal.SIGCONT)
            return ""
        file = files[int(choice * len(files))]
        content = bytearray(file.read_bytes())
        content[random.Random(f"{self.seed}/{choice}").randrange(len(content))] ^= 0xFF
        file.write_bytes(content)
        self.controller.send(signal.SIGKILL)
        return str(file.relative_to(self.folder / "checkpoints"))

    def _newest(self, whom: str) -> Path | None:
        store = DirectoryStore(self.folder / "checkpoints")
        bundles, snapshots = store.bundles(), DirectorySnapshots(store)
        if whom == "checkpoint":
            return bundles[0].path if len(bundles) > 1 else None
        found = snapshots.snapshots(snapshots.anchor_of(bundles[0] if bundles else None))
        return found[0].path if len(found) > (0 if bundles else 1) else None


def _files(folder: Path) -> list[Path]:
    """What belongs to a checkpoint or snapshot itself, and has a byte."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size and FOLDER not in path.relative_to(folder).parts
    )


async def _within(look: Callable[[], T]) -> T:
    """What is found, as soon as there is something; the last look otherwise."""
    until = time.monotonic() + TARGET_SECONDS
    while not (found := look()) and time.monotonic() < until:  # noqa: ASYNC110 - others make it appear
        await asyncio.sleep(POLL_SECONDS)
    return found


async def _signal(what: str, target: Process, seconds: float | None) -> None:
    """Without `seconds` what is frozen stays so."""
    match what:
        case "kill":
            target.send(signal.SIGKILL)
        case "stop":
            target.send(signal.SIGTERM)
        case "freeze":
            target.send(signal.SIGSTOP)
            if seconds is not None:
                await asyncio.sleep(seconds)
                target.send(signal.SIGCONT)
        case "slow" if seconds is not None:
            until = time.monotonic() + 2 * seconds
            while time.monotonic() < until and target.send(signal.SIGSTOP):
                await asyncio.sleep(STOPPED_SECONDS)
                target.send(signal.SIGCONT)
                await asyncio.sleep(RUNNING_SECONDS)
