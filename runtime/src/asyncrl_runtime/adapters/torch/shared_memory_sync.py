"""Weight sync on one machine: the trainer writes a buffer in shared memory, shards copy it in."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from asyncrl_runtime.adapters.torch.entry import Bound
from asyncrl_runtime.adapters.workers import WorkerProcess
from asyncrl_runtime.core.errors import RefitAborted, WorkerDied
from asyncrl_runtime.ports.weight_sync import TransferReport

_PREFIX = "asyncrl-weights-"


class Member(Protocol):
    """A generator whose process can attach to weight buffers."""

    index: int
    name: str

    @property
    def worker(self) -> WorkerProcess:
        """Its process."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        ...


class SharedMemorySync:
    """Implements `WeightSync` between a trainer's process and shards of the same machine.

    The buffers' files are unlinked as soon as everyone has mapped them, so nothing stays behind whatever
    ends the processes. When a member's process is new, buffers are made and mapped again.
    """

    def __init__(
        self,
        trainer: Callable[[], WorkerProcess],
        members: Callable[[], Sequence[Member]],
        *,
        bound: Bound = Bound(),  # noqa: B008 - immutable
    ) -> None:
        """`members` are asked for at each sync; those whose process has ended are left out.

        `bound` limits each of the two halves of a transfer: publishing, and loading in the shards.
        """
        self.is_stale = True
        self._trainer = trainer
        self._members = members
        self._bound = bound
        self._attached: frozenset[tuple[str, int | None]] = frozenset()

    async def init_communicator(self) -> None:
        """Map the buffers in the trainer and every live member. Raises `RefitAborted` when one cannot."""
        await self._attach(self._alive(), version=-1)

    async def sync_weights(
        self, version: int, *, kv_scales: Mapping[str, float] | None = None
    ) -> TransferReport:
        """Publish, then load in every live member between two tokens; see `WeightSync`."""
        if kv_scales is not None:
            raise ValueError("the shared-memory transport carries no KV-cache scales; use another backend")
        loop = asyncio.get_running_loop()
        began = loop.time()
        members = self._alive()
        if not self._processes(members) <= self._attached:
            members = await self._attach(members, version)
        try:
            buffer, size, checksum = await self._call(self._trainer(), "publish_weights")
        except Exception as problem:
            raise RefitAborted(version, f"the trainer could not publish them: {problem}") from problem
        landed = await self._all(members, version, "load_weights", version, buffer, checksum)
        self.is_stale = False
        return TransferReport(
            version=version,
            participants=tuple(member.index for member, _ in landed),
            bytes=size,
            seconds=loop.time() - began,
            pause_seconds={member.index: pause for member, pause in landed},
        )

    async def shutdown(self) -> None:
        """Forget the buffers; the processes' mappings end with them. Idempotent."""
        self._attached = frozenset()

    def _alive(self) -> list[Member]:
        return [member for member in self._members() if member.alive]

    def _processes(self, members: Sequence[Member]) -> frozenset[tuple[str, int | None]]:
        trainer = self._trainer()
        return frozenset({(trainer.name, trainer.pid), *((m.name, m.worker.pid) for m in members)})

    async def _attach(self, members: Sequence[Member], version: int) -> list[Member]:
        """Members that have mapped the buffers: those that did not end meanwhile."""
        directory = _shared_directory()
        _sweep(directory)
        stem = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        paths = tuple(str(directory / f"{stem}-{number}") for number in range(2))
        try:
            try:
                layout = await self._call(self._trainer(), "create_weight_buffers", paths)
            except Exception as problem:
                raise RefitAborted(version, f"the trainer could not make buffers: {problem}") from problem
            attached = await self._all(members, version, "attach_weights", paths, layout)
        finally:
            for path in paths:
                Path(path).unlink(missing_ok=True)
        members = [member for member, _ in attached]
        self._attached = self._processes(members)
        return members

    async def _all(
        self, members: Sequence[Member], version: int, method: str, *args: object
    ) -> list[tuple[Member, Any]]:
        """Answers by member, without those whose process ended: their requests fail by themselves.

        Raises RefitAborted when another member failed, or none is left.
        """
        calls = (self._call(member.worker, method, *args) for member in members)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        pairs = list(zip(members, answers, strict=True))
        failed = [(member, answer) for member, answer in pairs if isinstance(answer, BaseException)]
        others = [answer for _, answer in failed if not isinstance(answer, WorkerDied)]
        if others or len(failed) == len(pairs):
            problem = "; ".join(
                str(answer) if str(answer).startswith(member.name) else f"{member.name}: {answer}"
                for member, answer in failed
            )
            raise RefitAborted(version, problem or "no shard is left") from next(iter(others), None)
        return [(member, answer) for member, answer in pairs if not isinstance(answer, BaseException)]

    async def _call(self, worker: WorkerProcess, method: str, *args: object) -> Any:
        return await worker.call(
            method, *args, deadline_seconds=self._bound.seconds, setting=self._bound.setting
        )


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
