"""`events.jsonl` and `samples.jsonl`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from asyncrl_runtime.adapters.sinks.lines import LineFile, Row, encode, read_rows

MAX_EVENT_BYTES = 64 * 2**20
"""Size at which the older half of the events goes."""

DROPPED = "earlier_events_dropped"


class EventLog:
    """What happened to prompts, shards, refits, checkpoints: one object each, `time`, `kind` and facts."""

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_EVENT_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = LineFile(path)
        self._max_bytes = max_bytes
        self._clock = clock
        self.recent: deque[Row] = deque(maxlen=50)
        """The last events, newest last."""

    def write(self, kind: str, facts: Mapping[str, object]) -> None:
        """Append an event."""
        row = {"time": round(self._clock(), 3), "kind": kind, **facts}
        self.recent.append(row)
        self._file.append(row)
        if self._file.num_bytes > self._max_bytes:
            self._forget_older_half()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def _forget_older_half(self) -> None:
        rows: deque[Row] = deque(read_rows(self._file.path))
        count = size = 0
        kept: deque[Row] = deque()
        while rows and size < self._max_bytes // 2:
            row = rows.pop()
            kept.appendleft(row)
            size += len(encode(row))
        for row in rows:
            count += int(str(row["count"])) if row["kind"] == DROPPED else 1
        time_of_first = kept[0]["time"] if kept else round(self._clock(), 3)
        self._file.rewrite([{"time": time_of_first, "kind": DROPPED, "count": count}, *kept])


class SampleLog:
    """Samples that were trained on, as JSON lines."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)

    def forget_after(self, step: int) -> None:
        """Drop samples of later steps, which a resume rolled back: each step stands once."""
        rows = list(read_rows(self._file.path))
        kept: list[Row] = [row for row in rows if int(str(row["step"])) <= step]
        if len(kept) < len(rows):
            self._file.rewrite(kept)

    def dump(self, step: int, samples: Iterable[Row], *, max_bytes: int) -> int:
        """Write the samples of a step, in order, as long as they fit; returns how many were left out.

        A last line `{"step", "left_out"}` says so in the file.
        """
        written = left_out = 0
        for sample in samples:
            row = {"step": step, **sample}
            if left_out or written + len(encode(row)) > max_bytes:
                left_out += 1
                continue
            written += self._file.append(row)
        if left_out:
            self._file.append({"step": step, "left_out": left_out})
        return left_out

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()
