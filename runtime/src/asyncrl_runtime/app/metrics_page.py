"""`docs/metrics.md`: the table of metrics as a page.

python -m asyncrl_runtime.app.metrics_page > docs/metrics.md
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from asyncrl_runtime.core import metric_table as table
from asyncrl_runtime.core.metric_names import Metric

SECTIONS: tuple[tuple[str, Sequence[Metric]], ...] = (
    ("Learning", table.LEARNING),
    ("Mismatch between generation and training", table.MISMATCH),
    ("Batch", table.BATCH),
    ("Critic", table.CRITIC),
    ("Validation", table.VALIDATION),
    ("Timing", table.TIMING),
    ("Rollouts", table.ROLLOUT),
    ("Fleet", table.FLEET),
    ("Data plane", table.DATA_PLANE),
    ("Throughput", table.THROUGHPUT),
    ("Checkpoints", table.CHECKPOINT),
    ("Run", table.RUN),
)

_HEAD = """\
# Metrics

Generated from `asyncrl_runtime.core.metric_table` by `make generate`; a test keeps it current.

Every number that a run logs is in this table; a name outside it fails the tests. `metrics.jsonl` holds one
object per RL step with `step`, `time` and the names of the first column. The Prometheus endpoint
(`spec.observability.metricsPort`) shows the same numbers under the names of the last column.

`<label>` in a name stands for one part of it, and becomes a label of the Prometheus name.

Axis: what the index counts. `step` is an RL step, `tick` a tick of the watchdog, `sample` a telemetry sample.

Kind: `gauge` is a value, `total` is cumulative over the process, `count` is of one record; Prometheus adds
those up. Timings (`timing/…`) are wall time and overlap where work overlaps.
"""


def metrics_page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(title, metrics) for title, metrics in SECTIONS)])


def _section(title: str, metrics: Sequence[Metric]) -> str:
    rows = [
        f"## {title}",
        "",
        "| name | axis | kind | unit | meaning | Prometheus |",
        "|---|---|---|---|---|---|",
        *(_row(metric) for metric in metrics),
    ]
    return "\n".join(rows) + "\n"


def _row(metric: Metric) -> str:
    labels = [f'{name}="{value}"' for name, value in metric.fixed_labels.items()]
    labels += [name for name in metric.labels if name not in metric.fixed_labels]
    shown = f"{metric.prometheus}{{{', '.join(labels)}}}" if labels else metric.prometheus
    cells = (f"`{metric.name}`", metric.axis, metric.kind, metric.unit, metric.help, f"`{shown}`")
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
