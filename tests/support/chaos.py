"""A whole job under seeded random faults on the virtual clock: killed and started again until it is over."""

import asyncio
import math
import os
import random
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from zlib import crc32

from asyncrl_api.derived import Derived
from asyncrl_runtime.adapters.scripted import ScriptedEnvironment
from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator, ScriptedSync
from asyncrl_runtime.core.errors import (
    DataFailure,
    FleetExhausted,
    InfraFailure,
    RefitAborted,
    StepBelowFloor,
    TrainerFailure,
)
from support.jobs import MortalLoop, ScriptedStart, job_spec, run_until_killed

SAMPLERS = ("in_order", "weight_fifo", "ready_first", "windowed")
SHARD_FAULTS = ("die", "freeze", "hang", "slow")
MAX_SHARD_FAULTS = 8
"""In one case: the wait before a restart doubles with each."""

FAULTY_STARTS, MOST_STARTS = 6, 12
BOUND_SECONDS = 3600.0
"""Virtual time in which every start has ended by itself."""

AGAIN = (TrainerFailure, RefitAborted, FleetExhausted)
"""Ends by an error after which the same command goes on from the newest checkpoint."""


OVER = ("max_steps", "data_exhausted", "step_below_floor")
"""Ends of the job: the last one where every prompt of a step was dropped, which the settings forbid."""


class Lost(AssertionError):
    """A run that broke one of its promises."""


class ThreadlessLoop(MortalLoop):
    """Does the work of threads itself, some turns later, so that a seed gives the same run every time."""

    TURNS = 3
    """Before the work, and again before its end is known."""

    def run_in_executor(self, executor, func, *args):
        done = self.create_future()

        def after(turns, then):
            self.call_soon(after, turns - 1, then) if turns else then()

        def work():
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - whoever awaits it is told
                after(self.TURNS, lambda error=error: done.done() or done.set_exception(error))
            else:
                after(self.TURNS, lambda: done.done() or done.set_result(result))

        after(self.TURNS, work)
        return done


@dataclass(frozen=True)
class ShardFault:
    at_seconds: float
    what: str
    choice: float
    seconds: float


@dataclass(frozen=True)
class StartPlan:
    """What goes wrong in one start of the job."""

    faults: tuple[ShardFault, ...]
    kill_at_turn: int | None
    stop_after: float | None
    trainer_failures: float
    refit_failures: float


