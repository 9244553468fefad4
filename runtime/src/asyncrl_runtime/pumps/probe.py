"""The fleet probe: asks shards at a fixed rate whether they get on, and hears at once when one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from asyncrl_runtime.core.errors import WorkerDied
from asyncrl_runtime.core.fleet import ABSENT, STALE, FleetLedger
from asyncrl_runtime.ports.generator import Generator, ShardState
from asyncrl_runtime.pumps.fleet import Fleet

T = TypeVar("T")


@dataclass(eq=False)
class NoAnswer(Exception):
    """A shard did not answer in time."""

    seconds: float

    def __str__(self) -> str:
        return f"no answer within {self.seconds:g} s"


async def ask(
    fleet: Fleet, shards: Iterable[int], question: Callable[[Generator], Awaitable[T]], seconds: float
) -> dict[int, T | BaseException]:
    """Ask shards all at once; the answers, errors and `NoAnswer`s are there after `seconds` at the latest."""
    asked = {index: asyncio.ensure_future(question(fleet.shards[index])) for index in shards}
    try:
        if asked:
            await asyncio.wait(asked.values(), timeout=seconds)
    finally:
        late = [index for index, call in asked.items() if not call.done()]
        for index in late:
            asked[index].cancel()
        for call in asked.values():
            call.add_done_callback(lambda call: call.cancelled() or call.exception())
    return {
        index: NoAnswer(seconds) if index in late else call.exception() or call.result()
        for index, call in asked.items()
    }


@dataclass(slots=True, kw_only=True, eq=False)
class ProbePump:
    """Keeps the health ledger's view of the shards current (SC-7.50 to 7.54).

    Takes:      answers of shards
    Gives:      probe and death events, once per interval or as they happen
    Waits for:  its own clock, and the end of each engine
    Woken by:   nothing else: neither a refit nor a restart holds it up
    """

    fleet: Fleet
    ledger: FleetLedger
    interval_seconds: float
    timeout_seconds: float
    """Below the interval, so that a round ends before the next one begins."""

    after_round: Callable[[], None] = lambda: None
    """What it raises ends the run."""

    rounds: int = field(default=0, init=False)
    _seen: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)
    """By shard that was busy: its engine (by restarts) and the tokens it had made."""

    async def run(self) -> None:
        """Never returns; whatever ends it ends the run."""
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(self.fleet.shards)):
                tasks.create_task(self._watch(index), name=f"watch shard {index}")
            await self._probe_at_fixed_rate()

    async def _probe_at_fixed_rate(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self.round()
            due = max(due + self.interval_seconds, loop.time())
            await asyncio.sleep(due - loop.time())

    async def round(self) -> None:
        """Probe every serving or stale shard at once, within one time-out."""
        asked = self.ledger.present
        engines = {index: self.fleet.engine(index) for index in asked}
        answers = await ask(self.fleet, asked, lambda shard: shard.probe(), self.timeout_seconds)
        for index, answer in answers.items():
            if self.fleet.engine(index) == engines[index]:
                self._judge(index, answer, engines[index])
        self.rounds += 1
        self.fleet.changed.notify()
        self.after_round()

    def _judge(self, index: int, answer: ShardState | BaseException, engine: int) -> None:
        if isinstance(answer, WorkerDied):
            self.fleet.died(index, str(answer), engine=engine)
        elif self.ledger.state(index) is STALE:
            return  # an answer says nothing about weights
        elif isinstance(answer, BaseException):
            self._seen.pop(index, None)
            self.ledger.probe_failed(index, str(answer) or type(answer).__name__)
        elif self._stuck(index, answer, engine):
            self.ledger.probe_failed(
                index,
                f"it runs {answer.running} requests, and made no token in {self.interval_seconds:g} s",
            )
        else:
            self.ledger.probe_ok(index)

    def _stuck(self, index: int, answer: ShardState, engine: int) -> bool:
        """Health is progress: an engine with work must have made a token since the last probe."""
        now = (engine, answer.generated_tokens)
        before = self._seen.pop(index, None)
        if answer.busy:
            self._seen[index] = now
        return answer.busy and before == now

    async def _watch(self, index: int) -> None:
        """Tell the ledger of the end of an engine, each engine once."""
        while True:
            await self.fleet.changed.until(lambda: self.ledger.state(index) not in ABSENT)
            engine = self.fleet.engine(index)
            reason = await self.fleet.shards[index].until_ended()
            self.fleet.died(index, reason, engine=engine)


@dataclass(slots=True, kw_only=True, eq=False)
class RestartPump:
    """Starts new engines for dead shards in the background (SC-7.71 to 7.73).

    Takes:      dead shards, where the job restarts them or a person released them
    Gives:      stale shards, which the next refit takes in
    Waits for:  a back-off that doubles with each attempt, then the start of the engine
    Woken by:   the fleet (`changed`)
    """

    fleet: Fleet
    ledger: FleetLedger
    backoff_base_seconds: float

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(self.fleet.shards)):
                tasks.create_task(self._care(index), name=f"restart shard {index}")

    async def _care(self, index: int) -> None:
        while True:
            await self.fleet.changed.until(lambda: self.fleet.restart_due(index))
            if not self.fleet.begin_restart(index):
                return
            attempts = self.ledger.shards[index].restart_attempts
            await asyncio.sleep(self.backoff_base_seconds * 2.0 ** (attempts - 1))
            error = await self.fleet.restart(index)
            if error is None:
                self.ledger.loaded(index)
            else:
                self.ledger.load_failed(index, error)


@dataclass(slots=True, kw_only=True, eq=False)
class ReadmissionPump:
    """Breaks the circle of a fleet that waits for a refit while the refit's step waits for the fleet.

    Takes:      a fleet in which nobody serves and somebody is stale
    Gives:      the current weights once more, while the trainer is between updates
    Waits for:  such a moment
    Woken by:   the fleet (`changed`), which each round of probes notifies
    """

    fleet: Fleet
    ledger: FleetLedger
    readmit: Callable[[], Awaitable[None]]
    """Transfers the current version; does nothing when it finds the trainer or a refit at work."""

    async def run(self) -> None:
        """Never returns."""
        while True:
            seen = self.fleet.changed.count
            if not self.ledger.serving and any(shard.state is STALE for shard in self.ledger.shards):
                await self.readmit()
            await self.fleet.changed.since(seen)
