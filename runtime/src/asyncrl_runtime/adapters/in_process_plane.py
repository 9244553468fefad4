"""The data plane of one process: rows in memory."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np

from asyncrl_runtime.adapters.plane_snapshot import SavedRows, read_snapshot, write_snapshot
from asyncrl_runtime.core.errors import RowsMissing, RunError
from asyncrl_runtime.core.records import SampleId
from asyncrl_runtime.ports.columns import Columns, Jagged
from asyncrl_runtime.ports.data_plane import FinishSnapshot, PlaneUsage, Tags

ROWS_PER_PIECE, ROWS_PER_RESTORED_BLOCK = 1024, 64


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
class _Place:
    """Where a row is in a block, and where its earlier columns are. Never changed: snapshots share it."""

    block: _Block
    row: int
    before: _Place | None

    def find(self, name: str) -> _Place | None:
        """The newest place that has a column."""
        place: _Place | None = self
        while place is not None and name not in place.block.columns:
            place = place.before
        return place


@dataclass(slots=True)
class InProcessPlane:
    """Keeps what was put as it came; what it hands out must not be written to.

    Bytes outstanding are those of memory: rows that were put together are counted until the last of them
    is cleared.
    """

    capacity_rows: int
    _rows: dict[SampleId, _Place] = field(default_factory=dict, init=False)
    _tags: dict[SampleId, Tags] = field(default_factory=dict, init=False)
    _operations: Counter[str] = field(default_factory=Counter, init=False)
    _bytes: Counter[str] = field(default_factory=Counter, init=False)
    _keys: Counter[str] = field(default_factory=Counter, init=False)
    _largest_row: int = field(default=0, init=False)
    _seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float), init=False)
    _outstanding: int = field(default=0, init=False)
    _peak: int = field(default=0, init=False)

    async def start(self) -> None:
        """It is ready."""

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
                self._tags[sample] = {**self._tags.get(sample, {}), **tag}
        self._peak = max(self._peak, self._outstanding)
        self._largest_row = max(self._largest_row, _largest_row(columns))
        self._count("put", count, written, began)

    def _write(self, samples: tuple[SampleId, ...], columns: Columns, written: int) -> None:
        if not samples:
            return
        held = self._rows
        places = [held.get(sample) for sample in samples]
        block = _Block(samples, dict(columns), written, len(samples))
        last = places[0].block if places[0] is not None else None
        if last is not None and last.samples == samples and all(p and p.block is last for p in places):
            block.columns = {**last.columns, **columns}
            block.bytes = sum(column.nbytes for column in block.columns.values())
            self._outstanding -= last.bytes
            places = [place and place.before for place in places]
        for row, (sample, before) in enumerate(zip(samples, places, strict=True)):
            held[sample] = _Place(block, row, before)
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
        self._count("get", len(sample_ids), sum(column.nbytes for column in columns.values()), began)
        return columns

    async def clear(self, sample_ids: Sequence[SampleId]) -> None:
        """Forget rows."""
        began = perf_counter()
        cleared = 0
        for sample in sample_ids:
            place = self._rows.pop(sample, None)
            if self._tags:
                self._tags.pop(sample, None)
            while place is not None:
                place.block.rows -= 1
                if not place.block.rows:
                    cleared += place.block.bytes
                place = place.before
        self._outstanding -= cleared
        self._count("clear", len(sample_ids), cleared, began)

    async def keys(self) -> frozenset[SampleId]:
        """Every row that is held."""
        return frozenset(self._rows)

    async def snapshot(self, directory: Path) -> FinishSnapshot:
        """Hold on to the rows of now, which never change, and write them in a thread."""
        rows, tags = dict(self._rows), dict(self._tags)

        async def finish() -> Mapping[str, object]:
            return await asyncio.to_thread(lambda: write_snapshot(directory, _pieces(rows, tags)))

        return finish

    async def restore(self, directory: Path) -> None:
        """Replace all rows; nothing changes unless the snapshot is whole. Raises SnapshotDamaged."""
        pieces = await asyncio.to_thread(read_snapshot, directory)
        self._rows, self._tags, self._outstanding = {}, {}, 0
        for piece in pieces:
            rows, held = _restored(piece)
            self._rows.update(rows)
            self._tags.update(piece.tags)
            self._outstanding += held
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
            dict(self._keys),
            self._largest_row,
        )

    async def close(self) -> None:
        """Drop every row."""
        self._rows.clear()
        self._tags.clear()
        self._outstanding = 0

    def _count(self, operation: str, keys: int, moved: int, began: float) -> None:
        self._operations[operation] += 1
        self._keys[operation] += keys
        self._bytes[operation] += moved
        self._seconds[operation] += perf_counter() - began


def _largest_row(columns: Columns) -> int:
    """Bytes of the largest row over these columns together."""
    sizes = [column.lengths * column.values.itemsize for column in columns.values()]
    return int(np.sum(sizes, axis=0).max(initial=0)) if sizes else 0


def _gather(rows: Sequence[_Place], name: str) -> Jagged:
    """A column of rows that have it; neighbours in one block are copied in one piece."""
    parts: list[Jagged] = []
    block, first, end = None, 0, 0
    for row in rows:
        place = row.find(name)
        assert place is not None
        if place.block is block and place.row == end:
            end += 1
            continue
        if block is not None:
            parts.append(block.part(name, first, end))
        block, first, end = place.block, place.row, place.row + 1
    if block is None:
        return Jagged(np.empty(0), np.empty(0, np.int64))
    parts.append(block.part(name, first, end))
    return parts[0] if len(parts) == 1 else Jagged.join(parts)


def _pieces(rows: Mapping[SampleId, _Place], tags: Mapping[SampleId, Tags]) -> Iterator[SavedRows]:
    """Bounds the memory and the time for which other threads wait."""
    samples = iter(rows)
    while piece := list(islice(samples, ROWS_PER_PIECE)):
        yield _saved({sample: rows[sample] for sample in piece}, tags)


def _saved(rows: Mapping[SampleId, _Place], tags: Mapping[SampleId, Tags]) -> SavedRows:
    held, names = list(rows.values()), set()
    for row in held:
        place: _Place | None = row
        while place is not None:
            names.update(place.block.columns)
            place = place.before
    columns: dict[str, tuple[np.ndarray, Jagged]] = {}
    for name in sorted(names):
        owners = [number for number, row in enumerate(held) if row.find(name) is not None]
        columns[name] = (np.array(owners, np.int64), _gather([held[number] for number in owners], name))
    return SavedRows(list(rows), {s: tags[s] for s in rows if s in tags}, columns)


def _restored(saved: SavedRows) -> tuple[dict[SampleId, _Place], int]:
    """Rows in blocks of their own memory, so that it is given back bit by bit; and their bytes."""
    rows: dict[SampleId, _Place] = {}
    total = 0
    starts = {name: np.concatenate(([0], np.cumsum(c.lengths))) for name, (_, c) in saved.columns.items()}
    for first in range(0, len(saved.samples), ROWS_PER_RESTORED_BLOCK):
        everyone = range(first, min(first + ROWS_PER_RESTORED_BLOCK, len(saved.samples)))
        alike: dict[tuple[int, ...], dict[str, Jagged]] = {tuple(everyone): {}}
        for name, (owners, column) in saved.columns.items():
            low, high = np.searchsorted(owners, (everyone.start, everyone.stop))
            if low < high:
                values = column.values[starts[name][low] : starts[name][high]].copy()
                part = Jagged(values, column.lengths[low:high])
                alike.setdefault(tuple(owners[low:high].tolist()), {})[name] = part
        for owners_here, columns in alike.items():
            samples = tuple(saved.samples[number] for number in owners_here)
            block = _Block(samples, columns, sum(c.nbytes for c in columns.values()), len(samples))
            total += block.bytes
            for row, sample in enumerate(samples):
                rows[sample] = _Place(block, row, rows.get(sample))
    return rows, total
