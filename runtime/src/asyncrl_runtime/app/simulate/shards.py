"""Shards that serve requests one by one, for scenarios in which single shards die, freeze or are slow."""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator
from asyncrl_runtime.app.simulate.faults import ShardFault
from asyncrl_runtime.app.simulate.script import GroupPlan, RolloutScript
from asyncrl_runtime.app.simulate.work import Work
from asyncrl_runtime.core.errors import RolloutFailure, RunError, WorkerDied
from asyncrl_runtime.core.records import GroupRecord, Prompt, PromptRef
from asyncrl_runtime.ports.generator import GenerationRequest, GenerationResult, Sampling
from asyncrl_runtime.pumps.rollouts import RolloutManager
from asyncrl_runtime.pumps.wakeup import Wakeup

REQUEST = re.compile(r"(e(\d+)p(\d+)_a(\d+))_g(\d+)_t0")


@dataclass(eq=False)
class SimulatedStall(RunError):
    """Nothing moves any more but clocks."""

    seconds: float
    bound: float

    def __str__(self) -> str:
        return (
            f"until {self.seconds:g} s no group had been committed for {self.bound:g} s: a rollout or a "
            "shard that never ends holds the run up; set "
            "spec.asyncRL.rolloutFailure.native.generationTimeoutSeconds, or let the fleet's health be "
            "watched (spec.asyncRL.generationFleetHealth.enabled)"
        )


