"""The client of TransferQueue, in a process of its own: the controller imports neither it nor torch.

Rows are written jagged, so that a row never keeps the memory of its neighbours. Reads are checked, since a
missing key is dropped without a word there. Failures of the notification that a row is ready are only
logged there, so each write is confirmed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from asyncrl_runtime.adapters.plane_snapshot import SavedRows, read_snapshot, write_snapshot
from asyncrl_runtime.core.errors import RowsMissing
from asyncrl_runtime.core.records import SampleId
from asyncrl_runtime.ports.columns import Columns, Jagged
from asyncrl_runtime.ports.data_plane import Tags

if TYPE_CHECKING:
    from tensordict import TensorDict

ROWS_PER_PIECE = 1024
_STORAGE_SECONDS = 30
"""TransferQueue's own bound of one exchange with a storage unit; ours, on every call, is what counts."""


class QueueService:
    """Rows by sample id in one partition, and an index of what each row has."""

    def __init__(self, partition: str, storage_units: int, capacity_rows: int | None) -> None:
        """Start the queue's actors, or join those that run. Blocks."""
        os.environ.setdefault("TQ_SIMPLE_STORAGE_SEND_RECV_TIMEOUT", str(_STORAGE_SECONDS))
        os.environ.setdefault("TQ_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("TQ_NUM_THREADS", "2")
        import transfer_queue as tq
        from omegaconf import OmegaConf

        self._tq, self._partition, self._joined = tq, partition, _is_running()
        tq.init(
            OmegaConf.create(
                {
                    "controller": {"polling_mode": True},
                    "backend": {
                        "storage_backend": "SimpleStorage",
                        "SimpleStorage": {
                            "num_data_storage_units": storage_units,
                            "total_storage_size": capacity_rows,
                        },
                    },
                }
            )
        )
        self._columns: dict[SampleId, set[str]] = {}
        self._tags: dict[SampleId, Tags] = {}
        self._turn = asyncio.Lock()
        """One exchange at a time: put, confirm and index change together."""

    async def put(self, samples: Sequence[SampleId], columns: Columns, tags: Sequence[Tags] | None) -> None:
        """Write, confirm, index. Raises OSError when a row was written and did not become ready."""
        if not samples:
            return
        async with self._turn:
            given = None if tags is None else [dict(tag) for tag in tags]
            meta = await self._tq.async_kv_batch_put(
                keys=list(samples),
                partition_id=self._partition,
                fields=_fields(columns, len(samples)),
                tags=given,
            )
            listed = await self._listed()
            lost = [sample for sample in samples if sample not in listed]
            if lost or not set(columns) <= set(meta.fields or ()):
                raise OSError(f"TransferQueue did not make {len(lost) or len(samples)} rows ready")
            for row, sample in enumerate(samples):
                self._columns.setdefault(sample, set()).update(columns)
                if tags is not None:
                    self._tags[sample] = {**self._tags.get(sample, {}), **tags[row]}

    async def get(self, samples: Sequence[SampleId], fields: Sequence[str]) -> dict[str, Jagged]:
        """Read in order. Raises RowsMissing, OSError when fewer rows came back than were asked for."""
        missing = [sample for sample in samples if sample not in self._columns]
        missing = missing or [
            f"{sample}.{name}" for name in fields for sample in samples if name not in self._columns[sample]
        ]
        if missing:
            raise RowsMissing(tuple(missing), len(self._columns))
        if not samples or not fields:
            return {name: Jagged(np.empty(0), np.empty(0, np.int64)) for name in fields}
        async with self._turn:
            data = await self._tq.async_kv_batch_get(
                keys=list(samples), partition_id=self._partition, select_fields=list(fields)
            )
        columns = {name: _jagged(data[name]) for name in fields}
        short = [name for name, column in columns.items() if len(column.lengths) != len(samples)]
        if short:
            raise OSError(f"TransferQueue gave fewer than {len(samples)} rows of {', '.join(short)}")
        return columns

    async def clear(self, samples: Sequence[SampleId]) -> None:
        """Forget rows; absent ones are ignored."""
        held = [sample for sample in dict.fromkeys(samples) if sample in self._columns]
        if not held:
            return
        async with self._turn:
            await self._tq.async_kv_clear(keys=held, partition_id=self._partition)
            for sample in held:
                self._columns.pop(sample, None)
                self._tags.pop(sample, None)

    async def keys(self) -> frozenset[SampleId]:
        """Every row that the queue holds, as the queue says."""
        return frozenset(await self._listed())

    async def save(self, directory: str, samples: Sequence[SampleId]) -> Mapping[str, object]:
        """Write rows in the files that every data plane reads. Raises OSError, RowsMissing."""
        pieces = [
            await self._piece(list(samples[first : first + ROWS_PER_PIECE]))
            for first in range(0, len(samples), ROWS_PER_PIECE)
        ]
        return await asyncio.to_thread(write_snapshot, Path(directory), pieces)

    async def load(self, directory: str) -> None:
        """Replace all rows; they are read before anything is forgotten. Raises SnapshotDamaged."""
        pieces = await asyncio.to_thread(read_snapshot, Path(directory))
        await self.clear(sorted(await self.keys()))
        for piece in pieces:
            await self._put_piece(piece)

    async def close(self) -> None:
        """Forget the rows; end the queue's actors, if this process started them."""
        await self.clear(sorted(self._columns))
        if not self._joined:
            await asyncio.to_thread(self._tq.close)

    async def _listed(self) -> Mapping[SampleId, object]:
        return (await self._tq.async_kv_list(self._partition)).get(self._partition, {})

    async def _piece(self, samples: list[SampleId]) -> SavedRows:
        """Rows with different columns are read by the sets of columns that they have."""
        kinds: dict[tuple[str, ...], list[int]] = {}
        for row, sample in enumerate(samples):
            kinds.setdefault(tuple(sorted(self._columns[sample])), []).append(row)
        parts: dict[str, list[tuple[np.ndarray, Jagged]]] = {}
        for names, rows in kinds.items():
            columns = await self.get([samples[row] for row in rows], names)
            for name, column in columns.items():
                parts.setdefault(name, []).append((np.array(rows, np.int64), column))
        tags = {sample: self._tags[sample] for sample in samples if sample in self._tags}
        return SavedRows(samples, tags, {name: _in_order(owned) for name, owned in parts.items()})

    async def _put_piece(self, piece: SavedRows) -> None:
        kinds: dict[tuple[int, ...], dict[str, Jagged]] = {}
        for name, (owners, column) in piece.columns.items():
            kinds.setdefault(tuple(owners.tolist()), {})[name] = column
        for owners, columns in kinds.items():
            samples = [piece.samples[row] for row in owners]
            await self.put(samples, columns, [piece.tags.get(sample, {}) for sample in samples])


def _is_running() -> bool:
    """Whether the cluster has a queue already."""
    import ray

    try:
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except ValueError:
        return False
    return True


def _fields(columns: Columns, rows: int) -> TensorDict:
    """Jagged columns as nested tensors; one value a row is a row of length one."""
    import torch
    from tensordict import TensorDict

    fields = {}
    for name, column in columns.items():
        values = torch.from_numpy(np.ascontiguousarray(column.values))
        offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(column.lengths))).astype(np.int64))
        fields[name] = torch.nested.nested_tensor_from_jagged(values, offsets)
    return TensorDict(fields, batch_size=[rows])


def _jagged(column: object) -> Jagged:
    """A column as it came back: nested, dense, or a list of rows."""
    import torch

    assert isinstance(column, torch.Tensor)
    if column.is_nested:
        rows = [row.reshape(-1).numpy() for row in column.unbind()]
        return Jagged.of(rows, rows[0].dtype)
    dense = column.reshape(column.shape[0], -1).numpy()
    return Jagged(dense.reshape(-1), np.full(dense.shape[0], dense.shape[1], np.int64))


def _in_order(owned: Sequence[tuple[np.ndarray, Jagged]]) -> tuple[np.ndarray, Jagged]:
    """One column out of parts, by ascending row."""
    owners = np.concatenate([rows for rows, _ in owned])
    rows = [row for _, column in owned for row in column.rows()]
    order = np.argsort(owners, kind="stable")
    return owners[order], Jagged.of([rows[place] for place in order], rows[0].dtype)
