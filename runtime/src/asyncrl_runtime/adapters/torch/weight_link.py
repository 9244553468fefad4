"""One process's end of the group in which weights are broadcast."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch
from torch import Tensor

from asyncrl_runtime.adapters.torch.collectives import Group, Meeting

Result = TypeVar("Result")

_TRAINER = 0
_PART_BYTES = 64 << 20
"""Broadcast at once. Bounds what a transport copies beside the buffer."""


class WeightLink:
    """Sends or receives whole buffers, off the event loop: the process answers other calls meanwhile.

    A transfer that was given up may still wait, in a thread of its own, for its group's deadline. Joining
    anew leaves it behind, with the group and the buffer that it has.
    """

    def __init__(self) -> None:
        self._meeting: Meeting | None = None
        self._group: Group | None = None

    def host(self) -> str:
        """Be the place where a new group meets; returns its address."""
        self._meeting = Meeting()
        return self._meeting.address

    async def join(self, address: str, rank: int, size: int, device: torch.device, seconds: float) -> None:
        """Meet the group's other processes; the trainer has rank 0.

        Raises:
            RuntimeError: they did not all come within `seconds`, which bounds every transfer too.
        """
        self._group = None
        self._group = await in_thread(
            lambda: Group(address, rank, size, device=device, start_seconds=seconds, call_seconds=seconds)
        )

    async def broadcast(self, buffer: Tensor) -> None:
        """Send the buffer as the trainer, fill it as a shard. Raises RuntimeError."""
        group = self._group
        if group is None:
            raise RuntimeError("this process has not joined a group for weights")
        step = _PART_BYTES // buffer.element_size()

        def work() -> None:
            for start in range(0, buffer.numel(), step):
                group.broadcast(buffer[start : start + step], _TRAINER)

        await in_thread(work)


async def in_thread(work: Callable[[], Result]) -> Result:
    """Run it in a thread that does not hold the process's end up. Cancelling stops the wait alone."""
    future: Future[Result] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as problem:  # noqa: BLE001 - raised where the result is awaited
            future.set_exception(problem)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return await asyncio.wrap_future(future)
