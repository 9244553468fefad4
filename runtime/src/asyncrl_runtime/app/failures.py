"""Errors that no port foresaw, as a person is told them."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from asyncrl_runtime.core.errors import RunError


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
    return Unexpected(type(error).__name__, str(error), str(folder))


def failure_facts(error: Exception, step: int) -> dict[str, object]:
    """As summary and state hold it."""
    return {"type": type(error).__name__, "message": str(error), "step": step}
