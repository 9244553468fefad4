"""Errors that no port foresaw, as a person is told them."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from asyncrl_runtime.adapters.folder_lock import FolderUnusable
from asyncrl_runtime.core.errors import RolloutFailure, RunError

_MEMORY = ("memory", "Memory")


@dataclass(eq=False)
class DiskFull(RunError):
    """Nothing more can be written."""

    problem: str
    folder: str

    def __str__(self) -> str:
        return (
            f"{self.problem}: free space, or take another folder than {self.folder} with --output; "
            "the same command goes on from the newest checkpoint"
        )


@dataclass(eq=False)
class WorkersUnusable(RunError):
    """The run could not begin, since an engine did not come up or failed in its first work."""

    problem: str

    def __str__(self) -> str:
        memory = any(word in self.problem for word in _MEMORY)
        out = (
            "ask for less with spec.model, spec.asyncRL.maxInflightPrompts or fewer shards"
            if memory
            else "repair the cause"
        )
        return f"{self.problem}; {out}, then run the job again: it goes on from its newest checkpoint"


@dataclass(eq=False)
class Unexpected(RunError):
    """An error that no part of the runtime foresaw."""

    kind: str
    problem: str
    folder: str

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.problem}; this is a defect of the runtime: "
            f"please report it with {self.folder}/run.log"
        )


def as_run_error(error: Exception, folder: Path) -> RunError:
    """The error as a person is told it."""
    if isinstance(error, RunError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return DiskFull(str(error), str(folder))
    if isinstance(error, OSError) and _is_below(error.filename, folder):
        path = error.filename2 if _is_below(error.filename2, folder) else error.filename
        return FolderUnusable(os.fsdecode(path), error.strerror or str(error))
    if isinstance(error, RolloutFailure):
        return WorkersUnusable(str(error))
    return Unexpected(type(error).__name__, str(error), str(folder))


def _is_below(path: object, folder: Path) -> bool:
    return isinstance(path, str | bytes) and Path(os.fsdecode(path)).is_relative_to(folder)


def failure_facts(error: Exception, step: int) -> dict[str, object]:
    """As summary and state hold it."""
    return {"type": type(error).__name__, "message": str(error), "step": step}
