"""The conditions of a job's status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from asyncrl_api.status import Condition
from asyncrl_operator.core.times import read, written

TYPES = (
    "Accepted",
    "StorageReady",
    "QuotaReserved",
    "ClusterCreated",
    "ControllerReady",
    "GenerationHealthy",
    "TrainingHealthy",
    "Progressing",
    "CheckpointHealthy",
    "Degraded",
    "Restarting",
    "ShardsQuarantined",
    "UpdatePending",
    "Suspended",
    "DisruptionPending",
    "SecurityEnforced",
    "ReconcilePaused",
    "Complete",
    "Failed",
)
MAX_MESSAGE = 1024

Truth = Literal["True", "False", "Unknown"]


@dataclass(slots=True)
class Conditions:
    """All of them; a change of `status` moves the transition time, anything else does not."""

    generation: int
    now: datetime
    _by_type: dict[str, Condition] = field(default_factory=dict)
    _before: dict[str, Condition] = field(default_factory=dict)
    """As they were when this pass began: what is said twice in a pass is no change."""

    @classmethod
    def of(cls, known: Iterable[Condition] | None, *, generation: int, now: datetime) -> Conditions:
        """Those that are known; the others begin as Unknown."""
        before = {condition.type: condition for condition in known or ()}
        found = cls(generation, now, dict(before), before)
        for kind in TYPES:
            if kind not in found._by_type:
                found.set(kind, "Unknown", "Pending", "not looked at yet")
        return found

    def set(self, kind: str, truth: Truth | bool, reason: str, message: str) -> None:
        """State one fact."""
        status: Truth = truth if isinstance(truth, str) else ("True" if truth else "False")
        before = self._before.get(kind)
        since = written(self.now)
        if before is not None and before.status == status and before.last_transition_time:
            since = before.last_transition_time
        self._by_type[kind] = Condition(
            type=kind,
            status=status,
            observed_generation=self.generation,
            last_transition_time=since,
            reason=reason,
            message=shortened(message, MAX_MESSAGE),
        )

    def holds(self, kind: str) -> bool:
        """Whether it is True."""
        return self._by_type[kind].status == "True"

    def status(self, kind: str) -> str:
        """True, False or Unknown."""
        return self._by_type[kind].status

    def reason(self, kind: str) -> str:
        """Its reason."""
        return self._by_type[kind].reason or ""

    def message(self, kind: str) -> str:
        """Its message."""
        return self._by_type[kind].message or ""

    def seconds(self, kind: str) -> float:
        """Since when its status is what it is."""
        since = self._by_type[kind].last_transition_time
        return (self.now - read(since)).total_seconds() if since else 0.0

    def listed(self) -> tuple[Condition, ...]:
        """In a fixed order."""
        order = {kind: place for place, kind in enumerate(TYPES)}
        return tuple(sorted(self._by_type.values(), key=lambda found: order.get(found.type, len(order))))


def shortened(text: str, limit: int) -> str:
    """Without its middle where it is too long."""
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]} … {text[-half:]}"
