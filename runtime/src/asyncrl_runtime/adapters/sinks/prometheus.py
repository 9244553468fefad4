"""The Prometheus endpoint of the controller (CLI-50)."""

from __future__ import annotations

import errno
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.metric_names import Metric, find
from asyncrl_runtime.ports.metrics import MetricRecord

MAX_SERIES = 128
"""Label combinations of one name; later ones are counted and left out."""


@dataclass(eq=False)
class PortTaken(RunError):
    """The metrics endpoint cannot listen."""

    port: int
    problem: str

    def __str__(self) -> str:
        return (
            f"metrics cannot be served on port {self.port}: {self.problem}; "
            "choose another spec.observability.metricsPort, or 0 for none"
        )


class PrometheusSink:
    """Holds the newest values and serves them as text. Names outside the metric table are left out."""

    name = "prometheus"

    def __init__(self, port: int, *, job: Mapping[str, str], address: str = "0.0.0.0") -> None:
        """`job`: labels of asyncrl_job_info. Port 0 takes a free one. Raises `PortTaken`."""
        self._job = dict(job)
        self._lock = threading.Lock()
        self._metrics: dict[str, Metric] = {}
        self._values: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        self._left_out = 0
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise PortTaken(port, "something else listens there" if taken else str(error)) from error
        self.port: int = self._server.server_port
        self._closed = False

    def log(self, record: MetricRecord) -> None:
        """Replace gauges and totals, add up counts."""
        with self._lock:
            for name, value in record.values.items():
                series = find(name)
                if series is not None:
                    self._set(series.metric, tuple(series.labels[n] for n in series.metric.labels), value)

    def close(self) -> None:
        """Stop the server. Idempotent."""
        if not self._closed:
            self._closed = True
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All families, for the registry."""
        with self._lock:
            snapshot = {name: dict(values) for name, values in self._values.items()}
            left_out = self._left_out
        info = GaugeMetricFamily("asyncrl_job_info", "The job that runs here.", labels=list(self._job))
        info.add_metric(list(self._job.values()), 1)
        yield info
        lost = CounterMetricFamily("asyncrl_metrics_left_out_series", "Values beyond the bound on series.")
        lost.add_metric([], left_out)
        yield lost
        for name, values in snapshot.items():
            metric = self._metrics[name]
            kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
            family = kind(name, _help(metric), labels=list(metric.labels))
            for labels, value in values.items():
                family.add_metric(list(labels), value)
            yield family

    def _set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        values = self._values[metric.prometheus]
        if labels not in values and len(values) >= MAX_SERIES:
            self._left_out += 1
            return
        self._metrics.setdefault(metric.prometheus, metric)
        values[labels] = values.get(labels, 0.0) + value if metric.kind == "count" else value


def _help(metric: Metric) -> str:
    """Rows that share a name say the same up to the label's value."""
    return metric.help.split(":")[0].rstrip(".") + "."
