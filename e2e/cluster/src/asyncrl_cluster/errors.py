"""What can go wrong, as facts; the text says what happened, the bound, the way out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass


class ClusterError(Exception):
    """Something a person can act on. Its text is all that is shown."""


@dataclass(eq=False)
class Unmet(ClusterError):
    """The machine lacks something."""

    what: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.what}; {self.way_out}"


@dataclass(eq=False)
class CommandFailed(ClusterError):
    """A program ended with an error."""

    command: Sequence[str]
    status: int
    output: str

    def __str__(self) -> str:
        shown = shlex.join(self.command)
        shown = shown if len(shown) <= 200 else f"{shown[:200]} …"
        return f"`{shown}` ended with {self.status}:\n{_last_lines(self.output)}"


@dataclass(eq=False)
class CommandTooSlow(ClusterError):
    """A program did not end in its time."""

    command: Sequence[str]
    seconds: float

    def __str__(self) -> str:
        return f"`{shlex.join(self.command)[:200]}` did not end within {self.seconds:g} s"


@dataclass(eq=False)
class NotInTime(ClusterError):
    """A state did not come about in its time."""

    what: str
    seconds: float
    seen: str = ""
    log: str = ""

    def __str__(self) -> str:
        text = f"waited {self.seconds:g} s for {self.what}"
        text += f"; last seen: {self.seen.strip()}" if self.seen.strip() else ""
        return text + (f"\n{self.log}" if self.log else "")


@dataclass(eq=False)
class LeftBehind(ClusterError):
    """Something of the cluster is still there after it was taken down."""

    found: Sequence[str]

    def __str__(self) -> str:
        return "left behind: " + "; ".join(self.found) + "; run down again, or remove it by hand"


def _last_lines(text: str, count: int = 15) -> str:
    return "\n".join(f"  | {line}" for line in text.strip().splitlines()[-count:]) or "  | (no output)"
