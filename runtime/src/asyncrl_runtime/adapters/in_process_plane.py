"""The data plane of one process: rows in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from asyncrl_runtime.adapters.plane_snapshot import SavedRows, read_snapshot, write_snapshot
from asyncrl_runtime.core.errors import RowsMissing, RunError
from asyncrl_runtime.core.records import SampleId
from asyncrl_runtime.ports.columns import Columns, Jagged
from asyncrl_runtime.ports.data_plane import PlaneUsage, Tags

ROWS_PER_RESTORED_BLOCK = 64


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


@dataclass(slots=True, eq=False)
class _Block:
    """What one put wrote. It stays in memory until the last of its rows is cleared."""

    samples: tuple[SampleId, ...]
    columns: dict[str, Jagged]
    bytes: int
    rows: int
    """Rows that still refer to it."""

    _starts: dict[str, np.ndarray] = field(default_factory=dict, init=False)

    def part(self, name: str, first: int, end: int) -> Jagged:
        """Rows first to end of a column; a view."""
        column = self.columns[name]
        if first == 0 and end == len(self.samples):
            return column
        starts = self._starts.get(name)
        if starts is None:
            starts = self._starts[name] = np.concatenate(([0], np.cumsum(column.lengths)))
        return Jagged(column.values[starts[first] : starts[end]], column.lengths[first:end])


@dataclass(slots=True, eq=False)
class _Row:
    blocks: list[tuple[_Block, int]] = field(default_factory=list)
    """Where its columns are, each with its place there; a later block hides an earlier one."""

    tags: dict[str, int | float | str | bool] | None = None

    def find(self, name: str) -> tuple[_Block, int] | None:
        """The block that holds a column."""
        for place in reversed(self.blocks):
            if name in place[0].columns:
                return place
        return None


@dataclass(slots=True)
class InProcessPlane:
    """Keeps what was put as it came; what it hands out must not be written to.

    Bytes outstanding are those of memory: rows that were put together are counted until the last of them
    is cleared.
    """

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
        """Write columns of rows, all or nothing. Raises PlaneFull, ValueError."""
        began = perf_counter()
        count = len(sample_ids)
        for name, column in columns.items():
            if len(column.lengths) != count:
                raise ValueError(f"column {name} has {len(column.lengths)} rows for {count} sample ids")
        if tags is not None and len(tags) != count:
            raise ValueError(f"{len(tags)} sets of tags were given for {count} sample ids")
        held = self._rows
        fresh = count - sum(map(held.__contains__, sample_ids))
        if len(held) + fresh > self.capacity_rows:
            raise PlaneFull(len(held) + fresh, self.capacity_rows)
        written = sum(column.nbytes for column in columns.values())
        self._write(tuple(sample_ids), columns, written)
        if tags is not None:
            for sample, tag in zip(sample_ids, tags, strict=True):
                row = held[sample]
                row.tags = {**(row.tags or {}), **tag}
        self._peak = max(self._peak, self._outstanding)
        self._count("put", written, began)

    def _write(self, samples: tuple[SampleId, ...], columns: Columns, written: int) -> None:
        rows = []
        for sample in samples:
            row = self._rows.get(sample)
            if row is None:
                row = self._rows[sample] = _Row()
            rows.append(row)
        if not rows:
            return
        block = _Block(samples, dict(columns), written, len(rows))
        last = rows[0].blocks[-1][0] if rows[0].blocks else None
        if last is not None and last.samples == samples and all(r.blocks[-1][0] is last for r in rows):
            block.columns = {**last.columns, **columns}
            block.bytes = sum(column.nbytes for column in block.columns.values())
            self._outstanding -= last.bytes
            for place, row in enumerate(rows):
                row.blocks[-1] = (block, place)
        else:
            for place, row in enumerate(rows):
                row.blocks.append((block, place))
        self._outstanding += block.bytes

    async def get(self, sample_ids: Sequence[SampleId], fields: Sequence[str]) -> Columns:
        """Read columns in the order of sample_ids. Raises RowsMissing."""
        began = perf_counter()
        missing = [sample for sample in sample_ids if sample not in self._rows]
        if missing:
            raise RowsMissing(tuple(missing), len(self._rows))
        rows = [self._rows[sample] for sample in sample_ids]
        absent = [
            f"{sample}.{name}"
            for name in fields
            for sample, row in zip(sample_ids, rows, strict=True)
            if row.find(name) is None
        ]
        if absent:
            raise RowsMissing(tuple(absent), len(self._rows))
        columns = {name: _gather(rows, name) for name in fields}
        self._count("get", sum(column.nbytes for column in columns.values()), began)
        return columns

    async def clear(self, sample_ids: Sequence[SampleId]) -> None:
        """Forget rows."""
        began = perf_counter()
        cleared = 0
        for sample in sample_ids:
            row = self._rows.pop(sample, None)
            if row is None:
                continue
            for block, _ in row.blocks:
                block.rows -= 1
                if not block.rows:
                    cleared += block.bytes
        self._outstanding -= cleared
        self._count("clear", cleared, began)

    async def keys(self) -> frozenset[SampleId]:
        """Every row that is held."""
        return frozenset(self._rows)

    async def snapshot(self, directory: Path) -> Mapping[str, object]:
        """Write rows.safetensors (a values array per column) and rows.json (who owns which part)."""
        rows = {sample: _Row(list(row.blocks), row.tags) for sample, row in self._rows.items()}
        return await asyncio.to_thread(lambda: write_snapshot(directory, _saved(rows)))

    async def restore(self, directory: Path) -> None:
        """Replace all rows; nothing changes unless the snapshot is whole. Raises SnapshotDamaged."""
        saved = await asyncio.to_thread(read_snapshot, directory)
        self._rows = _restored(saved)
        blocks = {id(block): block for row in self._rows.values() for block, _ in row.blocks}
        self._outstanding = sum(block.bytes for block in blocks.values())
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


def _gather(rows: Sequence[_Row], name: str) -> Jagged:
    """A column of rows that have it; neighbours in one block are copied in one piece."""
    parts: list[Jagged] = []
    at = 0
    while at < len(rows):
        block, first = rows[at].find(name) or _no_column(name)
        end = first + 1
        at += 1
        while at < len(rows) and rows[at].find(name) == (block, end):
            end += 1
            at += 1
        parts.append(block.part(name, first, end))
    if not parts:
        return Jagged(np.empty(0), np.empty(0, np.int64))
    return parts[0] if len(parts) == 1 else Jagged.join(parts)


def _no_column(name: str) -> tuple[_Block, int]:
    raise KeyError(name)


def _saved(rows: Mapping[SampleId, _Row]) -> SavedRows:
    columns: dict[str, tuple[np.ndarray, Jagged]] = {}
    held = list(rows.values())
    for name in sorted({name for row in held for block, _ in row.blocks for name in block.columns}):
        owners = [number for number, row in enumerate(held) if row.find(name) is not None]
        columns[name] = (np.array(owners, np.int64), _gather([held[number] for number in owners], name))
    tags = {sample: row.tags for sample, row in rows.items() if row.tags}
    return SavedRows(list(rows), tags, columns)


def _restored(saved: SavedRows) -> dict[SampleId, _Row]:
    """Rows in blocks of their own memory, so that it is given back bit by bit."""
    rows = {sample: _Row(tags=dict(saved.tags.get(sample, {})) or None) for sample in saved.samples}
    starts = {name: np.concatenate(([0], np.cumsum(c.lengths))) for name, (_, c) in saved.columns.items()}
    for first in range(0, len(rows), ROWS_PER_RESTORED_BLOCK):
        alike: dict[tuple[int, ...], dict[str, Jagged]] = {}
        for name, (owners, column) in saved.columns.items():
            low, high = np.searchsorted(owners, (first, first + ROWS_PER_RESTORED_BLOCK))
            if low < high:
                values = column.values[starts[name][low] : starts[name][high]].copy()
                part = Jagged(values, column.lengths[low:high])
                alike.setdefault(tuple(owners[low:high].tolist()), {})[name] = part
        for owners_here, columns in alike.items():
            samples = tuple(saved.samples[number] for number in owners_here)
            block = _Block(samples, columns, sum(c.nbytes for c in columns.values()), len(samples))
            for place, sample in enumerate(samples):
                rows[sample].blocks.append((block, place))
    return rows
