"""How the parts of a run are connected: one function per pump, from the resolved spec."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from asyncrl_runtime.adapters.directory_snapshots import DirectorySnapshots
from asyncrl_runtime.app import settings
from asyncrl_runtime.app.backends import shard_sampling
from asyncrl_runtime.app.samplers import over_sampling_cap, zero_spread
from asyncrl_runtime.core.dataloader import DataCursor
from asyncrl_runtime.core.fleet import FleetLedger
from asyncrl_runtime.ports.prompts import PromptSource
from asyncrl_runtime.pumps.after_step import StepEnd
from asyncrl_runtime.pumps.capture import TokenCapture
from asyncrl_runtime.pumps.checkpoint import Checkpointer
from asyncrl_runtime.pumps.commit import Committer
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.group import GroupRunner
from asyncrl_runtime.pumps.probe import ProbePump, ReadmissionPump, RestartPump
from asyncrl_runtime.pumps.refit import Refit
from asyncrl_runtime.pumps.rollout import RolloutPump
from asyncrl_runtime.pumps.rollouts import RolloutManager
from asyncrl_runtime.pumps.snapshot import SnapshotPump
from asyncrl_runtime.pumps.telemetry import TelemetryPump
from asyncrl_runtime.pumps.train import TrainPump
from asyncrl_runtime.pumps.transfer import WeightTransfer
from asyncrl_runtime.pumps.validation import Validator
from asyncrl_runtime.pumps.watchdog import Watchdog

if TYPE_CHECKING:
    from asyncrl_runtime.app.build import Parts


def dataset_facts(source: PromptSource) -> dict[str, object]:
    """What a checkpoint remembers of the prompts."""
    return {"name": source.name, "length": len(source), "fingerprint": source.fingerprint}


def rollout_manager(parts: Parts) -> RolloutManager:
    """Rolls groups out on the fleet."""
    spec, algorithm = parts.spec, parts.facts.valid_algorithm
    native = spec.async_rl.rollout_failure.native
    return RolloutManager(
        fleet=parts.fleet,
        environment=parts.outside.environment,
        tokenizer=parts.outside.tokenizer,
        sampling=shard_sampling(spec),
        max_total_tokens=spec.model.max_total_sequence_length,
        max_turns=algorithm.max_rollout_turns,
        generation_timeout_seconds=native.generation_timeout_seconds,
        environment_timeout_seconds=None,  # environments bound the step, without the wait for a worker
        run_seed=algorithm.seed,
    )


def group_runner(parts: Parts) -> GroupRunner:
    """Carries one prompt group to its end."""
    spec, facts, algorithm = parts.spec, parts.facts, parts.facts.valid_algorithm
    failure = spec.async_rl.rollout_failure
    return GroupRunner(
        source=parts.outside.source,
        ledger=parts.ledger,
        buffer=parts.buffer,
        sampler=parts.sampler,
        versions=parts.versions,
        rollouts=rollout_manager(parts),
        committer=Committer(
            plane=parts.plane,
            buffer=parts.buffer,
            generations=facts.num_generations_per_prompt,
            overlong_filtering=algorithm.overlong_filtering,
            mask_flagged=algorithm.mask_env_flagged_samples,
        ),
        gate=parts.gate,
        barrier=parts.barrier,
        observer=parts.outside.observer,
        retry=settings.retry_policy(spec),
        accounts=parts.accounts,
        budgets=parts.budgets,
        drops=settings.drop_policy(spec),
        generations=facts.num_generations_per_prompt,
        requeue_aborted=spec.async_rl.requeue_aborted_prompts,
        discard_group=zero_spread(spec),
        capture=token_capture(parts),
        min_valid_row_fraction=failure.min_valid_row_fraction,
    )


def rollout_pump(parts: Parts) -> RolloutPump:
    """Keeps the fleet busy."""
    spec, facts = parts.spec, parts.facts
    return RolloutPump(
        source=parts.outside.source,
        cursor=DataCursor(
            len(parts.outside.source),
            facts.num_prompts_per_step,
            spec.data.shuffle,
            spec.data.seed,
            facts.valid_algorithm.max_num_epochs,
        ),
        ledger=parts.ledger,
        buffer=parts.buffer,
        sampler=parts.sampler,
        versions=parts.versions,
        barrier=parts.barrier,
        changed=parts.changed,
        observer=parts.outside.observer,
        groups=group_runner(parts),
        groups_per_step=facts.num_prompts_per_step,
        max_inflight_prompts=settings.max_inflight_prompts(spec, parts.buffer.capacity),
        over_sampling_cap=over_sampling_cap(parts.sampler, parts.versions, facts),
    )


def fleet(parts: Parts) -> Fleet:
    """The shards, watched if the job asks for it."""
    health = parts.spec.async_rl.generation_fleet_health
    if not health.enabled:
        return Fleet(shards=parts.shards)
    ledger = FleetLedger(
        num_shards=len(parts.shards),
        settings=settings.fleet_settings(parts.spec),
        clock=asyncio.get_running_loop().time,
    )
    return Fleet(
        shards=parts.shards,
        ledger=ledger,
        observer=parts.outside.observer,
        on_dead_shard=health.on_dead_shard,
    )


def fleet_pumps(parts: Parts) -> dict[str, Coroutine[None, None, object]]:
    """What watches and repairs the shards, by name, in the order of precedence of its failures (SC-5.5)."""
    ledger, health = parts.fleet.ledger, parts.spec.async_rl.generation_fleet_health
    if ledger is None:
        return {}
    parts.probe = ProbePump(
        fleet=parts.fleet,
        ledger=ledger,
        interval_seconds=health.probe_interval_seconds,
        timeout_seconds=health.probe_timeout_seconds,
        after_round=parts.fleet.check_exhausted,
    )
    parts.restarts = RestartPump(
        fleet=parts.fleet, ledger=ledger, backoff_base_seconds=health.restart_backoff_base_seconds
    )
    readmission = ReadmissionPump(fleet=parts.fleet, ledger=ledger, readmit=parts.refit.readmit)
    return {
        "probe": parts.probe.run(),
        "restarts": parts.restarts.run(),
        "readmission": readmission.run(),
    }


def _between_updates(parts: Parts) -> bool:
    """The trainer waits for groups, or its step is closed: its parameters are those of its version."""
    step = parts.train.step
    if step is None or step.trained:
        return True
    target = parts.accounts.target_groups(step.version, parts.facts.num_prompts_per_step)
    return step.groups < target and not parts.rollout.exhausted


def refit(parts: Parts) -> Refit:
    """Brings the fleet to new weights."""
    transfer = WeightTransfer(
        sync=parts.sync,
        fleet=parts.fleet,
        observer=parts.outside.observer,
        busy=parts.busy,
        settings=settings.transfer_settings(parts.spec),
    )
    return Refit(
        transfer=transfer,
        fleet=parts.fleet,
        rollout=parts.rollout,
        versions=parts.versions,
        gate=parts.gate,
        observer=parts.outside.observer,
        settings=settings.refit_settings(parts.spec),
        between_updates=lambda: _between_updates(parts),
    )


def validator(parts: Parts) -> Validator:
    """Measures on held-out prompts."""
    return Validator(
        source=parts.outside.validation,
        rollouts=parts.rollout.groups.rollouts,
        observer=parts.outside.observer,
        settings=settings.validation_settings(parts.spec),
        busy=parts.busy,
    )


def checkpointer(parts: Parts) -> Checkpointer:
    """Writes bundles."""
    outside = parts.outside
    return Checkpointer(
        store=outside.store,
        settings=settings.save_settings(parts.spec),
        retention=settings.retention(parts.spec),
        trainer=parts.trainer,
        plane=parts.plane,
        barrier=parts.barrier,
        rollout=parts.rollout,
        buffer=parts.buffer,
        ledger=parts.ledger,
        sampler=parts.sampler,
        versions=parts.versions,
        progress=parts.progress,
        observer=outside.observer,
        groups_per_step=parts.facts.num_prompts_per_step,
        generations=parts.facts.num_generations_per_prompt,
        dataset=dataset_facts(outside.source),
        config_yaml=outside.config_yaml,
        write_tokenizer=lambda path: outside.tokenizer.save(str(path)),
        claims=lambda: parts.train.claims,
        began=outside.began,
        fleet_counters=parts.fleet.counters,
        tallies=outside.tallies,
        busy=parts.busy,
    )


def step_end(parts: Parts) -> StepEnd:
    """What follows a step."""
    spec = parts.spec
    gpus = spec.generation.shards * spec.generation.gpus_per_shard + (
        spec.training.hosts * spec.training.gpus_per_host
    )
    return StepEnd(
        refit=parts.refit,
        validator=parts.validator,
        checkpointer=parts.checkpointer,
        gate=parts.gate,
        versions=parts.versions,
        progress=parts.progress,
        rollout=parts.rollout,
        plane=parts.plane,
        metrics=parts.outside.sink,
        wall_clock=time.time,
        num_gpus=gpus,
        finished=parts.outside.finished_step,
    )


def train_pump(parts: Parts) -> TrainPump:
    """Trains."""
    return TrainPump(
        settings=settings.train_settings(parts.spec, parts.max_steps),
        progress=parts.progress,
        sampler=parts.sampler,
        buffer=parts.buffer,
        ledger=parts.ledger,
        accounts=parts.accounts,
        versions=parts.versions,
        plane=parts.plane,
        trainer=parts.trainer,
        advantages=parts.advantages,
        rollout=parts.rollout,
        gate=parts.gate,
        barrier=parts.barrier,
        changed=parts.changed,
        observer=parts.outside.observer,
        after_step=parts.end,
        final_save=parts.final_save,
        stopping=lambda: parts.stopping,
    )


def watchdog(parts: Parts) -> Watchdog:
    """Notices that nothing moves any more."""
    return Watchdog(
        settings=settings.watchdog_settings(parts.spec),
        train=parts.train,
        environment=parts.outside.environment,
        busy=parts.busy,
        metrics=parts.outside.sink,
        observer=parts.outside.observer,
        wall_clock=time.time,
        dump=parts.outside.dump_stacks,
        check_fleet=parts.fleet.check_exhausted,
        gauges=lambda: {**parts.fleet.metrics(), **parts.refit.metrics(), **parts.snapshots.gauges()},
    )


def snapshot_pump(parts: Parts) -> SnapshotPump:
    """Saves the rollout side between trainer checkpoints."""
    asked = parts.spec.rollout_checkpointing
    return SnapshotPump(
        store=DirectorySnapshots(parts.outside.store),
        checkpointer=parts.checkpointer,
        observer=parts.outside.observer,
        interval_seconds=asked.snapshot_attempt_interval_seconds,
        keep_latest=asked.keep_latest_k,
    )


def token_capture(parts: Parts) -> TokenCapture | None:
    """Finishes siblings one by one, where the job asks for it."""
    spec = parts.spec
    if not spec.token_capture.enabled:
        return None
    return TokenCapture(
        settings=settings.capture_settings(spec),
        plane=parts.plane,
        ledger=parts.ledger,
        sampler=parts.sampler,
        versions=parts.versions,
        gate=parts.gate,
        barrier=parts.barrier,
        generations=parts.facts.num_generations_per_prompt,
    )


def telemetry_pump(parts: Parts) -> TelemetryPump:
    """Samples the throughput of the fleet, where the job asks for it."""
    return TelemetryPump(
        fleet=parts.fleet,
        counters=parts.rollout.counters,
        metrics=parts.outside.sink,
        observer=parts.outside.observer,
        wall_clock=time.time,
        interval_seconds=parts.spec.async_rl.telemetry_interval_seconds,
    )
