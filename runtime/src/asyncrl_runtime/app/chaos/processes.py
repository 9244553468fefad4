"""The processes of a run: found by their parents and names, killed, frozen, thawed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ZOMBIE = "Z"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a run."""

    pid: int
    name: str
    """As process lists show it: `shard 0`, `trainer`, …"""

    started: int = -1
    """In ticks since the machine came up: tells it from a later process of the same number."""

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if it is gone."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    @property
    def alive(self) -> bool:
        """It still runs, or is stopped."""
        found = _read(Path("/proc") / str(self.pid))
        return found is not None and found[0].started == self.started and found[2] != ZOMBIE


def descendants(root: int) -> list[Process]:
    """Every process below `root`, oldest first."""
    children: dict[int, list[Process]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (found := _read(folder)) is not None:
            children.setdefault(found[1], []).append(found[0])
    below: list[Process] = []
    waiting = [root]
    while waiting:
        found_here = sorted(children.get(waiting.pop(0), []), key=lambda process: process.pid)
        below += found_here
        waiting += [process.pid for process in found_here]
    return below


def _read(folder: Path) -> tuple[Process, int, str] | None:
    """A process, its parent and its state; None if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        text = (folder / "stat").read_text()
        name = text[text.index("(") + 1 : text.rindex(")")]
        state, parent, *rest = text[text.rindex(")") + 2 :].split()
        return Process(int(folder.name), name, int(rest[17])), int(parent), state
    return None
