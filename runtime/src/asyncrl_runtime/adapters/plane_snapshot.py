"""Rows of a data plane as files: pieces of rows, each with a tensor per column and who owns which part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import SampleId
from asyncrl_runtime.ports.columns import Jagged
from asyncrl_runtime.ports.data_plane import Tags

INDEX = "rows.json"


@dataclass(eq=False)
class SnapshotDamaged(RunError):
    """Rows that were saved cannot be read back."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"the data-plane snapshot {self.path} cannot be used: {self.problem}"


@dataclass(frozen=True, slots=True)
class SavedRows:
    """Some rows of a plane.

    Shapes (R rows; a column has C <= R of them):
        columns  name -> (owners [C] int64, ascending row numbers; C jagged rows)
    """

    samples: Sequence[SampleId]
    tags: Mapping[SampleId, Tags]
    columns: Mapping[str, tuple[np.ndarray, Jagged]]


def tensors_of(piece: int) -> str:
    """File of a piece's values."""
    return f"rows-{piece:05d}.safetensors"


def write_snapshot(directory: Path, pieces: Iterable[SavedRows]) -> Mapping[str, object]:
    """Write rows.json and a file of tensors per piece; facts for a manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    index: list[dict[str, object]] = []
    digests: dict[str, str] = {}
    rows = written = live = 0
    for number, piece in enumerate(pieces):
        data = _tensors(piece)
        (directory / tensors_of(number)).write_bytes(data)
        digests[tensors_of(number)] = sha256(data).hexdigest()
        index.append(_owners(piece))
        rows += len(piece.samples)
        written += len(data)
        live += sum(column.nbytes for _, column in piece.columns.values())
    text = json.dumps(index, separators=(",", ":")).encode()
    (directory / INDEX).write_bytes(text)
    digests[INDEX] = sha256(text).hexdigest()
    return {"rows": rows, "bytes": written + len(text), "live_bytes": live, "sha256": digests}


def saved_samples(directory: Path) -> frozenset[SampleId]:
    """Which rows a snapshot holds; its tensors are not read. Raises SnapshotDamaged."""
    try:
        index = json.loads((directory / INDEX).read_bytes())
        return frozenset(sample for piece in index for sample in piece["samples"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotDamaged(str(directory), str(error) or type(error).__name__) from error


def read_snapshot(directory: Path) -> list[SavedRows]:
    """The pieces. Raises SnapshotDamaged."""
    from safetensors import SafetensorError

    try:
        index = json.loads((directory / INDEX).read_bytes())
        return [
            _piece(entry, (directory / tensors_of(number)).read_bytes()) for number, entry in enumerate(index)
        ]
    except (OSError, ValueError, KeyError, IndexError, TypeError, SafetensorError) as error:
        raise SnapshotDamaged(str(directory), str(error) or type(error).__name__) from error


def _tensors(piece: SavedRows) -> bytes:
    from safetensors.numpy import save

    values = {name: column.values for name, (_, column) in piece.columns.items()}
    return save(values) if values else b""


def _owners(piece: SavedRows) -> dict[str, object]:
    """Lengths of every row per column, -1 where it has none; columns of one layout share it."""
    layouts: dict[bytes, int] = {}
    lengths: list[list[int]] = []
    places: dict[str, int] = {}
    for name, (owners, column) in piece.columns.items():
        layout = np.full(len(piece.samples), -1, np.int64)
        layout[owners] = column.lengths
        key = layout.tobytes()
        if key not in layouts:
            layouts[key] = len(lengths)
            lengths.append(layout.tolist())
        places[name] = layouts[key]
    return {"samples": list(piece.samples), "tags": piece.tags, "lengths": lengths, "columns": places}


def _piece(entry: Mapping[str, Any], data: bytes) -> SavedRows:
    from safetensors.numpy import load

    tensors = load(data) if data else {}
    samples, places = entry["samples"], entry["columns"]
    layouts = [np.array(lengths, np.int64) for lengths in entry["lengths"]]
    if set(places) != set(tensors):
        raise ValueError(f"{INDEX} and its tensors name different columns")
    columns = {
        name: _column(name, tensors[name], layouts[place], len(samples)) for name, place in places.items()
    }
    return SavedRows(samples, entry["tags"], columns)


def _column(name: str, values: np.ndarray, layout: np.ndarray, rows: int) -> tuple[np.ndarray, Jagged]:
    if len(layout) != rows:
        raise ValueError(f"column {name} has a layout of {len(layout)} rows for {rows}")
    owners = np.flatnonzero(layout >= 0)
    if layout[owners].sum() != len(values):
        raise ValueError(f"column {name} has {len(values)} values for {layout[owners].sum()} announced")
    return owners, Jagged(values, layout[owners])
