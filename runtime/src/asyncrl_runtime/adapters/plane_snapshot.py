"""Rows of a data plane as files: one tensor a column, and who owns which part of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import SampleId
from asyncrl_runtime.ports.columns import Jagged
from asyncrl_runtime.ports.data_plane import Tags

ROWS, TENSORS = "rows.json", "rows.safetensors"


@dataclass(eq=False)
class SnapshotDamaged(RunError):
    """Rows that were saved cannot be read back."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"the data-plane snapshot {self.path} cannot be used: {self.problem}"


@dataclass(frozen=True, slots=True)
class SavedRows:
    """All rows of a plane.

    Shapes (R rows; a column has C <= R of them):
        columns  name -> (owners [C] int64, ascending row numbers; C jagged rows)
    """

    samples: Sequence[SampleId]
    tags: Mapping[SampleId, Tags]
    columns: Mapping[str, tuple[np.ndarray, Jagged]]


def write_snapshot(directory: Path, saved: SavedRows) -> Mapping[str, object]:
    """Write rows.safetensors and rows.json; facts for a manifest."""
    from safetensors.numpy import save

    directory.mkdir(parents=True, exist_ok=True)
    layouts: dict[bytes, int] = {}
    lengths: list[list[int]] = []
    places: dict[str, int] = {}
    for name, (owners, column) in saved.columns.items():
        layout = np.full(len(saved.samples), -1, np.int64)
        layout[owners] = column.lengths
        key = layout.tobytes()
        if key not in layouts:
            layouts[key] = len(lengths)
            lengths.append(layout.tolist())
        places[name] = layouts[key]
    data = save({name: column.values for name, (_, column) in saved.columns.items()}) if places else b""
    index = {"samples": list(saved.samples), "tags": saved.tags, "lengths": lengths, "columns": places}
    text = json.dumps(index, separators=(",", ":")).encode()
    (directory / TENSORS).write_bytes(data)
    (directory / ROWS).write_bytes(text)
    return {
        "rows": len(saved.samples),
        "bytes": len(data) + len(text),
        "live_bytes": sum(column.nbytes for _, column in saved.columns.values()),
        "sha256": {TENSORS: sha256(data).hexdigest(), ROWS: sha256(text).hexdigest()},
    }


def read_snapshot(directory: Path) -> SavedRows:
    """Read it back. Raises SnapshotDamaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        index = json.loads((directory / ROWS).read_bytes())
        data = (directory / TENSORS).read_bytes()
        tensors = load(data) if data else {}
        samples, tags, places = index["samples"], index["tags"], index["columns"]
        layouts = [np.array(lengths, np.int64) for lengths in index["lengths"]]
        if set(places) != set(tensors):
            raise ValueError(f"{ROWS} and {TENSORS} name different columns")
        columns = {
            name: _column(name, tensors[name], layouts[place], len(samples)) for name, place in places.items()
        }
    except (OSError, ValueError, KeyError, IndexError, TypeError, SafetensorError) as error:
        raise SnapshotDamaged(str(directory), str(error) or type(error).__name__) from error
    return SavedRows(samples, tags, columns)


def _column(name: str, values: np.ndarray, layout: np.ndarray, rows: int) -> tuple[np.ndarray, Jagged]:
    if len(layout) != rows:
        raise ValueError(f"column {name} has a layout of {len(layout)} rows for {rows}")
    owners = np.flatnonzero(layout >= 0)
    if layout[owners].sum() != len(values):
        raise ValueError(f"column {name} has {len(values)} values for {layout[owners].sum()} announced")
    return owners, Jagged(values, layout[owners])
