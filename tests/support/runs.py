"""A whole run of scripted engines: real controller parts, loop time, no I/O but checkpoints where asked."""

import asyncio
from dataclasses import dataclass, field

from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.scripted import (
    ScriptedAdvantages,
    ScriptedEnvironment,
    ScriptedSource,
    ScriptedTokenizer,
    ScriptedTrainer,
)
from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator, ScriptedSync
from asyncrl_runtime.core.dataloader import DataCursor
from asyncrl_runtime.core.drops import DropPolicy, FailureBudgets, StepAccounts
from asyncrl_runtime.core.ledger import PromptLedger
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.retention import Retention
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.generator import Sampling
from asyncrl_runtime.pumps.after_step import StepEnd
from asyncrl_runtime.pumps.capture import CaptureSettings, TokenCapture
from asyncrl_runtime.pumps.checkpoint import Checkpointer, SaveSettings
from asyncrl_runtime.pumps.commit import Committer
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.group import GroupRunner, RetryPolicy
from asyncrl_runtime.pumps.refit import Refit, RefitSettings
from asyncrl_runtime.pumps.rollout import RolloutPump
from asyncrl_runtime.pumps.rollouts import RolloutManager
from asyncrl_runtime.pumps.supervisor import supervise
from asyncrl_runtime.pumps.train import TrainProgress, TrainPump, TrainSettings
from asyncrl_runtime.pumps.transfer import TransferSettings, WeightTransfer
from asyncrl_runtime.pumps.validation import ValidationSettings, Validator
from asyncrl_runtime.pumps.wakeup import Barrier, RolloutGate, Wakeup


@dataclass
class Events:
    seen: list = field(default_factory=list)

    def event(self, kind, **facts):
        self.seen.append((kind, facts))

    def of(self, kind):
        return [facts for name, facts in self.seen if name == kind]


@dataclass
class Records:
    steps: list = field(default_factory=list)

    def log(self, record):
        if record.axis == "step":
            self.steps.append(dict(record.values))

    def close(self):
        pass


@dataclass
class Script:
    """What a test chooses; the rest is the plain case: 1 s generation, free training, in_order 1."""

    prompts: int = 8
    groups_per_step: int = 2
    generations: int = 2
    max_epochs: int | None = 1
    max_steps: int = 1000
    shuffle: bool = False
    sampler: object = lambda buffer: InOrder(buffer, window=1)
    capacity: int = 64
    smallest_chunk: int | None = None
    max_inflight: int = 64
    generation_seconds: object = lambda request: 1.0
    failing: object = lambda request: None
    train_seconds: object = lambda step: 0.0
    trainer_failing: object = lambda call, number: False
    sync_seconds: object = lambda version: 0.0
    reward: object = lambda episode: 1.0
    shards: int = 2
    final_partial_step: str = "error"
    fraction: float = 0.9
    requeue_aborted: bool = False
    step_retries: int = 0
    epochs: int = 1
    minibatches: int = 1
    in_flight: bool = True
    drain_timeout: float | None = None
    drain_action: str = "proceed"
    validation_prompts: int | None = None
    validation_period: int = 0
    stop_at: float | None = None
    discard_group: object = lambda record: False
    checkpoints: object = None
    save_period: int = 1
    generation_timeout: float | None = None
    infra_attempts: int = 5
    data_attempts: int = 2
    max_skipped: int = 0
    max_consecutive: int = 0
    capture: CaptureSettings | None = None
    min_valid_row_fraction: float = 0.0
    drops: DropPolicy = field(default_factory=DropPolicy)


