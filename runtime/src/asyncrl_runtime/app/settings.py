"""What each pump is set to, from the resolved spec: asked at the start, and when hot settings change."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_api.resolve import resolved
from asyncrl_runtime.app.backends import shard_sampling
from asyncrl_runtime.core.drops import DropPolicy
from asyncrl_runtime.core.fleet import FleetSettings
from asyncrl_runtime.core.retention import Retention
from asyncrl_runtime.pumps.capture import CaptureSettings, granularity_of
from asyncrl_runtime.pumps.checkpoint import SaveSettings
from asyncrl_runtime.pumps.group import RetryPolicy
from asyncrl_runtime.pumps.refit import RefitSettings
from asyncrl_runtime.pumps.train import TrainSettings
from asyncrl_runtime.pumps.transfer import TransferSettings
from asyncrl_runtime.pumps.validation import ValidationSettings
from asyncrl_runtime.pumps.watchdog import WatchdogSettings


def retry_policy(spec: JobSpec) -> RetryPolicy:
    """Attempts per prompt."""
    failure = spec.async_rl.rollout_failure
    return RetryPolicy(
        max_infra_attempts=failure.max_infra_attempts_per_prompt,
        max_data_attempts=failure.max_data_attempts_per_prompt,
        backoff_base_seconds=failure.backoff_base_seconds,
        max_backoff_seconds=failure.max_backoff_seconds,
    )


def drop_policy(spec: JobSpec) -> DropPolicy:
    """How a step meets a drop."""
    failure = spec.async_rl.rollout_failure
    return DropPolicy(
        replaces=failure.on_dropped_prompt == "replace",
        max_replacements=failure.max_replacement_attempts,
        reserve_mark=failure.replacement_reserve_prompts,
    )


def max_inflight_prompts(spec: JobSpec, capacity: int) -> int:
    """Groups in flight; where single generations are bounded, groups are not (SC-5.15)."""
    bounded = spec.async_rl.max_inflight_generations is not None
    return capacity if bounded else spec.async_rl.max_inflight_prompts


def fleet_settings(spec: JobSpec) -> FleetSettings:
    """Thresholds of the shards' health."""
    health = spec.async_rl.generation_fleet_health
    return FleetSettings(
        unhealthy_threshold=health.unhealthy_threshold,
        healthy_threshold=health.healthy_threshold,
        max_restart_attempts=health.max_restart_attempts_per_shard,
        min_healthy_shards=health.min_healthy_shards,
        restart_grace_seconds=health.restart_grace_seconds,
    )


def transfer_settings(spec: JobSpec) -> TransferSettings:
    """Bounds of a weight transfer."""
    settings = spec.async_rl
    return TransferSettings(
        deadline_seconds=settings.refit.deadline_seconds,
        unwind_grace_seconds=settings.refit.unwind_grace_seconds,
        max_retries=settings.refit.max_retries,
        recompute_kv_cache=settings.recompute_kv_cache_after_weight_updates,
        ping_seconds=settings.generation_fleet_health.probe_timeout_seconds,
    )


def refit_settings(spec: JobSpec) -> RefitSettings:
    """How rollouts and weights meet."""
    settings = spec.async_rl
    return RefitSettings(
        in_flight=settings.in_flight_weight_updates,
        drain_timeout_seconds=settings.drain_timeout_seconds,
        drain_timeout_action=settings.drain_timeout_action,
        abort_grace_seconds=settings.abort_grace_seconds,
    )


def validation_settings(spec: JobSpec) -> ValidationSettings:
    """When and how held-out prompts are rolled out."""
    validation = spec.validation
    sampling = replace(
        shard_sampling(spec),
        temperature=resolved(validation.sampling.temperature),
        top_p=resolved(validation.sampling.top_p),
        top_k=validation.sampling.top_k,
    )
    return ValidationSettings(
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
        higher_is_better=spec.checkpointing.higher_is_better,
        samples_to_log=spec.logging.num_val_samples_to_print,
    )


def save_settings(spec: JobSpec) -> SaveSettings:
    """When checkpoints are written."""
    settings = spec.checkpointing
    return SaveSettings(
        enabled=settings.enabled,
        save_period=settings.save_period,
        ft_save_period=settings.ft_save_period,
        save_optimizer=settings.save_optimizer,
        save_data_plane=settings.save_data_plane,
        must_save_by_seconds=settings.must_save_by_seconds,
        metric_name=settings.metric_name,
        barrier_timeout_seconds=spec.rollout_checkpointing.barrier_timeout_seconds,
        timeout_seconds=settings.timeout_seconds,
    )


def retention(spec: JobSpec) -> Retention:
    """Which checkpoints are kept."""
    settings = spec.checkpointing
    return Retention(
        save_period=settings.save_period,
        keep_top_k=settings.keep_top_k,
        by_metric=settings.metric_name is not None,
        higher_is_better=settings.higher_is_better,
        ft_keep_latest_k=settings.ft_keep_latest_k,
    )


def train_settings(spec: JobSpec, max_steps: int) -> TrainSettings:
    """The shape of a step."""
    facts, grpo, settings = Derived(spec), spec.algorithm.grpo, spec.async_rl
    models: set[Literal["policy", "reference"]] = set()
    if not facts.skips_previous_logprobs:
        models.add("policy")
    if not facts.skips_reference_logprobs:
        models.add("reference")
    return TrainSettings(
        max_steps=max_steps,
        groups_per_step=facts.num_prompts_per_step,
        smallest_chunk=facts.min_groups,
        policy_epochs=grpo.policy_epochs_per_step if grpo else 1,
        policy_minibatches=grpo.policy_minibatches_per_step if grpo else 1,
        minibatch_seed=facts.valid_algorithm.seed,
        step_retries=settings.train_step_retries,
        final_partial_step=settings.final_partial_step,
        min_step_batch_fraction=settings.rollout_failure.min_step_batch_fraction,
        logprob_models=frozenset(models),
    )


def watchdog_settings(spec: JobSpec) -> WatchdogSettings:
    """How often the watchdog looks, and what a stall leads to."""
    settings = spec.async_rl.stall_watchdog
    return WatchdogSettings(
        interval_seconds=settings.interval_seconds,
        stall_timeout_seconds=settings.stall_timeout_seconds,
        action=settings.stall_action,
        checks_environments=settings.gym_subprocess_check,
    )


def capture_settings(spec: JobSpec) -> CaptureSettings:
    """How groups are recovered and put together."""
    recovery = spec.rollout_recovery
    return CaptureSettings(
        granularity=granularity_of(
            recovery.default_granularity,
            recovery.task_source_granularity_overrides or {},
            recovery.agent_granularity_overrides or {},
        ),
        finalizers=spec.token_capture.num_finalizers,
        finalize_timeout_seconds=spec.token_capture.finalize_timeout_seconds,
        max_generations=spec.async_rl.max_inflight_generations,
    )
