"""The data plane of one process: rows in memory."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import numpy as np

from asyncrl_runtime.core.errors import RowsMissing, RunError
from asyncrl_runtime.core.records import SampleId
from asyncrl_runtime.ports.columns import Columns, Jagged
from asyncrl_runtime.ports.data_plane import PlaneUsage, Tags

ROWS, TENSORS = "rows.json", "rows.safetensors"


@dataclass(eq=False)
class PlaneFull(RunError):
    """More rows than the plane may hold."""

    rows: int
    capacity: int

    def __str__(self) -> str:
        return (
            f"the data plane would hold {self.rows} rows, above "
            f"spec.dataPlane.storageCapacity {self.capacity}: raise it"
        )


@dataclass(slots=True)
class _Row:
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    tags: dict[str, int | float | str | bool] = field(default_factory=dict)
    bytes: int = 0


@dataclass(slots=True)
class InProcessPlane:
    """Keeps each row's columns as arrays; what it hands out must not be written to."""

    capacity_rows: int
    _rows: dict[SampleId, _Row] = field(default_factory=dict, init=False)
    _operations: Counter[str] = field(default_factory=Counter, init=False)
    _bytes: Counter[str] = field(default_factory=Counter, init=False)
    _seconds: Counter[str] = field(default_factory=Counter, init=False)
    _outstanding: int = field(default=0, init=False)
    _peak: int = field(default=0, init=False)

    async def put(
        self, sample_ids: Sequence[SampleId], columns: Columns, tags: Sequence[Tags] | None = None
    ) -> None:
        """Write columns of rows, all or nothing."""
        began = perf_counter()
        for name, column in columns.items():
            if len(column.lengths) != len(sample_ids):
                raise ValueError(
                    f"column {name} has {len(column.lengths)} rows for {len(sample_ids)} sample ids"
                )
        fresh = sum(sample not in self._rows for sample in sample_ids)
        if len(self._rows) + fresh > self.capacity_rows:
            raise PlaneFull(len(self._rows) + fresh, self.capacity_rows)
        rows = [self._rows.setdefault(sample, _Row()) for sample in sample_ids]
        written = 0
        for name, column in columns.items():
            for row, values in zip(rows, column.rows(), strict=True):
                replaced = row.columns.get(name)
                gained = values.nbytes - (replaced.nbytes if replaced is not None else 0)
                row.columns[name] = values
                row.bytes += gained
                written += gained
        for row, tag in zip(rows, tags or (), strict=False):
            row.tags.update(tag)
        self._outstanding += written
        self._peak = max(self._peak, self._outstanding)
        self._count("put", sum(column.nbytes for column in columns.values()), began)

    async def get(self, sample_ids: Sequence[SampleId], fields: Sequence[str]) -> Columns:
        """Read columns in the order of sample_ids."""
        began = perf_counter()
        missing = [sample for sample in sample_ids if sample not in self._rows]
        if missing:
            raise RowsMissing(tuple(missing), len(self._rows))
        rows = [self._rows[sample].columns for sample in sample_ids]
        columns: dict[str, Jagged] = {}
        for name in fields:
            try:
                values = [row[name] for row in rows]
            except KeyError:
                absent = [f"{s}.{name}" for s, row in zip(sample_ids, rows, strict=True) if name not in row]
                raise RowsMissing(tuple(absent), len(self._rows)) from None
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            columns[name] = Jagged(np.concatenate(values), lengths)
        self._count("get", sum(column.nbytes for column in columns.values()), began)
        return columns

    async def clear(self, sample_ids: Sequence[SampleId]) -> None:
        """Forget rows."""
        began = perf_counter()
        cleared = 0
        for sample in sample_ids:
            row = self._rows.pop(sample, None)
            cleared += row.bytes if row else 0
        self._outstanding -= cleared
        self._count("clear", cleared, began)

    async def keys(self) -> frozenset[SampleId]:
        """Every row that is held."""
        return frozenset(self._rows)

    async def snapshot(self, directory: Path) -> Mapping[str, object]:
        """Write rows.safetensors (a values array per column) and rows.json (who owns which part)."""
        rows = [(sample, dict(row.columns), dict(row.tags)) for sample, row in self._rows.items()]
        return await asyncio.to_thread(_write_snapshot, directory, rows)

    async def restore(self, directory: Path) -> None:
        """Replace all rows; nothing changes unless the snapshot is whole."""
        rows = await asyncio.to_thread(_read_snapshot, directory)
        self._rows = rows
        self._outstanding = sum(row.bytes for row in rows.values())
        self._peak = max(self._peak, self._outstanding)

    def usage(self) -> PlaneUsage:
        """Counters so far."""
        return PlaneUsage(
            dict(self._operations),
            dict(self._bytes),
            dict(self._seconds),
            self._outstanding,
            self._peak,
            len(self._rows),
        )

    async def close(self) -> None:
        """Drop every row."""
        self._rows.clear()
        self._outstanding = 0

    def _count(self, operation: str, count: int, began: float) -> None:
        self._operations[operation] += 1
        self._bytes[operation] += count
        self._seconds[operation] += perf_counter() - began


_Held = list[tuple[SampleId, dict[str, np.ndarray], dict[str, int | float | str | bool]]]


def _write_snapshot(directory: Path, rows: _Held) -> Mapping[str, object]:
    from safetensors.numpy import save

    directory.mkdir(parents=True, exist_ok=True)
    names = sorted({name for _, columns, _ in rows for name in columns})
    tensors: dict[str, np.ndarray] = {}
    lengths: dict[str, list[int]] = {}
    for name in names:
        owned = [columns[name] for _, columns, _ in rows if name in columns]
        tensors[name] = np.concatenate(owned)
        lengths[name] = [len(columns[name]) if name in columns else -1 for _, columns, _ in rows]
    data = save(tensors) if tensors else b""
    index = {
        "samples": [sample for sample, _, _ in rows],
        "tags": [tags for *_, tags in rows],
        "lengths": lengths,
    }
    text = json.dumps(index, separators=(",", ":")).encode()
    (directory / TENSORS).write_bytes(data)
    (directory / ROWS).write_bytes(text)
    return {
        "rows": len(rows),
        "bytes": len(data) + len(text),
        "live_bytes": sum(array.nbytes for array in tensors.values()),
        "sha256": {TENSORS: sha256(data).hexdigest(), ROWS: sha256(text).hexdigest()},
    }


def _read_snapshot(directory: Path) -> dict[SampleId, _Row]:
    from safetensors.numpy import load

    index = json.loads((directory / ROWS).read_bytes())
    data = (directory / TENSORS).read_bytes()
    tensors = load(data) if data else {}
    rows = {sample: _Row(tags=tags) for sample, tags in zip(index["samples"], index["tags"], strict=True)}
    for name, lengths in index["lengths"].items():
        owners = [row for row, length in zip(rows.values(), lengths, strict=True) if length >= 0]
        sizes = np.array([length for length in lengths if length >= 0], dtype=np.int64)
        if sizes.sum() != len(tensors[name]):
            raise RunError(
                f"{directory}: column {name} has {len(tensors[name])} values for {sizes.sum()} announced"
            )
        for row, values in zip(owners, Jagged(tensors[name], sizes).rows(), strict=True):
            row.columns[name] = values
            row.bytes += values.nbytes
    return rows