class Run:
    """Everything of a run, wired; `await run.go()` runs it."""

    def __init__(self, script):
        s = self.script = script
        self.events, self.records = Events(), Records()
        self.plane = InProcessPlane(1_000_000)
        self.buffer = ReplayBuffer(s.capacity)
        self.sampler = s.sampler(self.buffer)
        self.ledger, self.versions, self.progress = PromptLedger(), Versions(), TrainProgress()
        self.accounts = StepAccounts()
        self.budgets = FailureBudgets(max_skipped=s.max_skipped, max_consecutive=s.max_consecutive)
        self.gate, self.barrier, self.changed = RolloutGate(), Barrier(), Wakeup()
        self.shards = [
            ScriptedGenerator(index=i, seconds=s.generation_seconds, failing=s.failing)
            for i in range(s.shards)
        ]
        self.trainer = ScriptedTrainer(plane=self.plane, seconds=s.train_seconds, failing=s.trainer_failing)
        self.sync = ScriptedSync(shards=self.shards, seconds=s.sync_seconds)
        self.source = ScriptedSource(length=s.prompts)
        self.fleet = Fleet(shards=self.shards)
        self.stop = False
        self._wire()

    def _wire(self):
        s = self.script
        rollouts = RolloutManager(
            fleet=self.fleet,
            environment=ScriptedEnvironment(reward=s.reward),
            tokenizer=ScriptedTokenizer(),
            sampling=Sampling(),
            max_total_tokens=64,
            max_turns=1,
            generation_timeout_seconds=s.generation_timeout,
            environment_timeout_seconds=None,
            run_seed=1,
        )
        committer = Committer(
            plane=self.plane,
            buffer=self.buffer,
            generations=s.generations,
            overlong_filtering=False,
            mask_flagged=True,
        )
        self.groups = GroupRunner(
            source=self.source,
            ledger=self.ledger,
            buffer=self.buffer,
            sampler=self.sampler,
            versions=self.versions,
            rollouts=rollouts,
            committer=committer,
            gate=self.gate,
            barrier=self.barrier,
            observer=self.events,
            retry=RetryPolicy(
                max_infra_attempts=s.infra_attempts,
                max_data_attempts=s.data_attempts,
                backoff_base_seconds=1.0,
                max_backoff_seconds=30.0,
            ),
            accounts=self.accounts,
            budgets=self.budgets,
            drops=s.drops,
            generations=s.generations,
            requeue_aborted=s.requeue_aborted,
            discard_group=s.discard_group,
            min_valid_row_fraction=s.min_valid_row_fraction,
            capture=s.capture
            and TokenCapture(
                settings=s.capture,
                plane=self.plane,
                ledger=self.ledger,
                sampler=self.sampler,
                versions=self.versions,
                gate=self.gate,
                barrier=self.barrier,
                generations=s.generations,
            ),
        )
        self.rollout = RolloutPump(
            source=self.source,
            cursor=DataCursor(s.prompts, s.groups_per_step, s.shuffle, 1, s.max_epochs),
            ledger=self.ledger,
            buffer=self.buffer,
            sampler=self.sampler,
            versions=self.versions,
            barrier=self.barrier,
            changed=self.changed,
            observer=self.events,
            groups=self.groups,
            groups_per_step=s.groups_per_step,
            max_inflight_prompts=s.max_inflight,
        )
        self.refit = Refit(
            transfer=WeightTransfer(
                sync=self.sync,
                fleet=self.fleet,
                observer=self.events,
                settings=TransferSettings(
                    deadline_seconds=None,
                    unwind_grace_seconds=60.0,
                    max_retries=1,
                    recompute_kv_cache=False,
                    ping_seconds=2.0,
                ),
            ),
            fleet=self.fleet,
            rollout=self.rollout,
            versions=self.versions,
            gate=self.gate,
            observer=self.events,
            settings=RefitSettings(
                in_flight=s.in_flight,
                drain_timeout_seconds=s.drain_timeout,
                drain_timeout_action=s.drain_action,
                abort_grace_seconds=30.0,
            ),
        )
        self.validator = Validator(
            source=ScriptedSource(length=s.validation_prompts) if s.validation_prompts else None,
            rollouts=rollouts,
            observer=self.events,
            settings=ValidationSettings(
                period_steps=s.validation_period,
                start_at=-1,
                at_start=False,
                at_end=False,
                batch_size=4,
                max_samples=None,
                generations=2,
                sampling=Sampling(temperature=0.0),
                failure_action="warn",
                stop_at_metric="accuracy" if s.stop_at is not None else None,
                stop_at_threshold=s.stop_at,
                higher_is_better=True,
            ),
        )
        self._wire_end()

    def _wire_end(self):
        s = self.script
        root = s.checkpoints
        store = DirectoryStore(root) if root else None
        if store:
            store.claim()
            store.sweep()
        self.store = store
        self.checkpointer = Checkpointer(
            store=store,
            settings=SaveSettings(
                enabled=store is not None,
                save_period=s.save_period,
                ft_save_period=None,
                save_optimizer=True,
                save_data_plane=True,
                must_save_by_seconds=None,
                metric_name=None,
                barrier_timeout_seconds=120.0,
                timeout_seconds=600.0,
            ),
            retention=Retention(
                save_period=1, keep_top_k=3, by_metric=False, higher_is_better=True, ft_keep_latest_k=None
            ),
            trainer=self.trainer,
            plane=self.plane,
            barrier=self.barrier,
            rollout=self.rollout,
            buffer=self.buffer,
            ledger=self.ledger,
            sampler=self.sampler,
            versions=self.versions,
            progress=self.progress,
            observer=self.events,
            groups_per_step=s.groups_per_step,
            generations=s.generations,
            dataset={"name": "scripted", "length": s.prompts, "fingerprint": self.source.fingerprint},
            config_yaml="{}\n",
            write_tokenizer=lambda path: ScriptedTokenizer().save(str(path)),
            claims=lambda: self.train.claims,
            began=0.0,
        )
        end = StepEnd(
            refit=self.refit,
            validator=self.validator,
            checkpointer=self.checkpointer,
            gate=self.gate,
            versions=self.versions,
            progress=self.progress,
            rollout=self.rollout,
            plane=self.plane,
            metrics=self.records,
            wall_clock=lambda: 0.0,
            num_gpus=0,
            finished=lambda step, metrics: None,
        )
        self.end = end
        self.train = TrainPump(
            settings=TrainSettings(
                max_steps=s.max_steps,
                groups_per_step=s.groups_per_step,
                smallest_chunk=s.smallest_chunk or s.groups_per_step,
                policy_epochs=s.epochs,
                policy_minibatches=s.minibatches,
                minibatch_seed=1,
                step_retries=s.step_retries,
                final_partial_step=s.final_partial_step,
                min_step_batch_fraction=s.fraction,
                logprob_models=frozenset({"policy"}),
            ),
            progress=self.progress,
            sampler=self.sampler,
            buffer=self.buffer,
            ledger=self.ledger,
            accounts=self.accounts,
            versions=self.versions,
            plane=self.plane,
            trainer=self.trainer,
            advantages=ScriptedAdvantages(),
            rollout=self.rollout,
            gate=self.gate,
            barrier=self.barrier,
            changed=self.changed,
            observer=self.events,
            after_step=end,
            final_save=self._final_save,
            stopping=lambda: self.stop,
        )

    async def _final_save(self):
        if self.checkpointer.due(last=True):
            await self.checkpointer.save()

    async def go(self):
        """Initial sync, then both pumps; how the run ended."""
        await self.refit.run()
        return await supervise(self.train.run(), {"rollout": self.rollout.run()})

    def ask_to_stop(self):
        self.stop = True
        self.changed.notify()

    @property
    def balanced(self):
        return self.ledger.counts(buffered=self.buffer.ready, claimed=len(self.train.claims)).balanced

    def trained_prompts(self):
        """Positions trained on, one per group, in order."""
        rows = self.trainer.trained[:: self.script.generations]
        return [int(row.split("_")[0].split("p")[1]) for row in rows]


async def run_script(**choices):
    run = Run(Script(**choices))
    run.outcome = await asyncio.wait_for(run.go(), 1e7)
    return run
