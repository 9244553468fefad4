"""Shards that serve requests one by one, for scenarios in which single shards die, freeze or are slow."""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from asyncrl_runtime.app.simulate.faults import ShardFault
from asyncrl_runtime.app.simulate.script import GroupPlan, RolloutScript
from asyncrl_runtime.app.simulate.work import Work
from asyncrl_runtime.core.errors import RolloutFailure, RunError, WorkerDied
from asyncrl_runtime.core.records import GroupRecord, Prompt, PromptRef
from asyncrl_runtime.ports.generator import GenerationRequest, GenerationResult, Sampling, ShardState
from asyncrl_runtime.ports.weight_sync import TransferReport
from asyncrl_runtime.pumps.rollouts import RolloutManager

REQUEST = re.compile(r"(e(\d+)p(\d+)_a(\d+))_g(\d+)_t0")


@dataclass(eq=False)
class SimulatedStall(RunError):
    """Nothing moves any more but the scenario's own clock."""

    seconds: float
    bound: float

    def __str__(self) -> str:
        return (
            f"at {self.seconds:g} s no step had been completed for {self.bound:g} s "
            "(spec.asyncRL.stallWatchdog.stallTimeoutSeconds): a hung rollout or a shard holds the run up; "
            "set spec.asyncRL.rolloutFailure.native.generationTimeoutSeconds"
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
class SimulatedShard:
    """Serves any number of requests, each at the shard's pace: 1 / factor, or 0 while it is frozen."""

    index: int
    script: RolloutScript
    ended: Callable[[str, float], None]
    """Told about a request's end: its attempt and the seconds that it was here."""

    weight_version: int = -1
    alive: bool = True
    factor: float = 1.0
    frozen: int = 0
    """Freezes that are not over."""

    running: set[Served] = field(default_factory=set, init=False)
    generated: int = field(default=0, init=False)
    _thawed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def start(self) -> None:
        """Nothing to load."""

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Serve one completion, as planned."""
        if not self.alive:
            raise WorkerDied(f"shard {self.index}", None, "the scenario ended it (shard-death)")
        attempt, plan, sibling = self._planned(request.request_id)
        loop = asyncio.get_running_loop()
        served = Served(plan.seconds[sibling], loop.time(), loop.time(), loop.create_future())
        self.running.add(served)
        self._schedule(served)
        try:
            await served.done
        finally:
            self.running.discard(served)
            if served.timer is not None:
                served.timer.cancel()
            self.ended(attempt, loop.time() - served.began)
        failure = plan.failure(sibling, request.request_id)
        if failure is not None:
            raise failure
        self.generated += 1
        return GenerationResult((1,), (-1.0,), (self.weight_version,), "stop")

    async def probe(self) -> ShardState:
        """Answers at once, unless it is frozen."""
        if not self.alive:
            raise WorkerDied(f"shard {self.index}", None, "the scenario ended it (shard-death)")
        await self.thawed()
        return ShardState(self.weight_version, len(self.running), 0, self.generated, 0.0)

    async def invalidate_kv_cache(self) -> None:
        """Takes no time."""

    async def close(self) -> None:
        """Answer no more."""
        self.die()

    async def thawed(self) -> None:
        """Return when it is not frozen, or dead."""
        while self.alive and self.frozen:
            await self._thawed.wait()

    def die(self) -> None:
        """End; what runs here fails."""
        self.alive = False
        self._thawed.set()
        for served in list(self.running):
            if not served.done.done():
                death = WorkerDied(f"shard {self.index}", None, "the scenario ended it (shard-death)")
                served.done.set_exception(death)

    def freeze(self) -> None:
        """Stand still."""
        self._change(1.0, 1)

    def thaw(self) -> None:
        """One freeze is over."""
        self._change(1.0, -1)

    def slow(self, factor: float) -> None:
        """Take longer by a factor, on top of earlier ones."""
        self._change(factor, 0)

    def _change(self, factor: float, freezes: int) -> None:
        """Settle what was served at the old pace, then go on at the new one."""
        now = asyncio.get_running_loop().time()
        for served in self.running:
            if not self.frozen:
                served.left = max(0.0, served.left - (now - served.since) / self.factor)
            served.since = now
        self.factor *= factor
        self.frozen += freezes
        if self.frozen:
            self._thawed.clear()
        else:
            self._thawed.set()
        for served in self.running:
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
        running = sum(now - served.began for shard in self.shards for served in shard.running)
        seconds = running + sum(self._spent.values())
        return lambda: seconds


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedSync:
    """Brings the shards to a version; a frozen shard holds the transfer up."""

    shards: Sequence[SimulatedShard]
    seconds: Callable[[int], float]
    is_stale: bool = True

    async def init_communicator(self) -> None:
        """Nothing to connect."""

    async def sync_weights(
        self, version: int, *, kv_scales: Mapping[str, float] | None = None
    ) -> TransferReport:
        """Wait, then every shard that lives serves the version."""
        if kv_scales is not None:
            raise ValueError("simulated shards have no key-value scales")
        seconds = self.seconds(version)
        await asyncio.sleep(seconds)
        for shard in self.shards:
            await shard.thawed()
        present = [shard for shard in self.shards if shard.alive]
        for shard in present:
            shard.weight_version = version
        self.is_stale = False
        return TransferReport(version, tuple(shard.index for shard in present), 0, seconds)

    async def shutdown(self) -> None:
        """Nothing to release."""


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
    steps: Callable[[], int]
    stall_seconds: float
    """A run without a step for so long has stalled: repeated faults would keep its clock going for ever."""

    _last: tuple[int, float] = field(default=(0, 0.0), init=False)

    async def run(self) -> None:
        """Return when every fault that happens once is over. Raises SimulatedStall."""
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
                self._check_progress()
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

    def _check_progress(self) -> None:
        now, steps = asyncio.get_running_loop().time(), self.steps()
        if steps > self._last[0]:
            self._last = (steps, now)
        elif now - self._last[1] > self.stall_seconds:
            raise SimulatedStall(now, now - self._last[1])
