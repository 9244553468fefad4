"""The processes of a run: found by their parents and names, killed, frozen, thawed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a run."""

    pid: int
    name: str
    """As process lists show it: `shard 0`, `trainer`, …"""

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if it is gone."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def descendants(root: int) -> list[Process]:
    """Every process below `root`, oldest first."""
    children: dict[int, list[Process]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                text = (folder / "stat").read_text()
                name = text[text.index("(") + 1 : text.rindex(")")]
                parent = int(text[text.rindex(")") + 2 :].split()[1])
                children.setdefault(parent, []).append(Process(int(folder.name), name))
    found: list[Process] = []
    waiting = [root]
    while waiting:
        below = sorted(children.get(waiting.pop(0), []), key=lambda process: process.pid)
        found += below
        waiting += [process.pid for process in below]
    return found
