"""One simulated run: the real controller, pumps and samplers over engines that only take time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import gettempdir
from typing import cast

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.scripted import ScriptedEnvironment, ScriptedSource, ScriptedTokenizer
from asyncrl_runtime.adapters.scripted_fleet import ScriptedSync
from asyncrl_runtime.app.build import Outside, Parts, clamped_steps
from asyncrl_runtime.app.samplers import build_sampler
from asyncrl_runtime.app.simulate.durations import Distribution, Series
from asyncrl_runtime.app.simulate.engines import (
    GroupRollouts,
    RowlessCommitter,
    RowlessPlane,
    SimulatedAdvantages,
    SimulatedTrainer,
    siblings,
)
from asyncrl_runtime.app.simulate.faults import Scenario
from asyncrl_runtime.app.simulate.script import RolloutScript
from asyncrl_runtime.app.simulate.shards import FaultPump, SimulatedShard, StallGuard, WatchedRollouts
from asyncrl_runtime.app.simulate.work import Totals, Work
from asyncrl_runtime.app.wiring import fleet_pumps
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.ports.metrics import MetricRecord
from asyncrl_runtime.pumps.rollouts import RolloutManager
from asyncrl_runtime.pumps.step import OpenStep
from asyncrl_runtime.pumps.supervisor import supervise
from asyncrl_runtime.pumps.train import RunEnd

TRAIN, REFIT, TRAIN_FAULTS, REFIT_FAULTS = 2, 3, 4, 5
"""Streams of random numbers beside those of the rollouts."""

UNIFORM = Distribution("", lambda rng, shape: rng.random(shape))

PATIENCE = 10
"""A run has stalled when nothing moved for so many times what takes longest."""

ENDLESS_BATCHES = 64
"""Dispatch batches of an epoch where the data do not end."""

YOUNG_OBJECTS = 1_000_000
"""Allocations between two collections: a run holds many small objects and makes few cycles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """What the engines take."""

    generation: Distribution
    """Of a completion, all of its turns together."""

    training: Distribution
    """Of an RL step."""

    refit: Distribution


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedParts(Parts):
    """The parts of a run, with the rollouts of a simulation."""

    script: RolloutScript
    work: Work
    by_request: bool
    rolling: GroupRollouts | WatchedRollouts = field(init=False)

    def __post_init__(self) -> None:
        Parts.__post_init__(self)
        groups = self.rollout.groups
        self.rolling = self._rolling(groups.rollouts)
        self.work.in_progress = self.rolling.in_progress
        groups.rollouts = cast(RolloutManager, self.rolling)
        groups.committer = RowlessCommitter.beside(groups.committer)

    def _rolling(self, manager: RolloutManager) -> GroupRollouts | WatchedRollouts:
        if not self.by_request:
            return GroupRollouts(
                script=self.script,
                work=self.work,
                generation_timeout_seconds=manager.generation_timeout_seconds,
                completions=siblings(self.script.generations),
            )
        shards = cast(list[SimulatedShard], self.shards)
        watched = WatchedRollouts(manager=manager, script=self.script, work=self.work, shards=shards)
        for shard in shards:
            shard.ended_request = watched.ended
        return watched


