"""Weight sync between machines: the trainer broadcasts to all shards at once, over gloo or NCCL."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from asyncrl_runtime.adapters.torch.staged_sync import Failures, Member, Published, StagedSync, refusals
from asyncrl_runtime.core.errors import RefitAborted, TrainerFailure, WorkerDied

_NO_DEADLINE_SECONDS = 3600.0
"""Bound on a transfer of a job that sets none."""

_SETTLE_SECONDS = 10.0
"""How long the end of a process may take to be known once a broadcast has failed."""


class BroadcastSync(StagedSync):
    """Trainer and present shards form one group.

    A group is of no more use once a member has ended: what is left of it meets anew and the broadcast is
    repeated, so an ended shard costs the others one round. A silent shard cuts the transfer off for all.
    """

    async def _link(self, receivers: Sequence[Member]) -> Failures:
        failed = await self._stage(receivers)
        return failed if refusals(failed) else await self._meet(receivers, failed, version=-1)

    async def _deliver(self, published: Published, receivers: Sequence[Member]) -> Failures:
        failed: Failures = {}
        while present := [member for member in receivers if member.index not in failed]:
            calls = [self._call(self._trainer(), "send_weights")]
            calls += [self._ask(member, "receive_weights") for member in present]
            ended = await self._together(calls, present, published.version)
            if not ended:
                break
            failed = await self._meet(receivers, failed | ended, version=published.version)
        return failed

    async def _meet(self, receivers: Sequence[Member], failed: Failures, *, version: int) -> Failures:
        """Form a group of all that are left; gives everybody who is not in it."""
        while present := [member for member in receivers if member.index not in failed]:
            address = await self._ask_trainer("host_weights", version=version)
            size, seconds = len(present) + 1, self._bound.seconds or _NO_DEADLINE_SECONDS
            calls = [self._call(self._trainer(), "join_weights", address, size, seconds)]
            calls += [
                self._ask(member, "join_weights", address, rank, size, seconds)
                for rank, member in enumerate(present, 1)
            ]
            ended = await self._together(calls, present, version)
            if not ended:
                break
            failed = failed | ended
        return failed

    async def _together(
        self, calls: list[Coroutine[Any, Any, Any]], present: Sequence[Member], version: int
    ) -> Failures:
        """Await the trainer's call and the receivers', in this order; gives receivers that ended.

        Raises:
            TrainerFailure: the trainer ended.
            RefitAborted: it failed though nobody is known to have ended.
        """
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if waiting and not any(isinstance(task.exception(), WorkerDied) for task in done):
                await self._until_one_ended(tasks)
        finally:
            for task in tasks:
                task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(answers[0], WorkerDied):
            raise TrainerFailure("a weight transfer", str(answers[0])) from answers[0]
        receivers = zip(present, answers[1:], strict=True)
        ended: Failures = {
            member.index: answer for member, answer in receivers if isinstance(answer, WorkerDied)
        }
        problems = [answer for answer in answers if isinstance(answer, Exception)]
        if problems and not ended:
            raise RefitAborted(version, str(problems[0])) from problems[0]
        return ended

    async def _until_one_ended(self, tasks: list[asyncio.Task[Any]]) -> None:
        """A broken connection is known before the end of the process behind it; the others may wait on."""
        end = asyncio.get_running_loop().time() + _SETTLE_SECONDS
        while waiting := [task for task in tasks if not task.done()]:
            left = end - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done or any(isinstance(task.exception(), WorkerDied) for task in done):
                return