class Case:
    """Everything random about one job: settings, durations, failures and the plan of its starts."""

    def __init__(self, seed):
        self.seed = seed
        rng = random.Random(f"chaos case {seed}")
        self.groups, self.generations = rng.randint(2, 4), rng.randint(2, 3)
        self.epochs, self.prompts = rng.choice([1, 1, 2]), rng.randint(8, 24)
        self.shards = rng.randint(1, 3)
        self.capture = rng.random() < 0.6
        self.filtered = rng.choice([0.0, 0.0, 0.1])
        self.data_failures = rng.choice([0.0, 0.0, 0.02, 0.05])
        self.infra_failures = rng.choice([0.0, 0.05, 0.15])
        self.spread = rng.choice([0.5, 3.0, 15.0])
        self.train_seconds = rng.choice([0.0, 0.5, 3.0])
        self.sync_seconds = rng.choice([0.0, 0.1, 1.0])
        self.start_seconds = rng.choice([0.0, 1.0, 10.0])
        self.spec = self._spec(rng)
        self.starts = [self._start(rng, number) for number in range(rng.randint(1, FAULTY_STARTS))]

    def draw(self, text):
        """A number in [0, 1) that depends on the seed and the text alone."""
        return crc32(f"{self.seed}/{text}".encode()) / 2**32

    @property
    def total(self):
        """Prompts that are taken: whole batches only."""
        return self.prompts // self.groups * self.groups * self.epochs

    @property
    def trains_everything(self):
        """Nothing in it may cost a prompt: every one is trained on."""
        calm = not self.filtered and not self.data_failures
        return calm and self.spec.async_rl.sampler.name != "windowed"

    def _spec(self, rng):
        sampler, window = rng.choice(SAMPLERS), rng.randint(0, 3)
        if sampler != "in_order":
            self.data_failures = 0.0  # the others do not tie prompts to steps, and so may drop none
        knobs = {"name": sampler}
        if sampler == "in_order":
            knobs["maxLookaheadVersions"] = window
        else:
            knobs["maxStalenessVersions"] = window
        if sampler == "windowed":
            knobs["sampleFreshestFirst"] = rng.random() < 0.5
            if rng.random() < 0.3:
                knobs["overSamplingRatio"] = rng.choice([1.0, 1.5])
        more = {"tokenCapture": {"enabled": self.capture}, "loss": {}}
        if sampler == "ready_first":
            more["loss"] = {"useImportanceSamplingCorrection": True}
        if self.capture and rng.random() < 0.7:
            more["rolloutCheckpointing"] = {"snapshotAttemptIntervalSeconds": rng.choice([0.3, 1.0, 5.0])}
        if self.capture:
            more["rolloutRecovery"] = {"defaultGranularity": rng.choice(["sibling", "prompt_group"])}
        in_flight = rng.random() < 0.7
        async_rl = {
            "sampler": knobs,
            "minGroupsForStreamingTrain": rng.randint(1, self.groups),
            "inFlightWeightUpdates": in_flight,
            "drainTimeoutSeconds": None if in_flight else rng.choice([1.0, 30.0]),
            "drainTimeoutAction": rng.choice(["proceed", "abort"]),
            "requeueAbortedPrompts": rng.random() < 0.5,
            "finalPartialStep": "discard",
            "trainStepRetries": rng.choice([0, 2, 10]),
            "maxInflightPrompts": rng.choice([2, 8, 32]),
            "telemetryIntervalSeconds": rng.choice([None, 1.0]),
            "rolloutFailure": self._failure(rng),
            "generationFleetHealth": {
                "enabled": True,
                "probeIntervalSeconds": 1.0,
                "probeTimeoutSeconds": 0.5,
                "unhealthyThreshold": 2 if self.infra_failures < 0.1 else 5,
                "onDeadShard": "restart",
                "maxRestartAttemptsPerShard": 1000,
                "restartBackoffBaseSeconds": 0.1,
                "restartGraceSeconds": 1000.0,
            },
            "refit": {
                "deadlineSeconds": 10.0,
                "unwindGraceSeconds": 5.0,
                "maxRetries": rng.choice([0, 1, 3]),
            },
            "stallWatchdog": {"intervalSeconds": 5.0, "stallTimeoutSeconds": 400.0, "stallAction": "abort"},
        }
        if self.capture and rng.random() < 0.3:
            async_rl["maxInflightGenerations"] = rng.randint(self.generations, 12)
        spec = job_spec(
            groups_per_step=self.groups,
            generations=self.generations,
            async_rl={key: value for key, value in async_rl.items() if value is not None},
            checkpointing={"savePeriod": rng.choice([1, 1, 2, 3]), "keepTopK": rng.choice([1, 2, 4])},
            more={key: value for key, value in more.items() if value},
            maxNumEpochs=self.epochs,
            useDynamicSampling=self.filtered > 0,
        )
        return spec.model_copy(
            update={"generation": spec.generation.model_copy(update={"shards": self.shards})}
        )

    def _failure(self, rng):
        return {
            "maxInfraAttemptsPerPrompt": 100,
            "maxDataAttemptsPerPrompt": rng.choice([1, 2]),
            "backoffBaseSeconds": 0.1,
            "maxBackoffSeconds": 5.0,
            "maxSkippedPrompts": 1000 if self.data_failures else 0,
            "minStepBatchFraction": 0.01,
            "onDroppedPrompt": rng.choice(["shrink", "replace"]),
            "maxReplacementAttempts": rng.randint(1, 2),
            "native": {"generationTimeoutSeconds": 100.0},
        }

    def _start(self, rng, number):
        many = min(rng.randint(0, 4), max(0, MAX_SHARD_FAULTS - 2 * number))
        faults = tuple(
            ShardFault(
                at_seconds=rng.expovariate(1 / 8),
                what=rng.choice(SHARD_FAULTS),
                choice=rng.random(),
                seconds=rng.choice([0.3, 3.0, math.inf]),
            )
            for _ in range(many)
        )
        how = rng.random()
        return StartPlan(
            faults,
            kill_at_turn=int(rng.lognormvariate(5.5, 1.2)) + 1 if how < 0.7 else None,
            stop_after=rng.expovariate(1 / 10) if how > 0.85 else None,
            trainer_failures=rng.choice([0.0, 0.0, 0.05]),
            refit_failures=rng.choice([0.0, 0.0, 0.1]),
        )


