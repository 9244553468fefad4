"""Reading run folders for a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl_runtime.app.reading import Unreadable, read_object, read_objects
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
    """Read run folders, labelled by name, with the parent's where names repeat.

    Raises NothingToReport and Unreadable.
    """
    names = [folder.resolve().name for folder in folders]
    return [
        _load(folder, name if names.count(name) == 1 else f"{folder.resolve().parent.name}/{name}")
        for folder, name in zip(folders, names, strict=True)
    ]


def _load(folder: Path, label: str) -> RunData:
    rows = [row for row in read_objects(folder / "metrics.jsonl") if _number(row.get("step")) is not None]
    if not any(_number(row[name]) is not None for row in rows for name in row.keys() - {"step", "time"}):
        raise NothingToReport(folder)
    return RunData(
        folder,
        label,
        rows,
        read_objects(folder / "events.jsonl"),
        read_object(folder / "summary.json") or {},
        _text(folder / "config.yaml"),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(path, str(error)) from error


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
