"""What a run folder says after it was mistreated: is any prompt lost, or trained on twice?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl_runtime.adapters.sinks.events import DROPPED
from asyncrl_runtime.adapters.sinks.lines import read_rows

CLASSES = ("trained", "dropped", "discarded", "live")


def events_of(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Events so far, oldest first; a line that is being written is left for later."""
    return read_rows(folder / "events.jsonl")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The prompt ledger of a finished run, beside what its events show."""

    status: str
    """Of the summary; `none` without one."""

    prompts: Mapping[str, Any]
    trained_twice: tuple[str, ...] = ()
    """Groups that two steps of the final history trained on."""

    steps_missing: tuple[int, ...] = ()
    unrecorded: int = 0
    """Groups that the ledger counts as trained and no step of the final history names; below 0 the
    reverse."""

    failure: str = ""

    @property
    def lost(self) -> int:
        """Prompts that are in no class of the ledger."""
        return self.prompts.get("admitted", 0) - sum(self.prompts.get(name, 0) for name in CLASSES)

    @property
    def problem(self) -> str | None:
        """The first thing that is wrong with it."""
        if self.status != "complete":
            return self.failure or f"it ended {self.status}"
        if self.lost:
            return f"{self.lost} prompts are in no class of the ledger"
        if self.trained_twice:
            return f"groups {', '.join(self.trained_twice[:10])} were trained on twice"
        if self.steps_missing:
            return f"steps {', '.join(map(str, self.steps_missing[:10]))} are in no record"
        if self.unrecorded:
            return f"ledger and events differ by {abs(self.unrecorded)} trained groups"
        return None


def verdict(folder: Path) -> Verdict:
    """Read a run folder whose run is over."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Verdict("none", {}, failure="the run left no summary")
    history, first = _history(folder)
    counts = Counter(group for groups in history.values() for group in groups)
    failure = summary.get("failure")
    trained = summary["prompts"]["trained"]
    return Verdict(
        status=summary["status"],
        prompts=summary["prompts"],
        trained_twice=tuple(sorted(group for group, times in counts.items() if times > 1)),
        steps_missing=tuple(sorted(set(range(first, summary["steps"] + 1)) - set(history))),
        unrecorded=trained - counts.total() if first == 1 else 0,
        failure=failure["message"] if failure else "",
    )


def _history(folder: Path) -> tuple[dict[int, tuple[str, ...]], int]:
    """Groups by step as they count in the end, and the first step that the events still tell of.

    A step that is trained again takes all that came after it back: the run had gone back before it.
    """
    history: dict[int, tuple[str, ...]] = {}
    first = 1
    for event in events_of(folder):
        if event["kind"] == "resumed":
            _take_back(history, event["step"])
        elif event["kind"] == "step_trained":
            _take_back(history, event["step"] - 1)
            history[event["step"]] = tuple(event["groups"])
        elif event["kind"] == DROPPED:
            first = 0
    return history, first or min(history, default=1)


def _take_back(history: dict[int, tuple[str, ...]], step: int) -> None:
    """Forget what came after a step; steps are in ascending order."""
    while history and next(reversed(history)) > step:
        history.popitem()