@dataclass
class ChaosStart(ScriptedStart):
    """One start of a case, watched and repaired as `asyncrl run` does it."""

    case: Case = None
    plan: StartPlan = StartPlan((), None, None, 0.0, 0.0)
    number: int = 0
    seconds_taken: float = field(default=0.0, init=False)
    tasks_left: tuple = field(default=(), init=False)
    slow: dict = field(default_factory=dict, init=False)
    happened: Counter = field(default_factory=Counter, init=False)

    async def _go(self, parts):
        await parts.start()
        faults = asyncio.ensure_future(self._faults(parts))
        try:
            return await parts.run(lambda: self._prepared(parts))
        finally:
            faults.cancel()
            await asyncio.gather(faults, return_exceptions=True)
            await parts.close()

    async def run(self):
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                return await super().run()
        except StepBelowFloor:
            return "step_below_floor"
        except AGAIN as error:
            self.happened[type(error).__name__] += 1
            self.events.event("failed", at=str(error))
            return "failed"
        except TimeoutError as silence:
            raise Lost(f"it had not ended after {BOUND_SECONDS:g} s of virtual time") from silence
        finally:
            await _settled()
            self.seconds_taken = asyncio.get_running_loop().time()
            here = asyncio.current_task()
            self.tasks_left = tuple(t.get_name() for t in asyncio.all_tasks() if t is not here)

    async def _prepared(self, parts):
        if self.stop_after is not None:
            asyncio.get_running_loop().call_later(self.stop_after, parts.ask_to_stop)
        await parts.refit.run()

    async def _faults(self, parts):
        began = asyncio.get_running_loop().time()
        for fault in sorted(self.plan.faults, key=lambda fault: fault.at_seconds):
            await asyncio.sleep(max(0.0, began + fault.at_seconds - asyncio.get_running_loop().time()))
            self._happen(fault, parts.shards[int(fault.choice * len(parts.shards))])

    def _happen(self, fault, shard):
        """Let it happen, unless the shard is away; what ends by itself is timed on the same engine."""
        if not shard.alive:
            return
        self.happened[fault.what] += 1
        if fault.what == "die":
            shard.die()
            return
        if fault.what == "slow":
            self.slow[shard.index] = 5.0
            return
        name = "frozen" if fault.what == "freeze" else "hung"
        setattr(shard, name, True)
        engine = shard.starts
        if fault.seconds < math.inf:

            def end():
                if shard.starts == engine:
                    setattr(shard, name, False)

            asyncio.get_running_loop().call_later(fault.seconds, end)

    # ── scripts ─────────────────────────────────────────────────────────────────────────────────────

    def _connect(self, store):
        parts = super()._connect(store)
        parts.trainer.failing = self._trainer_failing
        return parts

    def _shards(self):
        case = self.case

        def seconds(request, index):
            return (0.1 + case.spread * case.draw(request.request_id) ** 3) * self.slow.get(index, 1.0)

        return [
            ScriptedGenerator(
                index=i,
                seconds=lambda request, i=i: seconds(request, i),
                failing=self._failing,
                start_seconds=case.start_seconds,
            )
            for i in range(case.shards)
        ]

    def _sync(self, shards):
        transfers = iter(range(10**9))

        def failing(version):
            drawn = self.case.draw(f"refit {self.number} {next(transfers)}")
            return drawn < self.plan.refit_failures

        return ScriptedSync(
            shards=shards,
            seconds=lambda version: self.case.sync_seconds,
            failing=failing,
            deadline_seconds=self.spec.async_rl.refit.deadline_seconds,
        )

    def _environment(self):
        def reward(episode):
            group, _, sibling = episode.episode_id.rpartition("_g")
            flat = self.case.draw(f"flat {group.split('_')[0]}") < self.case.filtered
            return 1.0 if flat else float(sibling == "0")

        return ScriptedEnvironment(reward=reward)

    def _trainer_failing(self, call, number):
        return self.case.draw(f"{call} {self.number} {number}") < self.plan.trainer_failures

    def _failing(self, request):
        prompt = request.request_id.split("_")[0]
        if self.case.draw(f"bad {prompt}") < self.case.data_failures:
            return DataFailure("bad")
        if self.case.draw(f"lost {self.number} {request.request_id}") < self.case.infra_failures:
            return InfraFailure("lost")
        return None


