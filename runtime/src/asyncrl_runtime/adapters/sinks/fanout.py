"""Several sinks as one, whose failures stay here."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from asyncrl_runtime.core.metric_names import find
from asyncrl_runtime.ports.metrics import MetricRecord, MetricSink

T = TypeVar("T")
log = logging.getLogger(__name__)


class FanOut:
    """Hands each record to every sink. A sink's failure is logged once and counted; the others go on."""

    def __init__(self, sinks: Sequence[MetricSink]) -> None:
        self._sinks = list(sinks)
        self._own_errors: Counter[str] = Counter()
        self._unknown: set[str] = set()

    @property
    def errors(self) -> dict[str, int]:
        """Failures so far, by sink."""
        behind = {_name(s): s.errors for s in self._sinks if isinstance(s, BackgroundSink) and s.errors}
        return {**behind, **self._own_errors}

    def log(self, record: MetricRecord) -> None:
        """Never raises. A name outside the metric table is logged once."""
        for name in record.values:
            if name not in self._unknown and find(name) is None:
                self._unknown.add(name)
                log.error("metric %s is not in the table of metrics; Prometheus does not show it", name)
        for sink in self._sinks:
            self._guard(sink, lambda sink=sink: sink.log(record))

    def close(self) -> None:
        """Close every sink; never raises. Idempotent."""
        for sink in self._sinks:
            self._guard(sink, sink.close)

    def _guard(self, sink: MetricSink, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  SC-12.2: collection never ends the run
            name = _name(sink)
            self._own_errors[name] += 1
            if self._own_errors[name] == 1:
                log.warning("metrics do not reach %s: %s; the run goes on without it", name, error)


class BackgroundSink:
    """A sink that may block, opened and fed by a thread of its own.

    Records wait in a bounded queue; beyond it they are dropped and counted as errors.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[], MetricSink],
        *,
        max_queued: int = 10_000,
        close_seconds: float = 30,
    ) -> None:
        self.name = name
        self.errors = 0
        self._queue: queue.Queue[MetricRecord | None] = queue.Queue(max_queued)
        self._close_seconds = close_seconds
        self._thread = threading.Thread(
            target=self._work, args=(open_sink,), name=f"sink-{name}", daemon=True
        )
        self._thread.start()

    def log(self, record: MetricRecord) -> None:
        """Queue a record."""
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.errors += 1

    def close(self) -> None:
        """Wait until the queue is written, for a bounded time. Idempotent.

        Raises:
            TimeoutError: the sink did not finish in time.
        """
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=self._close_seconds)
            except queue.Full:
                raise TimeoutError(f"{self.name} took no record for {self._close_seconds:g} s") from None
            self._thread.join(self._close_seconds)
            if self._thread.is_alive():
                raise TimeoutError(f"{self.name} did not finish within {self._close_seconds:g} s")

    def _work(self, open_sink: Callable[[], MetricSink]) -> None:
        sink = self._try(open_sink)
        while (record := self._queue.get()) is not None:
            if sink is None:
                self.errors += 1
            else:
                self._try(lambda sink=sink, record=record: sink.log(record))
        if sink is not None:
            self._try(sink.close)

    def _try(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  whatever a service's library raises
            self.errors += 1
            if self.errors == 1:
                log.warning("metrics do not reach %s: %s; the run goes on without it", self.name, error)
            return None


def _name(sink: MetricSink) -> str:
    return str(getattr(sink, "name", type(sink).__name__))
