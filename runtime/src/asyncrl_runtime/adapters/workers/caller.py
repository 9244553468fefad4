"""The caller's side of a worker, whatever carries the messages."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from asyncrl_runtime.adapters.workers.errors import unpacked
from asyncrl_runtime.adapters.workers.service import CLOSE, READY
from asyncrl_runtime.core.errors import DeadlinePassed, WorkerDied


class Caller(ABC):
    """Calls of a service in another process. Belongs to the event loop that made it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid: int | None = None
        self.exit_code: int | None = None
        """Negative for a signal; None while it runs, or when nobody saw it."""

        self.ended = asyncio.Event()
        """Set once the process is gone and every pending call has failed."""

        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._next_id = READY

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False once it is known to have ended."""

    @property
    @abstractmethod
    def death(self) -> WorkerDied:
        """How it ended, once it has."""

    @abstractmethod
    def kill(self) -> None:
        """End the process at once, also a frozen one; pending calls fail as soon as it is gone."""

    @abstractmethod
    def _has_closed(self, closing: asyncio.Future[Any]) -> None:
        """The service has closed, or failed to; a process that does not end by itself is ended here."""

    @abstractmethod
    def _post(self, message: tuple) -> None:
        """Send a message at the end of this loop tick."""

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
        self._post((call_id, method, args))
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
                self._post((call_id, None, ()))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if future.done() and not future.cancelled():
                future.exception()  # seen, also where a cancellation came in between

    async def close(self, grace_seconds: float = 5.0) -> None:
        """Let the service close, then the process end; kill it after `grace_seconds`. Idempotent."""
        if not self.ended.is_set():
            closing = asyncio.ensure_future(self.call(CLOSE))
            closing.add_done_callback(self._has_closed)
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

    def _open(self, factory: Any, args: tuple) -> asyncio.Future[Any]:
        """Have the service built; done when it is."""
        ready = self._pending[READY] = self._loop.create_future()
        self._post((READY, None, (self.name, factory, args)))
        return ready

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
            self._post((call_id, None, ()))

    def _has_ended(self) -> None:
        """Tell everybody who waits."""
        self.ended.set()
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(self.death)
