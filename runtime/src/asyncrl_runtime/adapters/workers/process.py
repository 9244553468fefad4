"""The caller's side of a worker process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from asyncrl_runtime.adapters.workers.caller import Caller
from asyncrl_runtime.adapters.workers.channel import Channel
from asyncrl_runtime.adapters.workers.forkserver import Fork, ForkServer, light_server
from asyncrl_runtime.adapters.workers.service import READY
from asyncrl_runtime.core.errors import DeadlinePassed, WorkerDied

_EXIT_CODE_SECONDS = 1.0
"""How long after a worker's socket closed its exit code is waited for."""


class WorkerProcess(Caller):
    """A service in a forked process of this machine."""

    def __init__(self, name: str) -> None:
        """Use `WorkerProcess.start`."""
        super().__init__(name)
        self._fork: Fork
        self._channel: Channel
        self._lost_task: asyncio.Task[None] | None = None
        self._abandoned = False

    @classmethod
    async def start(
        cls,
        factory: Callable[..., Any],
        *args: Any,
        name: str,
        start_seconds: float,
        setting: str = "",
        server: ForkServer | None = None,
    ) -> WorkerProcess:
        """Fork a worker, build `factory(*args)` there, and return when it is built.

        `factory` is a module-level callable. Its methods are what `call` calls: plain ones, async
        ones, or ones that return a `Deferred`.

        Raises:
            WorkerDied: it ended before it was ready.
            DeadlinePassed: it was not ready within `start_seconds`, which `setting` holds.
            Exception: what the factory raised (`RemoteError` for types of other packages).
        """
        worker = cls(name)
        ours, theirs = socket.socketpair()
        with theirs:
            worker._fork = (server or light_server()).fork(theirs)
        worker._channel = await Channel.over(
            ours, receive=worker._receive, lost=worker._lost, fault=worker._fault
        )
        ready = worker._open(factory, args)
        try:
            async with asyncio.timeout(start_seconds):
                worker.pid = await asyncio.shield(worker._fork.spawned)
                await ready
        except TimeoutError:
            worker._abandon()
            raise DeadlinePassed(f"the start of {name}", start_seconds, setting) from None
        except BaseException:
            worker._abandon()
            raise
        return worker

    @property
    def alive(self) -> bool:
        """False once it is known to have ended."""
        return not (self.ended.is_set() or self._lost_task or self._fork.exited.done())

    def kill(self) -> None:
        """Send SIGKILL; pending calls fail as soon as it is gone."""
        if self.pid is not None and not self._fork.exited.done():
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def _post(self, message: tuple) -> None:
        self._channel.post(message)

    def _has_closed(self, closing: asyncio.Future[Any]) -> None:
        """The process ends by itself."""

    def _lost(self) -> None:
        if not self._abandoned:
            self._lost_task = self._loop.create_task(self._settle())

    async def _settle(self) -> None:
        """Learn the exit code, then fail what is pending; a worker that closed its socket is killed."""
        await asyncio.wait([self._fork.exited], timeout=_EXIT_CODE_SECONDS)
        if not self._fork.exited.done():
            self.kill()
            await asyncio.wait([self._fork.exited], timeout=_EXIT_CODE_SECONDS)
        self.exit_code = self._fork.exited.result() if self._fork.exited.done() else None
        self._has_ended()

    @property
    def death(self) -> WorkerDied:
        """How it ended, once it has."""
        detail = ""
        if self.exit_code is not None and self.exit_code < 0:
            detail = f"killed by {signal.Signals(-self.exit_code).name}"
        return WorkerDied(self.name, self.exit_code, detail)

    def _abandon(self) -> None:
        """Give up on a start; a worker that is not forked yet ends on its closed socket."""
        self._abandoned = True  # nobody asks any more how it ends
        self._pending.pop(READY, None)
        self.kill()
        self._channel.close()
