"""The worker's side: one service object whose methods answer calls."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable
from typing import Any

from asyncrl_runtime.adapters.workers.channel import Channel
from asyncrl_runtime.adapters.workers.errors import packed
from asyncrl_runtime.adapters.workers.parent import set_name

READY = 0
"""Call id of the first answer: the service is built."""

CLOSE = "__close__"


class Deferred:
    """A result that a service's method gives later, for much less than a task costs.

    Results of one loop tick leave in one message.
    """

    __slots__ = ("_answer", "_outcome", "on_cancel")

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        """`on_cancel` runs when the caller gives up; the result is not sent then."""
        self.on_cancel = on_cancel
        self._answer: Callable[[bool, Any], None] | None = None
        self._outcome: tuple[bool, Any] | None = None

    def resolve(self, value: object) -> None:
        """Answer with a value."""
        self._settle(True, value)

    def fail(self, error: BaseException) -> None:
        """Answer with an exception."""
        self._settle(False, packed(error))

    def _settle(self, good: bool, value: object) -> None:
        if self._outcome is not None:
            return
        self._outcome = (good, value)
        if self._answer is not None:
            self._answer(good, value)

    def _bind(self, answer: Callable[[bool, Any], None]) -> None:
        self._answer = answer
        if self._outcome is not None:
            answer(*self._outcome)


class Server:
    """Carries messages of calls out on the service that the first of them builds."""

    def __init__(self, post: Callable[[tuple], None], closed: Callable[[], None]) -> None:
        """`post` takes answers; `closed` is called after the last one, when the service has closed."""
        self._post = post
        self._closed = closed
        self._service: Any = None
        self._running: dict[int, asyncio.Task[None] | Deferred] = {}

    def receive(self, message: tuple) -> None:
        """Start, or cancel, what a message asks for."""
        call_id, method, args = message
        if call_id == READY:
            self._build(*args)
        elif method == CLOSE:
            self._start(call_id, self._close, ())
        elif method is None:
            self._cancel(call_id)
        else:
            self._start(call_id, getattr(self._service, method, None), args, method)

    @staticmethod
    def fault(message: tuple, problem: Exception) -> tuple:
        """What to answer in place of a result that cannot be pickled."""
        call_id = message[0]
        return (call_id, False, packed(TypeError(f"the result cannot be pickled: {problem}")))

    def _build(self, name: str, factory: Callable, args: tuple) -> None:
        set_name(name)
        try:
            self._service = factory(*args)
        except Exception as problem:  # noqa: BLE001 - the caller's `start` raises it
            self._post((READY, False, packed(problem)))
        else:
            self._post((READY, True, None))

    def _start(self, call_id: int, method: Callable | None, args: tuple, name: str = CLOSE) -> None:
        try:
            if method is None:
                raise AttributeError(f"{type(self._service).__name__} has no method {name}")
            result = method(*args)
        except Exception as problem:  # noqa: BLE001 - the caller raises it
            self._answer(call_id, False, packed(problem))
            return
        if isinstance(result, Deferred):
            self._running[call_id] = result
            result._bind(lambda good, value: self._answer(call_id, good, value))
        elif inspect.isawaitable(result):
            self._running[call_id] = asyncio.ensure_future(self._finish(call_id, result))
        else:
            self._answer(call_id, True, result)

    async def _finish(self, call_id: int, result: Any) -> None:
        try:
            value = await result
        except asyncio.CancelledError:
            self._running.pop(call_id, None)
            raise
        except Exception as problem:  # noqa: BLE001 - the caller raises it
            self._answer(call_id, False, packed(problem))
        else:
            self._answer(call_id, True, value)

    def _answer(self, call_id: int, good: bool, value: object) -> None:
        self._running.pop(call_id, None)
        self._post((call_id, good, value))

    def _cancel(self, call_id: int) -> None:
        work = self._running.pop(call_id, None)
        if isinstance(work, Deferred):
            work._answer = None
            if work.on_cancel is not None:
                work.on_cancel()
        elif work is not None:
            work.cancel()

    async def _close(self) -> None:
        close = getattr(self._service, "close", None)
        result = close() if close is not None else None
        if inspect.isawaitable(result):
            await result
        asyncio.get_running_loop().call_soon(self._closed)


async def _serve(sock: socket.socket) -> int:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def lost() -> None:
        if not ended.done():
            ended.set_result(0)

    def post(message: tuple) -> None:
        channel.post(message)

    def close() -> None:
        channel.close()

    server = Server(post, close)
    channel = await Channel.over(sock, receive=server.receive, lost=lost, fault=server.fault)
    return await ended


def serve(sock: socket.socket) -> int:
    """Answer calls until the other end closes; returns the exit code."""
    return asyncio.run(_serve(sock))
