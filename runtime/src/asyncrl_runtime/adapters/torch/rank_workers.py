"""The processes of one trainer, called as one. Without torch: the controller holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from asyncrl_runtime.adapters.torch.entry import START_SECONDS, Bound
from asyncrl_runtime.adapters.workers import Host, Worker
from asyncrl_runtime.core.errors import DeadlinePassed, TrainerFailure, WorkerDied

_AGREE_SECONDS = 10.0
"""How long the other ranks may take to fail alike once one has failed.

What one rank alone meets leaves the others waiting for it in a sum over ranks.
"""

_Calls = set[asyncio.Task[Any]]


class RankWorkers:
    """One worker for each host, each a rank. A call is made on all of them at once.

    A rank that ends, freezes or fails alone ends the others: their states differ from then on.
    """

    def __init__(self, hosts: Sequence[Host], *, start_bound: Bound, call_bound: Bound) -> None:
        self._hosts = tuple(hosts)
        self._start_bound = start_bound
        self._start_seconds = start_bound.seconds or START_SECONDS
        self._call_bound = call_bound
        self._workers: tuple[Worker, ...] = ()

    @property
    def first(self) -> Worker:
        """The process of rank 0. Raises `TrainerFailure` when there is none."""
        return self._all[0]

    def __len__(self) -> int:
        return len(self._hosts)

    async def start(self, factory: Callable[..., Any], *args: Any) -> None:
        """Build `factory(*args, rank, size)` in every process, and have the ranks meet.

        Raises what `Host.launch` raises; nothing is left running then.
        """
        size, bound = len(self._hosts), self._start_bound
        names = ["trainer"] if size == 1 else [f"trainer rank {rank}" for rank in range(size)]
        launches = [
            asyncio.ensure_future(
                host.launch(
                    factory,
                    *args,
                    rank,
                    size,
                    name=names[rank],
                    start_seconds=self._start_seconds,
                    setting=bound.setting,
                )
            )
            for rank, host in enumerate(self._hosts)
        ]
        try:
            self._workers = tuple(await asyncio.gather(*launches))
            if size > 1:
                await self._meet()
        except BaseException:
            for launch in launches:
                launch.cancel()
            ended = await asyncio.gather(*launches, return_exceptions=True)
            self._workers = ()
            for worker in ended:
                if not isinstance(worker, BaseException):
                    worker.kill()
            raise

    async def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method with each rank's own arguments; the answers by rank."""
        return await self._together(method, arguments, self._call_bound)

    async def close(self) -> None:
        """End the processes. Idempotent."""
        workers, self._workers = self._workers, ()
        await asyncio.gather(*(worker.close() for worker in workers))

    @property
    def _all(self) -> tuple[Worker, ...]:
        if not self._workers:
            raise TrainerFailure("start", "the trainer was not started")
        return self._workers

    async def _meet(self) -> None:
        bound = self._start_bound
        address = await self.first.call("host_ranks", deadline_seconds=bound.seconds, setting=bound.setting)
        arguments = [(address, self._start_seconds, self._call_bound.seconds)] * len(self._hosts)
        await self._together("join_ranks", arguments, bound)

    async def _together(self, method: str, arguments: Sequence[tuple[Any, ...]], bound: Bound) -> list[Any]:
        workers = self._all
        calls = [
            asyncio.create_task(
                worker.call(method, *args, deadline_seconds=bound.seconds, setting=bound.setting)
            )
            for worker, args in zip(workers, arguments, strict=True)
        ]
        try:
            done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if waiting:
                await self._fail_alike(done, waiting)
        except BaseException:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            raise
        return [call.result() for call in calls]

    async def _fail_alike(self, done: _Calls, waiting: _Calls) -> None:
        """Wait for the others, unless there is nothing to wait for; raises what the first one met."""
        problem = next(error for call in done if (error := call.exception()) is not None)
        if not isinstance(problem, WorkerDied | DeadlinePassed):
            _, waiting = await asyncio.wait(waiting, timeout=_AGREE_SECONDS)
        if waiting:
            for worker in self._workers:
                worker.kill()
        raise problem