@dataclass(slots=True, eq=False)
class Served:
    """A request in a shard."""

    left: float
    """Seconds of service that it still needs, at factor 1, as of `since`."""

    since: float
    began: float
    done: asyncio.Future[None]
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedShard(ScriptedGenerator):
    """Serves any number of requests, each at the shard's pace: 1 / factor, or 0 while it is frozen."""

    seconds: Callable[[GenerationRequest], float] = lambda request: 0.0
    script: RolloutScript
    ended_request: Callable[[str, float], None] = lambda attempt, seconds: None
    """Told about a request's end: its attempt and the seconds that it was here."""

    factor: float = field(default=1.0, init=False)
    served: dict[Served, None] = field(default_factory=dict, init=False)
    """In the order in which they came, so that a run can be repeated."""

    _freezes: int = field(default=0, init=False)
    _thawed: Wakeup = field(default_factory=Wakeup, init=False)

    async def start(self) -> None:
        """A new engine is not frozen; it runs where the old one did, at the same pace."""
        await ScriptedGenerator.start(self)
        self._freezes = 0

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Serve one completion, as planned."""
        self._check()
        attempt, plan, sibling = self._planned(request.request_id)
        loop = asyncio.get_running_loop()
        served = Served(plan.seconds[sibling], loop.time(), loop.time(), loop.create_future())
        self.served[served] = None
        self._waits.add(served.done)
        self.running += 1
        self._schedule(served)
        try:
            await served.done
        finally:
            self.running -= 1
            self.served.pop(served)
            self._waits.discard(served.done)
            if served.timer is not None:
                served.timer.cancel()
            self.ended_request(attempt, loop.time() - served.began)
        failure = plan.failure(sibling, request.request_id)
        if failure is not None:
            raise failure
        self.generated += 1
        return GenerationResult((1,), (-1.0,), (self.weight_version,), "stop")

    async def answer(self) -> None:
        """Return while it lives, once it is not frozen. Raises WorkerDied."""
        self._check()
        while self.frozen:
            await self._thawed.since(self._thawed.count)
            self._check()

    def die(self, reason: str = "the scenario ended it (shard-death)") -> None:
        """End; running requests fail, in order."""
        for served in self.served if self.alive else ():
            if not served.done.done():
                served.done.set_exception(WorkerDied(f"shard {self.index}", None, reason))
        ScriptedGenerator.die(self, reason)
        self._thawed.notify()

    def freeze(self) -> None:
        """Stand still."""
        self._change(1.0, 1)

    def thaw(self) -> None:
        """One freeze is over; none is left of an engine that was started anew."""
        self._change(1.0, -min(1, self._freezes))

    def slow(self, factor: float) -> None:
        """Take longer by a factor, on top of earlier ones."""
        self._change(factor, 0)

    def _change(self, factor: float, freezes: int) -> None:
        """Settle what was served at the old pace, then go on at the new one."""
        now = asyncio.get_running_loop().time()
        for served in self.served:
            if not self.frozen:
                served.left = max(0.0, served.left - (now - served.since) / self.factor)
            served.since = now
        self.factor *= factor
        self._freezes += freezes
        self.frozen = self._freezes > 0
        if not self.frozen:
            self._thawed.notify()
        for served in self.served:
            self._schedule(served)

    def _schedule(self, served: Served) -> None:
        if served.timer is not None:
            served.timer.cancel()
            served.timer = None
        if not self.frozen and served.left < math.inf:
            loop = asyncio.get_running_loop()
            served.timer = loop.call_later(served.left * self.factor, _set_done, served.done)

    def _planned(self, request_id: str) -> tuple[str, GroupPlan, int]:
        match = REQUEST.fullmatch(request_id)
        assert match is not None, request_id
        plan = self.script.plan(PromptRef(int(match[2]), int(match[3])), int(match[4]))
        return match[1], plan, int(match[5])


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(slots=True, kw_only=True, eq=False)
class WatchedRollouts:
    """The real rollout manager, with an account of what its requests cost."""

    manager: RolloutManager
    script: RolloutScript
    work: Work
    shards: Sequence[SimulatedShard] = ()
    _spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float), init=False)

    async def roll_group(
        self,
        prompt: Prompt,
        *,
        group_id: str,
        attempt: int,
        generations: int,
        sampling: Sampling | None = None,
    ) -> GroupRecord:
        """All siblings of a prompt, concurrently."""
        plan = self.script.plan(prompt.ref, attempt)
        if not attempt:
            self.work.dispatched(plan.longest)
        key = f"{group_id}_a{attempt}"
        try:
            record = await self.manager.roll_group(
                prompt, group_id=group_id, attempt=attempt, generations=generations, sampling=sampling
            )
        except RolloutFailure:
            self.work.failed(self._spent.pop(key, 0.0))
            raise
        except asyncio.CancelledError:
            self.work.aborted(self._spent.pop(key, 0.0))
            raise
        self.work.finished(group_id, self._spent.pop(key, 0.0), plan.longest)
        return record

    def ended(self, attempt: str, seconds: float) -> None:
        """A request of an attempt is over."""
        self._spent[attempt] += seconds

    def in_progress(self) -> Callable[[], float]:
        """Request-seconds so far of what runs now, and of the siblings of unfinished groups."""
        now = asyncio.get_running_loop().time()
        running = sum(now - served.began for shard in self.shards for served in shard.served)
        seconds = running + sum(self._spent.values())
        return lambda: seconds


@dataclass(slots=True, kw_only=True, eq=False)
class FaultPump:
    """Lets happen to the shards what the scenario says.

    Takes:      the shard faults of a scenario
    Gives:      deaths, freezes and slow shards
    Waits for:  their times
    """

    shards: Sequence[SimulatedShard]
    faults: Sequence[ShardFault]
    seed: int

    async def run(self) -> None:
        """Return when every fault that happens once is over."""
        async with asyncio.TaskGroup() as tasks:
            for number, fault in enumerate(self.faults):
                tasks.create_task(self._play(fault, Random(f"{self.seed}/{number}")))

    async def _play(self, fault: ShardFault, rng: Random) -> None:
        if fault.every_seconds is None:
            await asyncio.sleep(fault.at_seconds)
            assert fault.shard is not None
            await self._happen(fault, self.shards[fault.shard])
            return
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(rng.expovariate(1 / fault.every_seconds))
                living = [shard for shard in self.shards if shard.alive]
                if not living:
                    return
                tasks.create_task(self._happen(fault, rng.choice(living)))

    async def _happen(self, fault: ShardFault, shard: SimulatedShard) -> None:
        if fault.action == "die":
            shard.die()
            return
        begin, end = (
            (shard.freeze, shard.thaw)
            if fault.action == "freeze"
            else (lambda: shard.slow(fault.factor), lambda: shard.slow(1 / fault.factor))
        )
        begin()
        if fault.for_seconds < math.inf:
            await asyncio.sleep(fault.for_seconds)
            end()


@dataclass(slots=True, kw_only=True, eq=False)
class StallGuard:
    """Ends a run in which only clocks go on: repeated faults and probes would keep it going for ever.

    Takes:      counts of what moves
    Gives:      the end of the run, where they stand still for too long
    Waits for:  its own clock
    """

    moved: Callable[[], int]
    bound_seconds: Callable[[], float]

    async def run(self) -> None:
        """Never returns. Raises SimulatedStall."""
        while True:
            before, seconds = self.moved(), self.bound_seconds()
            await asyncio.sleep(seconds)
            if self.moved() == before:
                raise SimulatedStall(asyncio.get_running_loop().time(), seconds)
