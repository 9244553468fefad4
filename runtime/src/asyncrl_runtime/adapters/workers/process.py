"""The caller's side of a worker process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from asyncrl_runtime.adapters.workers.channel import Channel
from asyncrl_runtime.adapters.workers.errors import unpacked
from asyncrl_runtime.adapters.workers.forkserver import Fork, ForkServer, light_server
from asyncrl_runtime.adapters.workers.service import CLOSE, READY
from asyncrl_runtime.core.errors import DeadlinePassed, WorkerDied

_EXIT_CODE_SECONDS = 1.0
"""How long after a worker's socket closed its exit code is waited for."""


class WorkerProcess:
    """A service in its own process. Belongs to the event loop that started it."""

    def __init__(self, name: str) -> None:
        """Use `WorkerProcess.start`."""
        self.name = name
        self.pid: int | None = None
        self.exit_code: int | None = None
        """Negative for a signal; None while it runs, or when nobody saw it."""

        self.ended = asyncio.Event()
        """Set once the process is gone and every pending call has failed."""

        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._next_id = READY
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
        ready = worker._pending[READY] = worker._loop.create_future()
        worker._channel.post((READY, None, (name, factory, args)))
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

    async def call(
        self, method: str, *args: Any, deadline_seconds: float | None = None, setting: str = ""
    ) -> Any:
        """Call a method of the service. Cancelling the call cancels it there too.

        Raises:
            WorkerDied: the process ended.
            DeadlinePassed: no answer within `deadline_seconds`, which `setting` holds.
            Exception: what the method raised (`RemoteError` for types of other packages).
        """
        if self.ended.is_set():
            raise self.death
        self._next_id = call_id = self._next_id + 1
        future = self._pending[call_id] = self._loop.create_future()
        self._channel.post((call_id, method, args))
        timer = None
        if deadline_seconds is not None:
            what = f"{method} of {self.name}"
            timer = self._loop.call_later(
                deadline_seconds, self._expire, call_id, what, deadline_seconds, setting
            )
        try:
            return await future
        except asyncio.CancelledError:
            if self._pending.pop(call_id, None) is not None:
                self._channel.post((call_id, None, ()))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if future.done() and not future.cancelled():
                future.exception()  # seen, also where a cancellation came in between

    def kill(self) -> None:
        """Send SIGKILL; pending calls fail as soon as it is gone."""
        if self.pid is not None and not self._fork.exited.done():
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    async def close(self, grace_seconds: float = 5.0) -> None:
        """Let the service close, then the process end; kill it after `grace_seconds`. Idempotent."""
        if not self.ended.is_set():
            closing = asyncio.ensure_future(self.call(CLOSE))
            try:
                await asyncio.wait_for(self.ended.wait(), grace_seconds)
            except TimeoutError:
                self.kill()
                await self.ended.wait()
            except asyncio.CancelledError:
                self.kill()
                raise
            finally:
                closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)

    def _receive(self, message: tuple) -> None:
        call_id, good, value = message
        future = self._pending.pop(call_id, None)
        if future is None or future.done():
            return
        if good:
            future.set_result(value)
        else:
            future.set_exception(unpacked(value))

    def _fault(self, message: tuple, problem: Exception) -> None:
        future = self._pending.pop(message[0], None)
        if future is not None and not future.done():
            future.set_exception(TypeError(f"the arguments of {message[1]} cannot be pickled: {problem}"))

    def _expire(self, call_id: int, what: str, seconds: float, setting: str) -> None:
        future = self._pending.pop(call_id, None)
        if future is not None and not future.done():
            future.set_exception(DeadlinePassed(what, seconds, setting))
            self._channel.post((call_id, None, ()))

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
        self.ended.set()
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(self.death)

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
