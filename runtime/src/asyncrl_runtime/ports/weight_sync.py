"""Weight sync: carrying the policy's parameters from the trainer to the shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TransferReport:
    """One landed transfer."""

    version: int
    participants: tuple[int, ...]
    """Shards that acknowledged the complete transfer."""

    bytes: int
    seconds: float
    pause_seconds: Mapping[int, float] = field(default_factory=dict)
    """How long each shard held its running requests up."""


class WeightSync(Protocol):
    """Moves parameters; knows nothing of versions beyond handing them on."""

    is_stale: bool
    """True until the first successful sync."""

    async def init_communicator(self) -> None:
        """Connect trainer and shards."""
        ...

    async def sync_weights(
        self, version: int, *, kv_scales: Mapping[str, float] | None = None
    ) -> TransferReport:
        """Load the trainer's current parameters into every shard as `version`.

        Running requests continue between two tokens. Raises `RefitAborted` when a shard did not
        acknowledge, and `ValueError` for scales that the transport cannot carry.
        """
        ...

    async def shutdown(self) -> None:
        """Release what was connected. Idempotent; never masks an earlier error."""
        ...