@dataclass(slots=True, kw_only=True, eq=False)
class Simulation:
    """One simulated run of a resolved spec; checkpoints and validation are left out."""

    spec: JobSpec
    durations: Durations
    scenario: Scenario = field(default_factory=Scenario)
    seed: int = 0
    prompts: int | None = None
    """Size of the data set. None: the data do not end."""

    warm_up_steps: int = 0
    """Steps before figures count."""

    by_request: bool | None = None
    """Serve request by request. None: only if the scenario needs it."""

    finished: Callable[[OpenStep, Mapping[str, float]], None] = lambda step, metrics: None
    """Told about every step."""

    work: Work = field(default_factory=Work, init=False)
    _warm: Callable[[], Totals] | None = field(default=None, init=False)
    """Sums at the end of the warm-up; None within it."""

    _last: Callable[[], Totals] = field(default=Totals, init=False)
    """Sums at the end of the last step."""

    parts: SimulatedParts = field(init=False)

    async def run(self) -> RunEnd:
        """From the first prompt to the end, on the running loop's clock."""
        parts = self.parts = self._connect()
        beside: dict[str, Coroutine[None, None, object]] = {"rollout": parts.rollout.run()}
        if self.by_request_now:
            faults = {"faults": self._faults(parts).run(), "stall": self._guard(parts).run()}
            beside = {**fleet_pumps(parts), **faults, **beside}
        with calm_collector():
            await parts.refit.run()
            return await supervise(parts.train.run(), beside)

    def _faults(self, parts: SimulatedParts) -> FaultPump:
        shards = cast(list[SimulatedShard], parts.shards)
        return FaultPump(shards=shards, faults=self.scenario.shards, seed=self.seed)

    def _guard(self, parts: SimulatedParts) -> StallGuard:
        """Waits longer than anything that ends takes."""
        scenario, stall = self.scenario, self.spec.async_rl.stall_watchdog.stall_timeout_seconds

        def bound() -> float:
            longest = parts.script.longest_seconds * scenario.slowest_factor + scenario.longest_fault_seconds
            return max(stall, PATIENCE * longest)

        return StallGuard(
            moved=lambda: parts.rollout.counters.committed + parts.progress.steps, bound_seconds=bound
        )

    @property
    def by_request_now(self) -> bool:
        """Whether requests are served one by one."""
        return self.scenario.touches_shards if self.by_request is None else self.by_request

    @property
    def measured(self) -> Totals:
        """Sums from the end of the warm-up, if there is one, to that of the last step."""
        if self.warm_up_steps == 0:
            return self._last()
        return Totals() if self._warm is None else self._last().minus(self._warm())

    # ── what happens ────────────────────────────────────────────────────────────────────────────────

    def event(self, kind: str, **facts: object) -> None:
        """Keep the account of groups that are thrown away or given up."""
        if kind == "group_evicted":
            self.work.discarded(str(facts["group"]))
        elif kind == "prompt_dropped":
            self.work.totals.dropped_groups += 1

    def log(self, record: MetricRecord) -> None:
        """Metrics come with the end of a step."""

    def close(self) -> None:
        """Nothing is open."""

    def _step_ended(self, step: OpenStep, metrics: Mapping[str, float]) -> None:
        totals = self.work.totals
        totals.steps += 1
        totals.idle_seconds += metrics["timing/train/exposed_generation"]
        totals.step_seconds += metrics["timing/train/total_step_time"]
        for group in step.trained:
            self.work.trained(group.group_id, step.version - group.start_weight)
        self._last = self.work.reading(asyncio.get_running_loop().time())
        if totals.steps == self.warm_up_steps:
            self._warm = self._last
            self.work.lags.clear()
        self.finished(step, metrics)

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────

    def _connect(self) -> SimulatedParts:
        spec, facts = self._spec(), Derived(self.spec)
        script = RolloutScript(
            self.durations.generation, self.scenario, facts.num_generations_per_prompt, self.seed
        )
        shards = [
            SimulatedShard(index=index, script=script, start_seconds=self.scenario.restart_seconds)
            for index in range(spec.generation.shards)
        ]
        plane, buffer = RowlessPlane(), ReplayBuffer(facts.buffer_size)
        prompts = self.prompts or ENDLESS_BATCHES * facts.num_prompts_per_step
        return SimulatedParts(
            spec=spec,
            outside=self._outside(prompts),
            plane=plane,
            buffer=buffer,
            sampler=build_sampler(spec, buffer),
            shards=list(shards),
            trainer=self._trainer(plane, facts),
            sync=self._sync(shards),
            advantages=SimulatedAdvantages(),
            max_steps=clamped_steps(spec, prompts),
            script=script,
            work=self.work,
            by_request=self.by_request_now,
        )

    def _spec(self) -> JobSpec:
        """Without checkpoints and token capture, prompts in order; the data do not end unless given a size.

        Where no shard can fail, none is probed.
        """
        spec, facts = self.spec, Derived(self.spec)
        changes: dict[str, object] = {
            "checkpointing": spec.checkpointing.model_copy(update={"enabled": False}),
            "data": spec.data.model_copy(update={"shuffle": False}),
            "token_capture": spec.token_capture.model_copy(update={"enabled": False}),
        }
        if not self.by_request_now:
            health = spec.async_rl.generation_fleet_health.model_copy(update={"enabled": False})
            changes["async_rl"] = spec.async_rl.model_copy(update={"generation_fleet_health": health})
        if self.prompts is None:
            block = facts.valid_algorithm.model_copy(update={"max_num_epochs": None})
            name = "ppo" if facts.is_ppo else "grpo"
            changes["algorithm"] = spec.algorithm.model_copy(update={name: block})
        return spec.model_copy(update=changes)

    def _outside(self, prompts: int) -> Outside:
        return Outside(
            source=ScriptedSource(length=prompts),
            validation=None,
            tokenizer=ScriptedTokenizer(),
            environment=ScriptedEnvironment(reward=lambda episode: float(episode.episode_id[-2:] != "g0")),
            observer=self,
            sink=self,
            store=DirectoryStore(Path(gettempdir())),
            config_yaml="",
            began=asyncio.get_running_loop().time(),
            finished_step=self._step_ended,
        )

    def _trainer(self, plane: RowlessPlane, facts: Derived) -> SimulatedTrainer:
        faults = self._series(UNIFORM, TRAIN_FAULTS)
        grpo = self.spec.algorithm.grpo
        return SimulatedTrainer(
            plane=plane,
            failing=lambda call, number: (
                call == "finish" and faults(number) < self.scenario.train_step_probability
            ),
            step_seconds=self._series(self.durations.training, TRAIN),
            version=lambda: self.parts.versions.trainer,
            groups_per_step=facts.num_prompts_per_step * (grpo.policy_epochs_per_step if grpo else 1),
        )

    def _sync(self, shards: Sequence[SimulatedShard]) -> ScriptedSync:
        faults, transfers = self._series(UNIFORM, REFIT_FAULTS), count()
        return ScriptedSync(
            shards=shards,
            seconds=self._series(self.durations.refit, REFIT),
            failing=lambda version: faults(next(transfers)) < self.scenario.refit_probability,
            deadline_seconds=self.spec.async_rl.refit.deadline_seconds,
        )

    def _series(self, distribution: Distribution, stream: int) -> Series:
        return Series(distribution, (self.seed, stream))


@contextmanager
def calm_collector() -> Iterator[None]:
    """Look for cycles rarely, and not among what was there before."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
