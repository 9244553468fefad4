"""Reading run folders for a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl_runtime.adapters.sinks.lines import read_rows
from asyncrl_runtime.core.errors import RunError


@dataclass(eq=False)
class NothingToReport(RunError):
    """A folder without metrics."""

    folder: Path

    def __str__(self) -> str:
        return f"{self.folder} holds no metrics.jsonl with a finished step; name a run folder that trained"


@dataclass(frozen=True, slots=True)
class RunData:
    """One run, read."""

    folder: Path
    label: str
    rows: list[dict[str, Any]]
    """One per step, in order."""

    events: list[dict[str, Any]] = field(default_factory=list)
    summary: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""

    @property
    def steps(self) -> list[float]:
        """Step numbers."""
        return [float(row["step"]) for row in self.rows]

    def column(self, *names: str) -> list[float | None]:
        """Values of the first of these metrics that the run has; None where a step lacks it."""
        for name in names:
            values = [_number(row.get(name)) for row in self.rows]
            if any(value is not None for value in values):
                return values
        return [None] * len(self.rows)

    def has(self, name: str) -> bool:
        """Whether any step holds the metric."""
        return any(row.get(name) is not None for row in self.rows)


def load_runs(folders: list[Path]) -> list[RunData]:
    """Read run folders, labelled by name, with the parent's where names repeat. Raises `NothingToReport`."""
    names = [folder.resolve().name for folder in folders]
    return [
        _load(folder, name if names.count(name) == 1 else f"{folder.resolve().parent.name}/{name}")
        for folder, name in zip(folders, names, strict=True)
    ]


def _load(folder: Path, label: str) -> RunData:
    rows = [row for row in read_rows(folder / "metrics.jsonl") if isinstance(row.get("step"), int | float)]
    if not rows:
        raise NothingToReport(folder)
    summary, config = folder / "summary.json", folder / "config.yaml"
    return RunData(
        folder,
        label,
        rows,
        list(read_rows(folder / "events.jsonl")),
        json.loads(summary.read_text()) if summary.exists() else {},
        config.read_text() if config.exists() else "",
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
