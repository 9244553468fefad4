"""Weight sync in two stages: the bytes reach a buffer beside each shard, then shards copy them in."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

Failures = dict[int, BaseException]
"""By shard."""


class Member(Protocol):
    """A generator whose process has a buffer for weights."""

    index: int
    name: str

    @property
    def worker(self) -> Worker:
        """Its process. Raises `WorkerDied` when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """One version as the trainer has staged it."""

    version: int
    buffer: int
    bytes: int
    checksum: str


class StagedSync(ABC):
    """Implements `WeightSync`, but for how bytes travel.

    Running requests wait only for the copy out of the buffer. Each receiver copies on its own and
    acknowledges a digest, so a receiver that ends, freezes or reads something else never makes another
    one's weights doubtful, and bytes that did not arrive whole touch no weights.
    """

    def __init__(
        self,
        trainer: Callable[[], Worker],
        members: Callable[[], Sequence[Member]],
        *,
        bound: Bound = Bound(),  # noqa: B008 - immutable
    ) -> None:
        """`members` are all shards, present or not. `bound` limits each stage of a transfer."""
        self.is_stale = True
        self._trainer = trainer
        self._members = members
        self._bound = bound
        self._absent: frozenset[int] = frozenset()
        self._receivers: list[Member] = []
        self._linked: dict[int, tuple[object, ...]] = {}
        """Process of each receiver that has a buffer, with the trainer's."""

        self._unlinked: Failures = {}
        """Why the other receivers have none."""

        self._builds = 0

    @abstractmethod
    async def _link(self, receivers: Sequence[Member]) -> Failures:
        """Give trainer and receivers their buffers; who has none, and why. Raises `RefitAborted`."""

    @abstractmethod
    async def _deliver(self, published: Published, receivers: Sequence[Member]) -> Failures:
        """Bring the bytes to the receivers' buffers; who has not all of them. Raises `RefitAborted`."""

    async def init_communicator(self) -> None:
        """Link the trainer and every shard. Raises `RefitAborted` when one cannot be."""
        await self._build(frozenset())

    async def reconcile(self, absent: frozenset[int], *, force: bool = False) -> Reconciled:
        """See `WeightSync`. A shard that ends or freezes meanwhile fails the next transfer."""
        if not force and absent == self._absent and not self._unlinked and self._is_current(absent):
            return "unchanged"
        await self._build(absent)
        return "rebuilt"

    async def sync_weights(
        self, version: int, *, kv_scales: Mapping[str, float] | None = None
    ) -> TransferReport:
        """Publish, deliver, then load in every receiver between two tokens; see `WeightSync`."""
        if kv_scales is not None:
            raise ValueError("this transport carries no KV-cache scales; use another backend")
        loop = asyncio.get_running_loop()
        began, build = loop.time(), self._builds
        published = Published(version, *await self._ask_trainer("publish_weights", version=version))
        self._check_build(build, version)
        failed = dict(self._unlinked)
        failed |= await self._deliver(published, self._without(failed))
        self._check_build(build, version)
        pauses, unloaded = await self._all(
            self._without(failed), "load_weights", version, published.buffer, published.checksum
        )
        failed |= unloaded
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
            bytes=published.bytes,
            seconds=loop.time() - began,
            pause_seconds=pauses,
        )

    def stand_down(self) -> None:  # noqa: B027 - no transport needs it
        """Nothing to do: whoever waits for a process learns of its end at once."""

    async def shutdown(self) -> None:
        """Forget the buffers; they end with their processes. Idempotent."""
        self._receivers, self._linked = [], {}

    # ── membership ──────────────────────────────────────────────────────────────────────────────────

    def _without(self, failed: Failures) -> list[Member]:
        return [member for member in self._receivers if member.index not in failed]

    def _check_build(self, build: int, version: int) -> None:
        if build != self._builds:
            raise RefitAborted(version, "its buffers were replaced while it was under way")

    def _is_current(self, absent: frozenset[int]) -> bool:
        present = [member for member in self._members() if member.index not in absent]
        return self._linked == self._processes(present)

    def _processes(self, members: Sequence[Member]) -> dict[int, tuple[object, ...]]:
        trainer = self._trainer()
        return {member.index: (trainer, _worker_of(member)) for member in members}

    async def _build(self, absent: frozenset[int]) -> None:
        """Link trainer and receivers; those that ended or are silent fail the next transfer alone."""
        self._builds += 1
        receivers = [member for member in self._members() if member.index not in absent]
        processes = self._processes(receivers)
        failed = await self._link(receivers)
        if others := refusals(failed):
            raise RefitAborted(-1, self._told(others)) from next(iter(others.values()))
        self._absent, self._receivers, self._unlinked = absent, receivers, failed
        self._linked = {index: found for index, found in processes.items() if index not in failed}

    async def _stage(self, receivers: Sequence[Member]) -> Failures:
        """Have trainer and receivers make buffers of their own; who has none, and why."""
        layout = await self._ask_trainer("stage_weights", version=-1)
        _, failed = await self._all(receivers, "stage_weights", layout)
        return failed

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────

    async def _all(
        self, members: Sequence[Member], method: str, *args: object
    ) -> tuple[dict[int, Any], Failures]:
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


def refusals(failed: Failures) -> Failures:
    """Those that answered, with a reason that will not go away."""
    return {
        index: error for index, error in failed.items() if not isinstance(error, WorkerDied | DeadlinePassed)
    }
