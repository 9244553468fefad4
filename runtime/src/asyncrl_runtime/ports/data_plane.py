"""The data plane: storage and transport of rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from asyncrl_runtime.core.records import SampleId
from asyncrl_runtime.ports.columns import Columns

Tags = Mapping[str, int | float | str | bool]
FinishSnapshot = Callable[[], Awaitable[Mapping[str, object]]]
"""Ends the writing of a snapshot; gives facts for the manifest (rows, bytes, sha256 by file)."""


@dataclass(frozen=True, slots=True)
class PlaneUsage:
    """Cost counters, cumulative but for the outstanding ones (SC-12.60)."""

    operations: Mapping[str, int]
    bytes: Mapping[str, int]
    seconds: Mapping[str, float]
    bytes_outstanding: int
    peak_bytes_outstanding: int
    keys_outstanding: int
    keys: Mapping[str, int] = field(default_factory=dict)
    """Rows that operations named."""

    max_bytes_per_key: int = 0
    """Largest row of a single put."""


class DataPlane(Protocol):
    """Rows by sample id. A row is a set of columns plus primitive tags."""

    async def start(self) -> None:
        """Be ready for rows. Raises what stands in the way, within a deadline."""
        ...

    async def put(
        self, sample_ids: Sequence[SampleId], columns: Columns, tags: Sequence[Tags] | None = None
    ) -> None:
        """Write columns of rows, all or nothing; new columns are added to rows that exist."""
        ...

    async def get(self, sample_ids: Sequence[SampleId], fields: Sequence[str]) -> Columns:
        """Read columns in the order of sample_ids. Raises `RowsMissing` naming what is absent."""
        ...

    async def clear(self, sample_ids: Sequence[SampleId]) -> None:
        """Forget rows; absent ones are ignored."""
        ...

    async def keys(self) -> frozenset[SampleId]:
        """Every row that is held."""
        ...

    async def snapshot(self, directory: Path) -> FinishSnapshot:
        """Fix all rows as they are, to be written below directory.

        Rows may change as soon as this returns. The snapshot is whole once what it gave was called and
        awaited.
        """
        ...

    async def restore(self, directory: Path) -> None:
        """Replace all rows by those that `snapshot` wrote there."""
        ...

    def usage(self) -> PlaneUsage:
        """Counters so far."""
        ...

    async def close(self) -> None:
        """Release everything. Idempotent."""
        ...
