"""JSON-lines files that hold whole lines at every moment."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Row = Mapping[str, object]


def encode(row: Row) -> bytes:
    """One line. Numbers that JSON lacks (NaN, infinities) become null; foreign objects their text."""
    return (json.dumps(_plain(row), ensure_ascii=False, separators=(",", ":"), default=str) + "\n").encode()


def read_rows(path: Path) -> Iterator[dict[str, object]]:
    """Rows of a file, if it exists; a torn last line, left by a killed writer, is skipped."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and line.strip():
                yield json.loads(line)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file so that readers see the former or the new content, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


class LineFile:
    """Appends lines, each with one system call. A torn end of a killed writer is cut when it is opened."""

    def __init__(self, path: Path, *, keep: Callable[[dict[str, object]], bool] | None = None) -> None:
        """`keep` chooses the rows of an earlier writer that stay."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _mend(path, keep)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.num_bytes = os.fstat(self._descriptor).st_size

    def append(self, row: Row) -> int:
        """Write a row; returns its bytes."""
        line = encode(row)
        view = memoryview(line)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self.num_bytes += len(line)
        return len(line)

    def rewrite(self, rows: list[Row]) -> None:
        """Replace the content by these rows."""
        write_whole(self.path, b"".join(map(encode, rows)))
        os.close(self._descriptor)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self.num_bytes = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _mend(path: Path, keep: Callable[[dict[str, object]], bool] | None) -> None:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and file.seek(size - 1) >= 0 and file.read(1) != b"\n"
    if keep is None and not torn:
        return
    rows = list(read_rows(path))
    kept = rows if keep is None else [row for row in rows if keep(row)]
    if torn or len(kept) < len(rows):
        write_whole(path, b"".join(map(encode, kept)))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if hasattr(value, "item") and not isinstance(value, str | bytes):  # a scalar of numpy
        return _plain(value.item())
    return value
