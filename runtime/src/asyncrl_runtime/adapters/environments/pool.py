"""Worker processes of an environment, which may hang or die without harm to the others."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from asyncrl_runtime.adapters.workers import WorkerProcess
from asyncrl_runtime.core.errors import DeadlinePassed, WorkerDied

START_SECONDS = 120.0
"""Bound on the start of a worker, imports included."""

PING_SECONDS = 1.0
"""Bound on a sign of life of a worker that runs several calls, before it is taken for hung."""

MAX_CONCURRENT_CALLS = 64
"""Calls that one process of async functions runs at a time."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class WorkerEnded(Exception):
    """A worker's process ended in the middle of a call."""

    exit_code: int | None

    def __str__(self) -> str:
        code = "without an exit code" if self.exit_code is None else f"with exit code {self.exit_code}"
        return f"ended its process {code}"


class StartFailed(Exception):
    """A worker could not be started."""


@dataclass(slots=True, eq=False)
class _Seat:
    """Where one worker sits: the process changes, the seat stays."""

    index: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    worker: WorkerProcess | None = None
    running: int = 0


class WorkerPool:
    """Runs calls on the least busy worker, or on the one that a key leads to.

    A worker whose call passes its deadline or is cancelled is killed, unless its functions are async and
    it still answers; the next call on its seat starts another.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        num_workers: int,
        deadline_seconds: float,
        setting: str,
    ) -> None:
        self.name = name
        self.concurrent = False
        """Set by the owner when the workers' functions are async."""

        self.num_replaced = 0
        self._factory, self._args = factory, args
        self._deadline_seconds, self._setting = deadline_seconds, setting
        self._seats = [_Seat(index) for index in range(num_workers)]
        self._waiting: deque[tuple[_Seat | None, asyncio.Future[_Seat]]] = deque()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(self, method: str, *args: Any, key: str | None = None) -> Any:
        """Call a method of the service on some worker; calls with equal keys meet the same one.

        Raises:
            DeadlinePassed: no answer in time.
            WorkerEnded: the process ended during the call.
            StartFailed: a worker was needed and could not be started.
            Exception: what the service raised.
        """
        seat = await self._take(key)
        try:
            return await self._on(seat, method, args)
        finally:
            self._give_back(seat)

    def problem(self) -> str | None:
        """What is wrong with the pool, in words."""
        return "it is closed" if self._closed else None

    async def close(self) -> None:
        """Stop all workers. Idempotent."""
        self._closed = True
        workers = [seat.worker for seat in self._seats if seat.worker is not None]
        for seat in self._seats:
            seat.worker = None
        await asyncio.gather(*(worker.close(grace_seconds=1.0) for worker in workers))
        if self._closing:
            await asyncio.gather(*self._closing)

    async def _take(self, key: str | None) -> _Seat:
        """Wait for a free place, in order of asking."""
        fixed = None if key is None else self._seats[zlib.crc32(key.encode()) % len(self._seats)]
        seat = fixed or min(self._seats, key=lambda seat: seat.running)
        if seat.running < self._limit:
            seat.running += 1
            return seat
        place = asyncio.get_running_loop().create_future()
        self._waiting.append((fixed, place))
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give_back(place.result())
            raise

    def _give_back(self, seat: _Seat) -> None:
        """Hand the place to the first that waits for this seat, or for any."""
        for position, (fixed, place) in enumerate(self._waiting):
            if not place.done() and (fixed is None or fixed is seat):
                del self._waiting[position]
                place.set_result(seat)
                return
        seat.running -= 1

    @property
    def _limit(self) -> int:
        return MAX_CONCURRENT_CALLS if self.concurrent else 1

    async def _on(self, seat: _Seat, method: str, args: tuple[Any, ...]) -> Any:
        worker = await self._worker(seat)
        try:
            return await worker.call(
                method, *args, deadline_seconds=self._deadline_seconds, setting=self._setting
            )
        except WorkerDied as death:
            log.warning("a worker of %s ended during a call; it is replaced", self.name)
            self._discard(seat, worker)
            raise WorkerEnded(death.exit_code) from death
        except (DeadlinePassed, asyncio.CancelledError) as cause:
            if isinstance(cause, DeadlinePassed):
                log.warning("a call of %s passed its deadline; its worker is replaced if it hangs", self.name)
            if self.concurrent:
                self._spawn(self._kill_if_silent(seat, worker))
            else:
                self._discard(seat, worker)
            raise

    async def _worker(self, seat: _Seat) -> WorkerProcess:
        async with seat.lock:
            if self._closed:
                raise RuntimeError(f"the workers of {self.name} are closed")
            if seat.worker is None or not seat.worker.alive:
                try:
                    seat.worker = await WorkerProcess.start(
                        self._factory,
                        *self._args,
                        name=f"{self.name}-{seat.index}",
                        start_seconds=START_SECONDS,
                        setting="",
                    )
                except DeadlinePassed:
                    raise StartFailed(f"it was not ready within {START_SECONDS:g} s") from None
                except Exception as error:
                    raise StartFailed(str(error)) from error
            return seat.worker

    def _discard(self, seat: _Seat, worker: WorkerProcess) -> None:
        """Kill it; the next call on the seat starts another."""
        if seat.worker is worker:
            seat.worker = None
            self.num_replaced += 1
        worker.kill()
        self._spawn(worker.close(grace_seconds=0.0))

    async def _kill_if_silent(self, seat: _Seat, worker: WorkerProcess) -> None:
        try:
            await worker.call("ping", deadline_seconds=PING_SECONDS, setting="")
        except (DeadlinePassed, WorkerDied):
            self._discard(seat, worker)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
