"""TensorBoard event files, written without TensorFlow or torch."""

from __future__ import annotations

from pathlib import Path

from asyncrl_runtime.core.metric_names import MetricAxis
from asyncrl_runtime.ports.metrics import MetricRecord


class TensorboardSink:
    """Scalars. Each axis is a TensorBoard run of its own: RL steps in the folder, the others below it."""

    name = "tensorboard"

    def __init__(self, folder: Path, *, resumed_step: int | None = None) -> None:
        """`resumed_step`: steps of the checkpoint that the run goes on from; later ones are hidden."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = folder
        self._resumed_step = resumed_step
        self._make = EventFileWriter
        self._writers: dict[MetricAxis, EventFileWriter] = {}

    def log(self, record: MetricRecord) -> None:
        """Queue the record; a thread of the writer brings it to disk within two seconds."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in record.values.items()]
        summary = Summary(value=values)
        writer = self._writer(record.axis)
        if record.axis == "step" and self._resumed_step is not None:
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=record.time, step=self._resumed_step + 1, session_log=start))
            self._resumed_step = None
        writer.add_event(Event(wall_time=record.time, step=record.index, summary=summary))

    def close(self) -> None:
        """Write what is queued. Idempotent."""
        while self._writers:
            self._writers.popitem()[1].close()

    def _writer(self, axis: MetricAxis):  # noqa: ANN202  the library is imported on use
        if axis not in self._writers:
            folder = self._folder if axis == "step" else self._folder / f"{axis}s"
            self._writers[axis] = self._make(str(folder), flush_secs=2)
        return self._writers[axis]
