"""Keys that wait for a pass: each at most once, none in two passes at a time, failed ones later and later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger("asyncrl.operator")

Key = TypeVar("Key", bound=Hashable)

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 60.0


@dataclass(slots=True, eq=False)
class WorkQueue(Generic[Key]):
    """Takes keys and hands them to `work`, which may ask for another look after some seconds."""

    work: Callable[[Key], Awaitable[float | None]]
    workers: int = 4
    _ready: asyncio.Queue[Key] = field(default_factory=asyncio.Queue, init=False)
    _waiting: set[Key] = field(default_factory=set, init=False)
    _running: set[Key] = field(default_factory=set, init=False)
    _again: set[Key] = field(default_factory=set, init=False)
    _timers: dict[Key, asyncio.TimerHandle] = field(default_factory=dict, init=False)
    failures: dict[Key, int] = field(default_factory=dict, init=False)
    """Passes in a row that failed."""

    def add(self, key: Key) -> None:
        """Look at it as soon as possible."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Look at it then at the latest."""
        loop = asyncio.get_running_loop()
        due, timer = loop.time() + seconds, self._timers.get(key)
        if timer is not None and timer.when() <= due:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_at(due, self.add, key)

    @property
    def depth(self) -> int:
        """Keys that wait."""
        return len(self._waiting)

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._running.add(key)
            try:
                again = await self.work(key)
            except Exception as problem:  # noqa: BLE001 - a pass that fails is repeated, whatever the cause
                self.failures[key] = failed = self.failures.get(key, 0) + 1
                again = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(failed - 1, 10))
                log.warning("a pass failed", key=str(key), reason=str(problem), retry_seconds=again)
            else:
                self.failures.pop(key, None)
            finally:
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            elif again is not None:
                self.add_after(key, again)
