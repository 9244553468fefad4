"""The data plane on TransferQueue, as the controller sees it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from asyncrl_runtime.adapters.transfer_queue.service import QueueService
from asyncrl_runtime.adapters.workers.host import Host, Worker
from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import SampleId
from asyncrl_runtime.ports.columns import Columns
from asyncrl_runtime.ports.data_plane import FinishSnapshot, PlaneUsage, Tags

PARTITION = "rollout_data"
"""The named address space of a run's canonical rows (SC-1.52)."""

CALL_SECONDS = 60.0
"""Of an exchange of rows; far above what one takes, so that only a lost part of the queue meets it."""

SAVE_SECONDS = 600.0


@dataclass(eq=False)
class PlaneNotStarted(RunError):
    """Rows were asked for before the queue ran."""

    def __str__(self) -> str:
        return "the data plane was used before it was started; this is a defect of the runtime"


@dataclass(slots=True, kw_only=True, eq=False)
class TransferQueuePlane:
    """Forwards to a `QueueService`; every call has a deadline, since a lost storage unit never answers."""

    host: Host
    partition: str = PARTITION
    storage_units: int = 1
    capacity_rows: int | None = None
    start_seconds: float = 120.0
    setting: str = ""
    """The field that holds `start_seconds`."""

    call_seconds: float = CALL_SECONDS

    _worker: Worker | None = field(default=None, init=False)
    _operations: Counter[str] = field(default_factory=Counter, init=False)
    _bytes: Counter[str] = field(default_factory=Counter, init=False)
    _keys: Counter[str] = field(default_factory=Counter, init=False)
    _seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float), init=False)
    _held: dict[SampleId, int] = field(default_factory=dict, init=False)
    """Bytes of each row."""

    _outstanding: int = field(default=0, init=False)
    _peak: int = field(default=0, init=False)
    _largest: int = field(default=0, init=False)

    async def start(self) -> None:
        """Start the queue and its client. Raises DeadlinePassed, WorkerDied."""
        self._worker = await self.host.launch(
            QueueService,
            self.partition,
            self.storage_units,
            self.capacity_rows,
            name="data plane",
            start_seconds=self.start_seconds,
            setting=self.setting,
        )

    async def put(
        self, sample_ids: Sequence[SampleId], columns: Columns, tags: Sequence[Tags] | None = None
    ) -> None:
        """Write columns of rows, and return once they are ready. Raises ValueError."""
        began, count = perf_counter(), len(sample_ids)
        for name, column in columns.items():
            if len(column.lengths) != count:
                raise ValueError(f"column {name} has {len(column.lengths)} rows for {count} sample ids")
        if tags is not None and len(tags) != count:
            raise ValueError(f"{len(tags)} sets of tags were given for {count} sample ids")
        await self._call("put", tuple(sample_ids), dict(columns), tags)
        written = 0
        for row, sample in enumerate(sample_ids):
            size = sum(int(c.lengths[row]) * c.values.itemsize for c in columns.values())
            self._held[sample] = self._held.get(sample, 0) + size
            self._largest = max(self._largest, self._held[sample])
            written += size
        self._outstanding += written
        self._peak = max(self._peak, self._outstanding)
        self._count("put", count, written, began)

    async def get(self, sample_ids: Sequence[SampleId], fields: Sequence[str]) -> Columns:
        """Read columns in the order of sample_ids. Raises RowsMissing."""
        began = perf_counter()
        columns: Columns = await self._call("get", tuple(sample_ids), tuple(fields))
        self._count("get", len(sample_ids), sum(column.nbytes for column in columns.values()), began)
        return columns

    async def clear(self, sample_ids: Sequence[SampleId]) -> None:
        """Forget rows."""
        began = perf_counter()
        await self._call("clear", tuple(sample_ids))
        cleared = sum(self._held.pop(sample, 0) for sample in sample_ids)
        self._outstanding -= cleared
        self._count("clear", len(sample_ids), cleared, began)

    async def keys(self) -> frozenset[SampleId]:
        """Every row that the queue holds."""
        return await self._call("keys")

    async def snapshot(self, directory: Path) -> FinishSnapshot:
        """Write every row of now, before this returns: the queue's rows may change afterwards."""
        samples = tuple(sorted(await self.keys()))
        facts: Mapping[str, object] = await self._call(
            "save", str(directory), samples, deadline_seconds=SAVE_SECONDS
        )

        async def finish() -> Mapping[str, object]:
            return facts

        return finish

    async def restore(self, directory: Path) -> None:
        """Replace all rows by those that `snapshot` wrote. Raises SnapshotDamaged."""
        await self._call("load", str(directory), deadline_seconds=SAVE_SECONDS)
        self._held = dict.fromkeys(await self.keys(), 0)
        self._outstanding = 0

    def usage(self) -> PlaneUsage:
        """Counters so far. Rows of a restored snapshot count as keys, not as bytes."""
        return PlaneUsage(
            operations=dict(self._operations),
            bytes=dict(self._bytes),
            seconds=dict(self._seconds),
            bytes_outstanding=self._outstanding,
            peak_bytes_outstanding=self._peak,
            keys_outstanding=len(self._held),
            keys=dict(self._keys),
            max_bytes_per_key=self._largest,
        )

    async def close(self) -> None:
        """End the queue. Idempotent."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    async def _call(self, method: str, *args: object, deadline_seconds: float | None = None):  # noqa: ANN202
        if self._worker is None:
            raise PlaneNotStarted
        return await self._worker.call(method, *args, deadline_seconds=deadline_seconds or self.call_seconds)

    def _count(self, operation: str, keys: int, moved: int, began: float) -> None:
        self._operations[operation] += 1
        self._keys[operation] += keys
        self._bytes[operation] += moved
        self._seconds[operation] += perf_counter() - began
