"""Handing numbers to every sink; a sink that fails never reaches a pump."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from asyncrl_runtime.ports.metrics import Axis, MetricRecord, MetricSink


@dataclass(slots=True, kw_only=True)
class MetricLog:
    """Fans records out to the sinks (SC-12.2, 8.63)."""

    sinks: Sequence[MetricSink]
    wall_clock: Callable[[], float]
    on_failure: Callable[[str, Exception], None]
    """Told once per sink; later failures of it are counted."""

    failures: Counter[str] = field(default_factory=Counter, init=False)

    def log(self, axis: Axis, index: int, values: Mapping[str, float]) -> None:
        """Log one record everywhere."""
        record = MetricRecord(axis, index, self.wall_clock(), values)
        for sink in self.sinks:
            self._guarded(sink, lambda sink=sink: sink.log(record))

    def close(self) -> None:
        """Flush and close every sink."""
        for sink in self.sinks:
            self._guarded(sink, sink.close)

    def _guarded(self, sink: MetricSink, action: Callable[[], None]) -> None:
        name = type(sink).__name__
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever a logging backend raises must not end a run
            self.failures[name] += 1
            if self.failures[name] == 1:
                self.on_failure(name, error)
