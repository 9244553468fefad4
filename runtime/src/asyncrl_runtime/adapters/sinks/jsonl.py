"""`metrics.jsonl`: one object per RL step."""

from __future__ import annotations

from pathlib import Path

from asyncrl_runtime.adapters.sinks.lines import LineFile
from asyncrl_runtime.core.metric_names import MetricAxis
from asyncrl_runtime.ports.metrics import MetricRecord


class JsonlSink:
    """One line per step: `step`, `time` and its numbers, with the latest numbers of the other two axes.

    Those come with their own indices, `tick` and `sample`. After a resume, lines of steps that were rolled
    back go, so that each step stands once.
    """

    name = "metrics.jsonl"

    def __init__(self, path: Path, *, resumed_step: int | None = None) -> None:
        """`resumed_step`: completed steps of the checkpoint that the run goes on from; 0 for none."""
        done = resumed_step
        keep = None if done is None else (lambda row: int(str(row["step"])) <= done)
        self._file = LineFile(path, keep=keep)
        self._latest: dict[MetricAxis, dict[str, float]] = {"tick": {}, "sample": {}}

    def log(self, record: MetricRecord) -> None:
        """Write a step, or keep the values of another axis for the next step."""
        if record.axis != "step":
            self._latest[record.axis].update(record.values)
            self._latest[record.axis][record.axis] = record.index
            return
        row: dict[str, object] = {"step": record.index, "time": round(record.time, 3), **record.values}
        for values in self._latest.values():
            for name, value in values.items():
                row.setdefault(name, value)
        self._file.append(row)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()
