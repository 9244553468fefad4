"""Metrics: where numbers go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Axis = Literal["step", "tick", "sample"]
"""RL step, watchdog tick, telemetry sample: three axes that are never mixed (SC-12.1)."""


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """Numbers at one point of one axis; names are those of the metric table."""

    axis: Axis
    index: int
    time: float
    """Seconds since the epoch."""

    values: Mapping[str, float]


class MetricSink(Protocol):
    """One destination. Errors of a sink never reach the pumps: the caller counts and logs them once."""

    def log(self, record: MetricRecord) -> None:
        """Take a record; must not block on the network."""
        ...

    def close(self) -> None:
        """Flush and release. Idempotent."""
        ...
