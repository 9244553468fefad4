"""A run folder that one live process has to itself."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path

from asyncrl_runtime.core.errors import RunError


@dataclass(eq=False)
class FolderInUse(RunError):
    """Another live process runs in the folder."""

    path: str
    pid: str

    def __str__(self) -> str:
        return (
            f"{self.path} is in use by process {self.pid}: "
            "wait for it, stop it, or choose another folder with --output"
        )


@dataclass(eq=False)
class FolderUnusable(RunError):
    """A run folder cannot be written to."""

    path: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.path} cannot be used: {self.problem}; repair it, or choose another folder with --output"
        )


@dataclass(slots=True)
class FolderLock:
    """A lock that ends with the process that holds it, however that ends (CLI-40)."""

    path: Path
    _file: TextIOWrapper | None = field(default=None, init=False)

    def acquire(self) -> None:
        """Take the lock. Raises FolderInUse, FolderUnusable."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a+", encoding="utf-8")
        except OSError as error:
            raise FolderUnusable(str(self.path.parent), str(error)) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise FolderInUse(str(self.path.parent), pid) from None
        except OSError as error:
            file.close()
            raise FolderUnusable(str(self.path.parent), str(error)) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give it back. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
