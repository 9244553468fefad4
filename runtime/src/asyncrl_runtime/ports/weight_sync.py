"""Weight sync: carrying the policy's parameters from the trainer to the shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Reconciled = Literal["rebuilt", "unchanged", "unowned"]
"""Built anew; nothing to do; the transport has no membership to change (SC-6.33)."""


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
    """Moves parameters; knows nothing of versions beyond handing them on.

    A call that the caller gave up on may end late: it then changes nothing that a later call has built.
    """

    is_stale: bool
    """True until the first successful sync."""

    async def init_communicator(self) -> None:
        """Connect trainer and shards."""
        ...

    async def reconcile(self, absent: frozenset[int], *, force: bool = False) -> Reconciled:
        """Make every shard but `absent` a receiver; with `force`, whatever was built is gone.

        Built anew only when the absent shards, or a process behind a present one, are others than before.
        Raises `RefitAborted` when it cannot be built.
        """
        ...

    async def sync_weights(
        self, version: int, *, kv_scales: Mapping[str, float] | None = None
    ) -> TransferReport:
        """Load the trainer's current parameters into every receiver as `version`.

        Running requests continue between two tokens.

        Raises:
            RefitIncomplete: some receivers did not acknowledge; those that did are complete.
            RefitAborted: the transfer was cut off; no receiver is known to be complete.
            TrainerFailure: the trainer could not give its parameters.
            ValueError: for scales that the transport cannot carry.
        """
        ...

    def stand_down(self) -> None:
        """A receiver is known to have ended: the transfer under way need not wait for it. Returns at once."""
        ...

    async def shutdown(self) -> None:
        """Release what was connected. Idempotent; never masks an earlier error."""
        ...
