"""What a run folder says after it was mistreated: is any prompt lost, or trained on twice?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def events_of(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Events so far, oldest first; a line that is being written is left for later."""
    path = folder / "events.jsonl"
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


@dataclass(frozen=True, slots=True)
class Verdict:
    """The prompt ledger of a finished run, beside what its events show."""

    status: str
    """Of the summary; `none` without one."""

    prompts: Mapping[str, Any]
    trained_twice: tuple[str, ...]
    """Groups that two steps of the final history trained on."""

    steps_missing: tuple[int, ...]
    failure: str

    @property
    def lost(self) -> int:
        """Prompts that are in no class of the ledger."""
        classes = ("trained", "dropped", "discarded", "live")
        return self.prompts.get("admitted", 0) - sum(self.prompts.get(name, 0) for name in classes)

    @property
    def good(self) -> bool:
        """It came to its end, and nothing was lost or trained twice."""
        return self.status == "complete" and not (self.lost or self.trained_twice or self.steps_missing)


def verdict(folder: Path) -> Verdict:
    """Read a run folder whose run is over."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Verdict("none", {}, (), (), "the run left no summary")
    history: dict[int, tuple[str, ...]] = {}
    for event in events_of(folder):
        if event["kind"] == "resumed":
            history = {step: groups for step, groups in history.items() if step <= event["step"]}
        if event["kind"] == "step_trained":
            history[event["step"]] = tuple(event["groups"])
    counts = Counter(group for groups in history.values() for group in groups)
    failure = summary.get("failure")
    return Verdict(
        status=summary["status"],
        prompts=summary["prompts"],
        trained_twice=tuple(sorted(group for group, times in counts.items() if times > 1)),
        steps_missing=tuple(sorted(set(range(1, summary["steps"] + 1)) - set(history))),
        failure=failure["message"] if failure else "",
    )
