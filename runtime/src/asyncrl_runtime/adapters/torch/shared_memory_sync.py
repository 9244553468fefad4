"""Weight sync on one machine: the trainer writes a buffer in shared memory, shards copy it in."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

from asyncrl_runtime.adapters.torch.staged_sync import Failures, Member, Published, StagedSync

_PREFIX = "asyncrl-weights-"


class SharedMemorySync(StagedSync):
    """The trainer's buffers are the shards' own: nothing travels.

    Their files are unlinked as soon as everyone has mapped them, so nothing stays behind whatever ends
    the processes.
    """

    async def _link(self, receivers: Sequence[Member]) -> Failures:
        directory = _shared_directory()
        _sweep(directory)
        stem = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        paths = tuple(str(directory / f"{stem}-{number}") for number in range(2))
        try:
            layout = await self._ask_trainer("create_weight_buffers", paths, version=-1)
            _, failed = await self._all(receivers, "attach_weights", paths, layout)
        finally:
            for path in paths:
                Path(path).unlink(missing_ok=True)
        return failed

    async def _deliver(self, published: Published, receivers: Sequence[Member]) -> Failures:
        return {}


def _shared_directory() -> Path:
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def _sweep(directory: Path) -> None:
    """Remove files that a killed process left between making and unlinking them."""
    for path in directory.glob(f"{_PREFIX}*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not _runs(int(owner)):
            path.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