@dataclass
class Outcome:
    """A case that went to its end."""

    start: ChaosStart
    """The last one."""

    end: str
    starts: int
    resumed: int
    killed: int
    happened: Counter
    seconds: float
    """Of virtual time, over all starts."""

    longest_seconds: float
    """Of one start."""


def run_case(case, folder):
    """Start it until it is over. Raises Lost, or whatever ended a start that should have gone on."""
    happened, seconds, longest, resumed, killed = Counter(), 0.0, 0.0, 0, 0
    for number in range(MOST_STARTS):
        calm = StartPlan((), None, None, 0.0, 0.0)
        plan = case.starts[number] if number < len(case.starts) else calm
        start = ChaosStart(
            case.spec,
            folder,
            prompts=case.prompts,
            train_seconds=lambda step: case.train_seconds * case.draw(f"train {step}"),
            finished=_balanced,
            stop_after=plan.stop_after,
            case=case,
            plan=plan,
            number=number,
        )
        end = run_until_killed(start, plan.kill_at_turn or 10**9, ThreadlessLoop)
        happened += start.happened
        seconds, longest = seconds + start.seconds_taken, max(longest, start.seconds_taken)
        resumed += start.found is not None
        killed += end is None
        if end in OVER:
            return Outcome(start, end, number + 1, resumed, killed, happened, seconds, longest)
    raise Lost(f"it was not over after {MOST_STARTS} starts, the last ones without faults")


def check(case, outcome):
    """Raise Lost with the first promise that the ended run broke."""
    start, parts = outcome.start, outcome.start.parts
    counts = start.counts()
    groups = [row.split("_")[0] for row in parts.trainer.trained[:: case.generations]]
    usage = parts.plane.usage()
    if outcome.end == "step_below_floor":
        if not counts.balanced:
            raise Lost(f"the ledger does not balance ({counts})")
        return
    promises = {
        "a prompt was trained on twice": len(groups) == len(set(groups)),
        "the ledger counts other groups than were trained": counts.trained == len(groups),
        "prompts were never taken": counts.admitted == case.total,
        "the ledger does not balance": counts.balanced,
        "a prompt is in no hands": counts.live == len(parts.ledger.reserve),
        "a prompt was not trained on": not case.trains_everything or len(groups) == case.total,
        "rows are left in the data plane": usage.keys_outstanding == usage.bytes_outstanding == 0,
        "room of the buffer is not given back": parts.buffer.free == parts.buffer.capacity,
        "an attempt is registered in flight": not parts.rollout.inflight,
        "a group holds a permit": parts.rollout.running == 0,
        "the barrier is held": parts.barrier._mutating == 0 and not parts.barrier._cutting,
        "a request runs in a shard": not any(shard.running for shard in parts.shards),
        "the fleet counts requests that are over": sum(parts.fleet.outstanding) == 0,
        f"tasks are left: {', '.join(start.tasks_left)}": not start.tasks_left,
    }
    broken = [promise for promise, kept in promises.items() if not kept]
    if broken:
        raise Lost(f"{'; '.join(broken)} ({counts})")


def _balanced(parts, step, metrics):
    parts.ledger.check(buffered=parts.buffer.ready, claimed=0)
    buffer = parts.buffer
    assert buffer.free + buffer.launched + buffer.ready - buffer.restore_debt == buffer.capacity


async def _settled():
    """Let what was cancelled end."""
    for _ in range(20):
        await asyncio.sleep(0)


@contextmanager
def fast_disk():
    """Nothing here cuts the power."""
    real, os.fsync = os.fsync, lambda descriptor: None
    try:
        yield
    finally:
        os.fsync = real


def facts_of(case):
    """For a message about a case that broke: what was random about it."""
    spec = case.spec.async_rl
    facts = Derived(case.spec)
    return (
        f"{facts.sampler}, {case.groups} groups x {case.generations}, {case.prompts} prompts, "
        f"{case.epochs} epochs, {case.shards} shards, chunks of {facts.min_groups}, capture {case.capture}, "
        f"in flight {spec.in_flight_weight_updates}, filtered {case.filtered}, data {case.data_failures}, "
        f"drops {spec.rollout_failure.on_dropped_prompt}"
    )
