"""Names of metrics: what each counts, its axis and unit, and how Prometheus shows it (SC-12, CLI-50)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

MetricAxis = Literal["step", "tick", "sample"]
"""RL step, watchdog tick, telemetry sample (SC-12.1)."""

MetricKind = Literal["gauge", "total", "count"]
"""`gauge`: a value. `total`: cumulative over the process. `count`: of one record; Prometheus adds up."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. `<label>` in a name stands for anything without a slash."""

    name: str
    axis: MetricAxis
    kind: MetricKind
    unit: str
    help: str
    prometheus: str = ""
    """Name for Prometheus; derived from name, unit and kind unless given."""

    fixed_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels besides those of the name, where several rows share one Prometheus name."""

    def __post_init__(self) -> None:
        if not self.prometheus:
            object.__setattr__(self, "prometheus", _prometheus_name(self.name, self.unit, self.kind))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its Prometheus labels, in order."""
        return (*self.fixed_labels, *re.findall(r"<(\w+)>", self.name))


@dataclass(frozen=True, slots=True)
class Series:
    """A metric with the values of its labels."""

    metric: Metric
    labels: Mapping[str, str]


@dataclass(eq=False)
class UnknownMetric(KeyError):
    """A name that the table does not hold: a mistake of the code that logs it."""

    name: str
    nearest: str

    def __str__(self) -> str:
        return f"metric {self.name!r} is not in the table of metrics; the nearest is {self.nearest!r}"


def check_name(name: str, axis: MetricAxis | None = None) -> Series:
    """Find a name in the table. Raises `UnknownMetric`, and `ValueError` for a name of another axis."""
    series = find(name)
    if series is None:
        near = difflib.get_close_matches(name, _exact(), n=1, cutoff=0.0)
        raise UnknownMetric(name, near[0])
    if axis is not None and series.metric.axis != axis:
        raise ValueError(f"metric {name!r} belongs to axis {series.metric.axis}, and was logged on {axis}")
    return series


@cache
def find(name: str) -> Series | None:
    """The series of a name, or None."""
    metric = _exact().get(name)
    if metric is not None:
        return Series(metric, dict(metric.fixed_labels))
    for pattern, candidate in _patterns():
        match = pattern.fullmatch(name)
        if match is not None:
            return Series(candidate, {**candidate.fixed_labels, **match.groupdict()})
    return None


@cache
def _exact() -> dict[str, Metric]:
    from asyncrl_runtime.core.metric_table import METRICS

    return {metric.name: metric for metric in METRICS}


@cache
def _patterns() -> list[tuple[re.Pattern[str], Metric]]:
    return [
        (re.compile(re.sub(r"<(\w+)>", r"(?P<\1>[^/]+)", metric.name)), metric)
        for metric in _exact().values()
        if "<" in metric.name
    ]


_SHORT = frozenset({"mb", "ms", "s", "toks", "seqs", "ops"})
"""Abbreviated units, which the spelled-out unit replaces."""


def _prometheus_name(name: str, unit: str, kind: MetricKind) -> str:
    name = name.replace("_total/<reason>", "_by_reason").replace("/<op>", "_by_op")
    name = re.sub(r"^val/", "validation/", name)
    words = [part for part in re.sub(r"/?<\w+>", "", name).split("/") if part]
    if words[-1].endswith("_total"):
        words[-1] = words[-1].removesuffix("_total")
    last = [word.strip("_") for word in words[-1].split("_") if word]
    if last[-1] in _SHORT and len(words) + len(last) > 2:
        last.pop()
    words[-1:] = ["_".join(last)] if last else []
    if unit and unit not in last:
        words.append(unit)
    if kind != "gauge":
        words.append("total")
    return "asyncrl_" + "_".join(words)
