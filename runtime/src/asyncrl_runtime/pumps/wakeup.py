"""What pumps wait on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from asyncrl_runtime.core.errors import DeadlinePassed, RunError


@dataclass(slots=True, eq=False)
class Wakeup:
    """Something changed; whoever waits looks again."""

    count: int = 0
    """Notifications so far; compare to see whether anything changed in between."""

    _waiting: dict[asyncio.Future[None], None] = field(default_factory=dict, init=False)
    """In the order in which they came: who waited first looks first."""

    def notify(self) -> None:
        """Wake every waiter."""
        self.count += 1
        if self._waiting:
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)
            self._waiting.clear()

    async def since(self, count: int) -> None:
        """Return once there was a notification after `count` was read."""
        while self.count == count:
            await self._next()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is tested now and after each notification."""
        while not condition():
            await self._next()

    async def _next(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)


@dataclass(slots=True, eq=False)
class RolloutGate:
    """Dispatch is permitted while it is open; closed from the close of a step until its refit landed."""

    is_open: bool = False
    _changed: Wakeup = field(default_factory=Wakeup, init=False)

    def close(self) -> None:
        """Let no attempt start."""
        self.is_open = False

    def open(self) -> None:
        """Let attempts start."""
        self.is_open = True
        self._changed.notify()

    async def until_open(self) -> None:
        """Wait; test `is_open` again before relying on it after another await."""
        await self._changed.until(lambda: self.is_open)


@dataclass(frozen=True, slots=True)
class MutationToken:
    """Proof that the barrier's shared side is held."""


@dataclass(frozen=True, slots=True)
class CutToken:
    """Proof that the barrier is held exclusively."""


@dataclass(eq=False)
class BarrierTimeout(RunError):
    """A cut could not begin in time (SC-4.75)."""

    seconds: float
    mutations: int

    def __str__(self) -> str:
        return (
            f"a snapshot waited {self.seconds:g} s for {self.mutations} changes in progress to end; "
            "raise spec.rolloutCheckpointing.barrierTimeoutSeconds if the data plane is that slow"
        )


@dataclass(slots=True, eq=False)
class Barrier:
    """Keeps snapshots and changes apart: changes share it, a cut has it alone and is never starved."""

    version: int = 0
    """Completed mutations."""

    _mutating: int = field(default=0, init=False)
    _cutting: bool = field(default=False, init=False)
    _cuts_waiting: int = field(default=0, init=False)
    _changed: Wakeup = field(default_factory=Wakeup, init=False)

    @asynccontextmanager
    async def mutation(self) -> AsyncIterator[MutationToken]:
        """Hold the shared side; waits behind a cut that is under way or waiting."""
        if self._cutting or self._cuts_waiting:
            await self._changed.until(lambda: not self._cutting and not self._cuts_waiting)
        self._mutating += 1
        try:
            yield MutationToken()
        finally:
            self._mutating -= 1
            self.version += 1
            if self._cuts_waiting and not self._mutating:
                self._changed.notify()

    @asynccontextmanager
    async def cut(self, *, timeout_seconds: float) -> AsyncIterator[CutToken]:
        """Hold it alone. Raises BarrierTimeout."""
        self._cuts_waiting += 1
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.until(lambda: not self._cutting and not self._mutating)
            self._cutting = True
        except TimeoutError:
            raise BarrierTimeout(timeout_seconds, self._mutating) from None
        finally:
            self._cuts_waiting -= 1
            self._changed.notify()
        try:
            yield CutToken()
        finally:
            self._cutting = False
            self._changed.notify()


@asynccontextmanager
async def deadline(what: str, seconds: float | None, setting: str) -> AsyncIterator[None]:
    """Bound what happens inside. Only our own expiry becomes DeadlinePassed (SC-5.28)."""
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if bound.expired():
            assert seconds is not None
            raise DeadlinePassed(what, seconds, setting) from error
        raise
