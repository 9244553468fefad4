"""From a resolved job to its parts: the one place that knows which adapter stands behind which port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from asyncrl_api.derived import Derived
from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.resolve import resolved
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.app.backends import advantage_stage, generators, shard_sampling, trainer, weight_sync
from asyncrl_runtime.app.samplers import build_sampler, over_sampling_cap, zero_spread
from asyncrl_runtime.core.dataloader import DataCursor
from asyncrl_runtime.core.ledger import PromptLedger
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.retention import Retention
from asyncrl_runtime.core.samplers.base import Sampler
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.advantage import AdvantageStage
from asyncrl_runtime.ports.data_plane import DataPlane
from asyncrl_runtime.ports.environment import Environment
from asyncrl_runtime.ports.generator import Generator, Sampling
from asyncrl_runtime.ports.metrics import MetricSink
from asyncrl_runtime.ports.prompts import PromptSource, Tokenizer
from asyncrl_runtime.ports.trainer import Trainer
from asyncrl_runtime.ports.weight_sync import WeightSync
from asyncrl_runtime.pumps.after_step import StepEnd
from asyncrl_runtime.pumps.checkpoint import Checkpointer, SaveSettings
from asyncrl_runtime.pumps.commit import Committer
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.refit import Refit, RefitSettings
from asyncrl_runtime.pumps.rollout import Observer, RetryPolicy, RolloutPump
from asyncrl_runtime.pumps.rollouts import RolloutManager
from asyncrl_runtime.pumps.step import OpenStep
from asyncrl_runtime.pumps.train import TrainProgress, TrainPump, TrainSettings
from asyncrl_runtime.pumps.validation import ValidationSettings, Validator
from asyncrl_runtime.pumps.wakeup import Barrier, RolloutGate, Wakeup


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
    ledger: PromptLedger = field(default_factory=PromptLedger)
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

    def __post_init__(self) -> None:
        self.fleet = Fleet(shards=self.shards)
        self.rollout = self._rollout_pump()
        self.refit = self._refit()
        self.validator = self._validator()
        self.checkpointer = self._checkpointer()
        self.end = self._step_end()
        self.train = self._train_pump()

    def ask_to_stop(self) -> None:
        """End after the step, or at once where it waits for groups."""
        self.stopping = True
        self.changed.notify()

    @property
    def facts(self) -> Derived:
        """What the spec implies."""
        return Derived(self.spec)

    # ── pumps ───────────────────────────────────────────────────────────────────────────────────────

    def _rollouts(self) -> RolloutManager:
        spec, algorithm = self.spec, self.facts.valid_algorithm
        native = spec.async_rl.rollout_failure.native
        return RolloutManager(
            fleet=self.fleet,
            environment=self.outside.environment,
            tokenizer=self.outside.tokenizer,
            sampling=shard_sampling(spec),
            max_total_tokens=spec.model.max_total_sequence_length,
            max_turns=algorithm.max_rollout_turns,
            generation_timeout_seconds=native.generation_timeout_seconds,
            environment_timeout_seconds=None,  # environments bound the step, without the wait for a worker
            run_seed=algorithm.seed,
        )

    def _rollout_pump(self) -> RolloutPump:
        spec, facts, algorithm = self.spec, self.facts, self.facts.valid_algorithm
        failure = spec.async_rl.rollout_failure
        return RolloutPump(
            source=self.outside.source,
            cursor=DataCursor(
                len(self.outside.source),
                facts.num_prompts_per_step,
                spec.data.shuffle,
                spec.data.seed,
                algorithm.max_num_epochs,
            ),
            ledger=self.ledger,
            buffer=self.buffer,
            sampler=self.sampler,
            versions=self.versions,
            rollouts=self._rollouts(),
            committer=Committer(
                plane=self.plane,
                buffer=self.buffer,
                generations=facts.num_generations_per_prompt,
                overlong_filtering=algorithm.overlong_filtering,
                mask_flagged=algorithm.mask_env_flagged_samples,
            ),
            gate=self.gate,
            barrier=self.barrier,
            changed=self.changed,
            observer=self.outside.observer,
            retry=RetryPolicy(
                max_infra_attempts=failure.max_infra_attempts_per_prompt,
                max_data_attempts=failure.max_data_attempts_per_prompt,
                backoff_base_seconds=failure.backoff_base_seconds,
                max_backoff_seconds=failure.max_backoff_seconds,
            ),
            groups_per_step=facts.num_prompts_per_step,
            generations=facts.num_generations_per_prompt,
            max_inflight_prompts=spec.async_rl.max_inflight_prompts,
            requeue_aborted=spec.async_rl.requeue_aborted_prompts,
            discard_group=zero_spread(spec),
            over_sampling_cap=over_sampling_cap(self.sampler, self.versions, facts),
        )

    def _refit(self) -> Refit:
        settings = self.spec.async_rl
        return Refit(
            sync=self.sync,
            fleet=self.fleet,
            rollout=self.rollout,
            versions=self.versions,
            gate=self.gate,
            observer=self.outside.observer,
            settings=RefitSettings(
                in_flight=settings.in_flight_weight_updates,
                drain_timeout_seconds=settings.drain_timeout_seconds,
                drain_timeout_action=settings.drain_timeout_action,
                abort_grace_seconds=settings.abort_grace_seconds,
                recompute_kv_cache=settings.recompute_kv_cache_after_weight_updates,
                deadline_seconds=settings.refit.deadline_seconds,
                unwind_grace_seconds=settings.refit.unwind_grace_seconds,
            ),
        )

    def _validator(self) -> Validator:
        validation, training = self.spec.validation, shard_sampling(self.spec)
        sampling = Sampling(
            temperature=resolved(validation.sampling.temperature),
            top_p=resolved(validation.sampling.top_p),
            top_k=validation.sampling.top_k,
            max_new_tokens=training.max_new_tokens,
            stop_token_ids=training.stop_token_ids,
            stop_strings=training.stop_strings,
        )
        return Validator(
            source=self.outside.validation,
            rollouts=self.rollout.rollouts,
            observer=self.outside.observer,
            settings=ValidationSettings(
                period_steps=resolved(validation.period_steps),
                start_at=validation.start_at,
                at_start=resolved(validation.at_start),
                at_end=validation.at_end,
                batch_size=validation.batch_size,
                max_samples=validation.max_samples,
                generations=validation.num_generations_per_prompt,
                sampling=sampling,
                failure_action=validation.failure_action,
                stop_at_metric=validation.stop_at_metric,
                stop_at_threshold=validation.stop_at_threshold,
                higher_is_better=self.spec.checkpointing.higher_is_better,
            ),
        )

    def _checkpointer(self) -> Checkpointer:
        settings, outside = self.spec.checkpointing, self.outside
        return Checkpointer(
            store=outside.store,
            settings=SaveSettings(
                enabled=settings.enabled,
                save_period=settings.save_period,
                ft_save_period=settings.ft_save_period,
                save_optimizer=settings.save_optimizer,
                save_data_plane=settings.save_data_plane,
                must_save_by_seconds=settings.must_save_by_seconds,
                metric_name=settings.metric_name,
                barrier_timeout_seconds=self.spec.rollout_checkpointing.barrier_timeout_seconds,
                timeout_seconds=settings.timeout_seconds,
            ),
            retention=Retention(
                save_period=settings.save_period,
                keep_top_k=settings.keep_top_k,
                by_metric=settings.metric_name is not None,
                higher_is_better=settings.higher_is_better,
                ft_keep_latest_k=settings.ft_keep_latest_k,
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
            observer=outside.observer,
            groups_per_step=self.facts.num_prompts_per_step,
            generations=self.facts.num_generations_per_prompt,
            dataset=dataset_facts(outside.source),
            config_yaml=outside.config_yaml,
            write_tokenizer=lambda path: outside.tokenizer.save(str(path)),
            claims=lambda: self.train.claims,
            began=outside.began,
        )

    def _step_end(self) -> StepEnd:
        spec = self.spec
        gpus = spec.generation.shards * spec.generation.gpus_per_shard + (
            spec.training.hosts * spec.training.gpus_per_host
        )
        return StepEnd(
            refit=self.refit,
            validator=self.validator,
            checkpointer=self.checkpointer,
            gate=self.gate,
            versions=self.versions,
            progress=self.progress,
            rollout=self.rollout,
            plane=self.plane,
            metrics=self.outside.sink,
            wall_clock=time.time,
            num_gpus=gpus,
            finished=self.outside.finished_step,
        )

    def _train_pump(self) -> TrainPump:
        facts, grpo, settings = self.facts, self.spec.algorithm.grpo, self.spec.async_rl
        models: set[Literal["policy", "reference"]] = set()
        if not facts.skips_previous_logprobs:
            models.add("policy")
        if not facts.skips_reference_logprobs:
            models.add("reference")
        return TrainPump(
            settings=TrainSettings(
                max_steps=self.max_steps,
                groups_per_step=facts.num_prompts_per_step,
                smallest_chunk=facts.min_groups,
                policy_epochs=grpo.policy_epochs_per_step if grpo else 1,
                policy_minibatches=grpo.policy_minibatches_per_step if grpo else 1,
                minibatch_seed=facts.valid_algorithm.seed,
                step_retries=settings.train_step_retries,
                final_partial_step=settings.final_partial_step,
                min_step_batch_fraction=settings.rollout_failure.min_step_batch_fraction,
                logprob_models=frozenset(models),
            ),
            progress=self.progress,
            sampler=self.sampler,
            buffer=self.buffer,
            ledger=self.ledger,
            versions=self.versions,
            plane=self.plane,
            trainer=self.trainer,
            advantages=self.advantages,
            rollout=self.rollout,
            gate=self.gate,
            barrier=self.barrier,
            changed=self.changed,
            observer=self.outside.observer,
            after_step=self.end,
            final_save=self._final_save,
            stopping=lambda: self.stopping,
        )

    async def _final_save(self) -> None:
        if self.checkpointer.due(last=True):
            await self.checkpointer.save(validation=self.validator.latest)

    # ── life ────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Bring trainer and shards up, side by side."""
        await asyncio.gather(self.trainer.start(), *(shard.start() for shard in self.shards))
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
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, Exception):
                self.outside.observer.event("close_failed", reason=str(result))


def dataset_facts(source: PromptSource) -> dict[str, object]:
    """What a checkpoint remembers of the prompts."""
    return {"name": source.name, "length": len(source), "fingerprint": source.fingerprint}


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
    plane = InProcessPlane(spec.data_plane.storage_capacity)
    buffer = ReplayBuffer(facts.buffer_size)
    max_steps = clamped_steps(spec, len(outside.source))
    learner = trainer(spec, plane, outside.tokenizer, total_updates=max_steps * facts.num_policy_updates)
    shards = generators(spec, outside.tokenizer)
    return Parts(
        spec=spec,
        outside=outside,
        plane=plane,
        buffer=buffer,
        sampler=build_sampler(spec, buffer),
        shards=shards,
        trainer=learner,
        sync=weight_sync(spec, learner, shards),
        advantages=advantage_stage(spec),
        max_steps=max_steps,
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
