"""An event loop whose clock jumps to the next timer, so that hours of a run take seconds."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, copy_context
from math import inf, nextafter
from typing import Any, TypeVar

T = TypeVar("T")

RESOLUTION_SECONDS = 1e-6
"""Timers this close fire together. The loop's own 1e-9 is below what a float can hold after some months."""

TURNS_BETWEEN_POLLS = 256
MAX_CANCELLED_TIMERS = 4096
"""From here on the loop's own turn looks whether its heap is worth tidying."""


class Stalled(RuntimeError):
    """Every task waits and nothing is scheduled: on a real clock this would hang for ever."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"at {seconds:g} s of virtual time every task waits and no timer, thread or file descriptor "
            "is left that could wake one"
        )
        self.seconds = seconds


class _Soon(asyncio.Handle):
    """A callback for the loop's next turn, made without the questions that only debugging asks."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Time stands still while tasks or executor threads work, and jumps when all of them wait.

    A run is as repeatable as its code: timers fire in order of their times, and equal ones in an order that
    is the same in each run. Threads are waited for only if they were started with `run_in_executor` or
    `asyncio.to_thread`; other sources of events need a file descriptor of this loop.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _stopping: bool
    _debug: bool
    _closed: bool

    def __init__(self) -> None:
        self._clock = _Clock(selectors.DefaultSelector())
        super().__init__(self._clock)
        self._clock_resolution = RESOLUTION_SECONDS
        self._turns = 0

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._clock.now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As of any loop; a run calls it several times a group, so that its checks are worth leaving out."""
        if self._debug or self._closed:
            return super().call_soon(callback, *args, context=context)
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        """As of any loop, without asking the system while nothing outside this thread can wake a task.

        Every so often it is asked all the same, for signals.
        """
        self._turns += 1
        asks = self._clock.waits_outside or self._turns % TURNS_BETWEEN_POLLS == 0
        if asks or self._stopping or self._debug or self._timer_cancelled_count > MAX_CANCELLED_TIMERS:
            super()._run_once()  # type: ignore[misc]
            return
        ready, scheduled = self._ready, self._scheduled
        if not ready and not self._to_next_timer():
            super()._run_once()  # type: ignore[misc]
            return
        if scheduled and scheduled[0]._when < self._clock.now + RESOLUTION_SECONDS:
            self._due_timers()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _to_next_timer(self) -> bool:
        """Jump to the next timer; False if there is none. Raises Stalled if it never comes."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not scheduled:
            return False
        when = scheduled[0]._when
        if when == inf:
            raise Stalled(self._clock.now)
        if when > self._clock.now:
            self._clock.now = when
        return True

    def _due_timers(self) -> None:
        """Make the timers of now ready, in order."""
        scheduled, end = self._scheduled, self._clock.now + RESOLUTION_SECONDS
        while scheduled and scheduled[0]._when < end:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(handle)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """As of any loop; the clock stands still until it is done."""
        self._clock.threads += 1
        try:
            future = super().run_in_executor(executor, func, *args)
        except BaseException:
            self._thread_ended()
            raise
        future.add_done_callback(self._thread_ended)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As of any loop; the clock stands still meanwhile."""
        self._clock.threads += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._thread_ended()

    def _thread_ended(self, _: object = None) -> None:
        self._clock.threads -= 1


class _Clock(selectors.BaseSelector):
    """The loop's selector: waiting for time moves the clock, waiting for anything else is real."""

    def __init__(self, inner: selectors.BaseSelector) -> None:
        self.inner = inner
        self.now = 0.0
        self.threads = 0
        self.descriptors = 0

    @property
    def waits_outside(self) -> bool:
        """Threads or file descriptors may wake a task; the loop's own wake-up descriptor is always there."""
        return self.threads > 0 or self.descriptors > 1

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return self.inner.select(0)
        if self.threads:
            return self.inner.select(None)
        if events := self.inner.select(0):
            return events
        if timeout is not None:
            self.now = max(self.now + timeout, nextafter(self.now, inf))
            return []
        if self.descriptors > 1:
            return self.inner.select(None)
        raise Stalled(self.now)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self.inner.register(fileobj, events, data)
        self.descriptors = len(self.inner.get_map())
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self.inner.unregister(fileobj)
        self.descriptors = len(self.inner.get_map())
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.inner.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self.inner.get_map()

    def close(self) -> None:
        self.inner.close()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a virtual clock of its own. Raises Stalled where a real run would hang."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
