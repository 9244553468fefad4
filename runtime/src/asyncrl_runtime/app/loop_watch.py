"""Noticing from outside that the controller's event loop stands still, which nothing on it can."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from asyncrl_api.spec.failure import StallWatchdogSpec
from asyncrl_runtime.core.errors import RunError

log = structlog.get_logger("asyncrl.watch")


@dataclass(eq=False)
class LoopFrozen(RunError):
    """The event loop did not answer for too long (SC-8.53)."""

    seconds: float
    timeout_seconds: float
    dump: str

    def __str__(self) -> str:
        return (
            f"the controller's event loop has not answered for {self.seconds:.0f} s "
            f"(spec.asyncRL.stallWatchdog.stallTimeoutSeconds {self.timeout_seconds:g}): something blocks "
            f"it, see the threads in {self.dump}; run the job again, it goes on from its newest checkpoint"
        )


@dataclass(slots=True, kw_only=True, eq=False)
class LoopWatch:
    """A thread that asks the loop for an answer once per interval (SC-5.9).

    A slow answer is no freeze; one that is missing for longer than the stall timeout is.
    """

    settings: StallWatchdogSpec
    dump: Callable[[str, asyncio.AbstractEventLoop], str]
    frozen: Callable[[LoopFrozen], None]
    """Called on the thread where the action is abort; must end the process."""

    _answered: float = field(default=0.0, init=False)
    _told: bool = field(default=False, init=False)

    @contextmanager
    def watching(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Watch this loop inside the block."""
        stop = threading.Event()
        self._answered = time.monotonic()
        thread = threading.Thread(target=self._watch, args=(loop, stop), name="loop-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
        while not stop.wait(self.settings.interval_seconds):
            silent = time.monotonic() - self._answered
            if silent > self.settings.stall_timeout_seconds:
                self._tell(loop, silent)
            else:
                self._told = False
            try:
                loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return  # the loop is closed: nothing is left to watch

    def _answer(self) -> None:
        self._answered = time.monotonic()

    def _tell(self, loop: asyncio.AbstractEventLoop, silent: float) -> None:
        if self._told:
            return
        self._told = True
        path = self.dump(f"the event loop has not answered for {silent:.0f} s", loop)
        error = LoopFrozen(silent, self.settings.stall_timeout_seconds, path)
        log.error(str(error))
        if self.settings.stall_action == "abort":
            self.frozen(error)
