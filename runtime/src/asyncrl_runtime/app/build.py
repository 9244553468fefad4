"""From a resolved job to its parts: the one place that knows which adapter stands behind which port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl_api.derived import Derived
from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.torch.entry import torch_server
from asyncrl_runtime.adapters.workers import ForkHosts, Hosts
from asyncrl_runtime.app import wiring
from asyncrl_runtime.app.backends import (
    advantage_stage,
    data_plane,
    generators,
    host_for,
    trainer,
    weight_sync,
)
from asyncrl_runtime.app.samplers import build_sampler
from asyncrl_runtime.core.drops import FailureBudgets, StepAccounts
from asyncrl_runtime.core.ledger import PromptLedger
from asyncrl_runtime.core.records import GroupMeta
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.samplers.base import Sampler
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.advantage import AdvantageStage
from asyncrl_runtime.ports.data_plane import DataPlane
from asyncrl_runtime.ports.environment import Environment
from asyncrl_runtime.ports.generator import Generator
from asyncrl_runtime.ports.metrics import MetricSink
from asyncrl_runtime.ports.prompts import PromptSource, Tokenizer
from asyncrl_runtime.ports.trainer import Trainer
from asyncrl_runtime.ports.weight_sync import WeightSync
from asyncrl_runtime.pumps.after_step import StepEnd
from asyncrl_runtime.pumps.busy import Busy
from asyncrl_runtime.pumps.checkpoint import Checkpointer
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.observer import Observer
from asyncrl_runtime.pumps.probe import ProbePump, RestartPump
from asyncrl_runtime.pumps.refit import Refit
from asyncrl_runtime.pumps.rollout import RolloutPump
from asyncrl_runtime.pumps.snapshot import SnapshotPump
from asyncrl_runtime.pumps.step import OpenStep
from asyncrl_runtime.pumps.supervisor import supervise
from asyncrl_runtime.pumps.telemetry import TelemetryPump
from asyncrl_runtime.pumps.train import RunEnd, TrainProgress, TrainPump
from asyncrl_runtime.pumps.validation import Validator
from asyncrl_runtime.pumps.wakeup import Barrier, RolloutGate, Wakeup
from asyncrl_runtime.pumps.watchdog import Watchdog


@dataclass(slots=True, kw_only=True)
class Outside:
    """What a run meets: data, tokenizer, environment, where it writes."""

    source: PromptSource
    validation: PromptSource | None
    tokenizer: Tokenizer
    environment: Environment
    observer: Observer
    sink: MetricSink
    store: DirectoryStore
    config_yaml: str
    began: float
    """Loop time of the start."""

    dump_stacks: Callable[[str], str] = lambda reason: ""
    """Writes where every task and thread stands, given the reason; the path of the file."""

    tallies: Callable[[Sequence[GroupMeta]], Mapping[str, object]] = lambda unsettled: {}
    """Sums for reports, as a checkpoint stores them."""

    finished_step: Callable[[OpenStep, Mapping[str, float]], None]
    recent_events: Callable[[], Sequence[Mapping[str, object]]] = tuple
    """Newest last, for whoever shows the run."""


@dataclass(slots=True, kw_only=True, eq=False)
class Parts:
    """Everything of a run, connected and not yet started."""

    spec: JobSpec
    outside: Outside
    plane: DataPlane
    buffer: ReplayBuffer
    sampler: Sampler
    shards: list[Generator]
    trainer: Trainer
    sync: WeightSync
    advantages: AdvantageStage
    max_steps: int
    hosts: Hosts = field(default_factory=lambda: ForkHosts(torch_server))
    ledger: PromptLedger = field(default_factory=PromptLedger)
    accounts: StepAccounts = field(default_factory=StepAccounts)
    budgets: FailureBudgets = field(init=False)
    busy: Busy = field(init=False)
    versions: Versions = field(default_factory=Versions)
    progress: TrainProgress = field(default_factory=TrainProgress)
    gate: RolloutGate = field(default_factory=RolloutGate)
    barrier: Barrier = field(default_factory=Barrier)
    changed: Wakeup = field(default_factory=Wakeup)
    stopping: bool = False
    fleet: Fleet = field(init=False)
    rollout: RolloutPump = field(init=False)
    refit: Refit = field(init=False)
    validator: Validator = field(init=False)
    checkpointer: Checkpointer = field(init=False)
    end: StepEnd = field(init=False)
    train: TrainPump = field(init=False)
    snapshots: SnapshotPump = field(init=False)
    telemetry: TelemetryPump = field(init=False)
    watchdog: Watchdog = field(init=False)
    probe: ProbePump | None = field(default=None, init=False)
    restarts: RestartPump | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        failure = self.spec.async_rl.rollout_failure
        self.budgets = FailureBudgets(
            max_skipped=failure.max_skipped_prompts,
            max_consecutive=failure.max_consecutive_dropped_prompts,
        )
        self.busy = Busy(self.spec.async_rl.stall_watchdog.stall_timeout_seconds)
        self.fleet = wiring.fleet(self)
        self.rollout = wiring.rollout_pump(self)
        self.refit = wiring.refit(self)
        self.validator = wiring.validator(self)
        self.checkpointer = wiring.checkpointer(self)
        self.end = wiring.step_end(self)
        self.train = wiring.train_pump(self)
        self.snapshots = wiring.snapshot_pump(self)
        self.telemetry = wiring.telemetry_pump(self)
        self.watchdog = wiring.watchdog(self)

    def ask_to_stop(self) -> None:
        """End after the step, or at once where it waits for groups."""
        self.stopping = True
        self.changed.notify()

    @property
    def facts(self) -> Derived:
        """What the spec implies."""
        return Derived(self.spec)

    async def final_save(self) -> None:
        """Save once more where the end became visible after the last step was saved (SC-5.73, 9.58)."""
        if self.checkpointer.due(last=True):
            await self.checkpointer.save(validation=self.validator.latest)
        elif self.snapshots.interval_seconds is not None:
            await self.snapshots.attempt(force=True)

    async def run(self, prepare: Callable[[], Awaitable[None]]) -> RunEnd:
        """Prepare, then both pumps; watched all the while, until one part ends the run (SC-5.4, 5.5)."""
        ready = asyncio.Event()

        async def train() -> RunEnd:
            await prepare()
            ready.set()
            return await self.train.run()

        async def rollout() -> None:
            await ready.wait()
            await self.rollout.run()

        async def snapshots() -> None:
            await ready.wait()
            await self.snapshots.run()

        beside = {
            **wiring.fleet_pumps(self),
            "watchdog": self.watchdog.run(),
            "rollout": rollout(),
            "snapshots": snapshots(),
            "telemetry": self.telemetry.run(),
        }
        return await supervise(train(), beside)

    # ── life ────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Bring data plane, trainer, shards and the workers of the advantage stage up, side by side."""
        await self.hosts.start()
        starting = (shard.start() for shard in self.shards)
        await asyncio.gather(self.plane.start(), self.trainer.start(), self.advantages.start(), *starting)
        await self.sync.init_communicator()

    async def close(self) -> None:
        """Stop everything that was started; every part is closed whatever the others do (SC-5.7)."""
        closing = (
            self.sync.shutdown(),
            self.advantages.close(),
            self.outside.environment.close(),
            self.trainer.close(),
            *(shard.close() for shard in self.shards),
            self.plane.close(),
        )
        results = await asyncio.gather(*closing, return_exceptions=True)
        results += await asyncio.gather(self.hosts.close(), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                self.outside.observer.event("close_failed", reason=str(result))


def clamped_steps(spec: JobSpec, num_prompts: int) -> int:
    """RL steps of the run: what was asked for, within what the data allows (SC-5.80)."""
    algorithm, facts = Derived(spec).valid_algorithm, Derived(spec)
    if algorithm.max_num_epochs is None:
        return algorithm.max_num_steps
    return max(
        1,
        min(algorithm.max_num_steps, algorithm.max_num_epochs * (num_prompts // facts.num_prompts_per_step)),
    )


def connect(job: AsyncRLJob, outside: Outside) -> Parts:
    """Build every part of a run; nothing is started."""
    spec, facts = job.spec, Derived(job.spec)
    hosts = host_for(spec)
    plane = data_plane(spec, hosts)
    buffer = ReplayBuffer(facts.buffer_size)
    max_steps = clamped_steps(spec, len(outside.source))
    total_updates = max_steps * facts.num_policy_updates
    learner = trainer(spec, plane, outside.tokenizer, hosts, total_updates=total_updates)
    shards = generators(spec, outside.tokenizer, hosts)
    return Parts(
        spec=spec,
        outside=outside,
        plane=plane,
        buffer=buffer,
        sampler=build_sampler(spec, buffer),
        shards=shards,
        trainer=learner,
        sync=weight_sync(spec, learner, shards, directory=outside.store.root / "refit"),
        advantages=advantage_stage(spec),
        max_steps=max_steps,
        hosts=hosts,
    )


def run_folder(job: AsyncRLJob, output: Path | None, *, fresh: bool) -> Path:
    """`runs/<name>`, or the folder that was asked for; with `fresh` the next free one beside it."""
    folder = output or Path("runs") / job.metadata.name
    if not fresh or not folder.exists():
        return folder
    number = 2
    while (candidate := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return candidate
