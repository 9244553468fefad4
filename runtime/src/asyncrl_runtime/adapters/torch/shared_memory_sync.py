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
from asyncrl_runtime.adapters.workers import Worker
from asyncrl_runtime.core.errors import (
    DeadlinePassed,
    RefitAborted,
    RefitIncomplete,
    TrainerFailure,
    WorkerDied,
)
from asyncrl_runtime.ports.weight_sync import Reconciled, TransferReport

_PREFIX = "asyncrl-weights-"


class Member(Protocol):
    """A generator whose process can attach to weight buffers."""

    index: int
    name: str

    @property
    def worker(self) -> Worker:
        """Its process. Raises `WorkerDied` when there is none."""
        ...


class SharedMemorySync:
    """Implements `WeightSync` between a trainer's process and shards of the same machine.

    Each receiver copies on its own and acknowledges a digest, so a receiver that ends, freezes or reads
    something else never makes another one's weights doubtful. The buffers' files are unlinked as soon as
    everyone has mapped them, so nothing stays behind whatever ends the processes.
    """

    def __init__(
        self,
        trainer: Callable[[], Worker],
        members: Callable[[], Sequence[Member]],
        *,
        bound: Bound = Bound(),  # noqa: B008 - immutable
    ) -> None:
        """`members` are all shards, present or not.

        `bound` limits each of the two halves of a transfer: publishing, and loading in the shards.
        """
        self.is_stale = True
        self._trainer = trainer
        self._members = members
        self._bound = bound
        self._absent: frozenset[int] = frozenset()
        self._receivers: list[Member] = []
        self._attached: dict[int, tuple[object, ...]] = {}
        """Process of each receiver that has mapped the buffers, with the trainer's."""

        self._unattached: dict[int, BaseException] = {}
        """Why the other receivers have not."""

        self._builds = 0

    async def init_communicator(self) -> None:
        """Map the buffers in the trainer and every shard. Raises `RefitAborted` when one cannot."""
        await self._build(frozenset())

    async def reconcile(self, absent: frozenset[int], *, force: bool = False) -> Reconciled:
        """See `WeightSync`. A shard that ends or freezes meanwhile fails the next transfer."""
        if not force and absent == self._absent and not self._unattached and self._is_current(absent):
            return "unchanged"
        await self._build(absent)
        return "rebuilt"

    async def sync_weights(
        self, version: int, *, kv_scales: Mapping[str, float] | None = None
    ) -> TransferReport:
        """Publish, then load in every receiver between two tokens; see `WeightSync`."""
        if kv_scales is not None:
            raise ValueError("the shared-memory transport carries no KV-cache scales; use another backend")
        loop = asyncio.get_running_loop()
        began, build = loop.time(), self._builds
        buffer, size, checksum = await self._ask_trainer("publish_weights", version=version)
        if build != self._builds:
            raise RefitAborted(version, "its buffers were replaced while it was under way")
        receivers = [member for member in self._receivers if member.index not in self._unattached]
        pauses, failed = await self._all(receivers, "load_weights", version, buffer, checksum)
        failed |= self._unattached
        if failed or not pauses:
            raise RefitIncomplete(
                version,
                self._told(failed) or "no shard is left",
                acknowledged=tuple(pauses),
                died=tuple(index for index, error in failed.items() if isinstance(error, WorkerDied)),
            ) from next(iter(failed.values()), None)
        self.is_stale = False
        return TransferReport(
            version=version,
            participants=tuple(pauses),
            bytes=size,
            seconds=loop.time() - began,
            pause_seconds=pauses,
        )

    def stand_down(self) -> None:
        """Nothing to do: receivers are asked one by one, and nobody waits for an ended one."""

    async def shutdown(self) -> None:
        """Forget the buffers; the processes' mappings end with them. Idempotent."""
        self._receivers, self._attached = [], {}

    # ── membership ──────────────────────────────────────────────────────────────────────────────────

    def _is_current(self, absent: frozenset[int]) -> bool:
        present = [member for member in self._members() if member.index not in absent]
        return self._attached == self._processes(present)

    def _processes(self, members: Sequence[Member]) -> dict[int, tuple[object, ...]]:
        trainer = self._trainer()
        return {member.index: (trainer, _worker_of(member)) for member in members}

    async def _build(self, absent: frozenset[int]) -> None:
        """Make buffers, and map them in every receiver that answers."""
        self._builds += 1
        directory = _shared_directory()
        _sweep(directory)
        stem = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        paths = tuple(str(directory / f"{stem}-{number}") for number in range(2))
        receivers = [member for member in self._members() if member.index not in absent]
        processes = self._processes(receivers)
        try:
            layout = await self._ask_trainer("create_weight_buffers", paths, version=-1)
            attached, failed = await self._all(receivers, "attach_weights", paths, layout)
        finally:
            for path in paths:
                Path(path).unlink(missing_ok=True)
        others = {
            i: error for i, error in failed.items() if not isinstance(error, WorkerDied | DeadlinePassed)
        }
        if others:
            raise RefitAborted(-1, self._told(others)) from next(iter(others.values()))
        self._absent, self._receivers, self._unattached = absent, receivers, failed
        self._attached = {index: processes[index] for index in attached}

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────

    async def _all(
        self, members: Sequence[Member], method: str, *args: object
    ) -> tuple[dict[int, Any], dict[int, BaseException]]:
        """Answers and failures by shard."""
        calls = (self._ask(member, method, *args) for member in members)
        answers = dict(
            zip(
                (member.index for member in members),
                await asyncio.gather(*calls, return_exceptions=True),
                strict=True,
            )
        )
        failed = {index: answer for index, answer in answers.items() if isinstance(answer, BaseException)}
        return {index: answer for index, answer in answers.items() if index not in failed}, failed

    async def _ask(self, member: Member, method: str, *args: object) -> Any:
        return await self._call(member.worker, method, *args)

    async def _ask_trainer(self, method: str, *args: object, version: int) -> Any:
        """A trainer that ended or failed ends the run; a silent one may have cut the transfer off."""
        try:
            return await self._call(self._trainer(), method, *args)
        except DeadlinePassed as silence:
            raise RefitAborted(version, str(silence)) from silence
        except Exception as problem:
            raise TrainerFailure(method, str(problem)) from problem

    async def _call(self, worker: Worker, method: str, *args: object) -> Any:
        return await worker.call(
            method, *args, deadline_seconds=self._bound.seconds, setting=self._bound.setting
        )

    def _told(self, failed: Mapping[int, BaseException]) -> str:
        names = {member.index: member.name for member in self._members()}
        return "; ".join(
            str(error) if str(error).startswith(names[index]) else f"{names[index]}: {error}"
            for index, error in failed.items()
        )


def _worker_of(member: Member) -> Worker | None:
    try:
        return member.worker
    except WorkerDied:
        return None


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
