"""What is allowed and does not do what it seems to: W-1 to W-16. Never an error (SC-2.6)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from asyncrl_api.base import keys_of
from asyncrl_api.derived import Derived
from asyncrl_api.exact import ceil_product
from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.spec.fleet import GenerationFleetHealthSpec
from asyncrl_api.spec.validation import ValidationSpec

UNSTAMPED = ("weight_fifo", "ready_first", "windowed")


@dataclass(frozen=True, slots=True)
class Warning:
    """One thing to know about a valid job."""

    id: str
    path: str
    """Dotpath of the field that it is about."""

    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def warnings_for(job: AsyncRLJob, *, cluster: bool = False) -> list[Warning]:
    """Warnings about a valid job. With `cluster`, those count too that only concern pods and volumes."""
    spec, facts = job.spec, Derived(job.spec)
    found = [*_failures(spec, facts), *_inert(spec, facts), *_learning(spec, facts), *_saving(spec, facts)]
    if cluster:
        found += _cluster(spec)
    return found


def _failures(spec: JobSpec, facts: Derived) -> Iterator[Warning]:
    failure, n = spec.async_rl.rollout_failure, facts.num_prompts_per_step
    where = "spec.asyncRL.rolloutFailure"
    fraction = failure.min_step_batch_fraction
    replaces = failure.on_dropped_prompt == "replace"
    stamps = facts.sampler == "in_order"
    if stamps and facts.drop_budget > 0 and not replaces and ceil_product(fraction, n) == n:
        yield Warning(
            "W-1",
            f"{where}.minStepBatchFraction",
            "the first lost prompt ends the run: lower asyncRL.rolloutFailure.minStepBatchFraction "
            f"{fraction:g} or use onDroppedPrompt replace",
        )
    if replaces and facts.sampler in UNSTAMPED:
        yield Warning(
            "W-2",
            f"{where}.onDroppedPrompt",
            f"onDroppedPrompt replace does nothing under sampler {facts.sampler}: use in_order or shrink",
        )
    if failure.replacement_reserve_prompts > n:
        yield Warning(
            "W-3",
            f"{where}.replacementReservePrompts",
            f"asyncRL.rolloutFailure.replacementReservePrompts {failure.replacement_reserve_prompts} exceeds "
            f"numPromptsPerStep {n}: batch after batch would be set aside while nothing is dispatched; "
            "lower it",
        )
    health, router = spec.async_rl.generation_fleet_health, spec.async_rl.generation_router
    if router.enabled and not health.enabled:
        yield Warning(
            "W-5",
            "spec.asyncRL.generationRouter.enabled",
            "the router never learns of dead shards: set asyncRL.generationFleetHealth.enabled",
        )
    if health.enabled and spec.async_rl.refit.deadline_seconds is None:
        yield Warning(
            "W-11",
            "spec.asyncRL.refit.deadlineSeconds",
            "a frozen rank can hang a weight update for ever: set asyncRL.refit.deadlineSeconds above "
            f"{facts.detection_seconds:g}",
        )


def _inert(spec: JobSpec, facts: Derived) -> Iterator[Warning]:
    for name, block in (("grpo", spec.algorithm.grpo), ("ppo", spec.algorithm.ppo)):
        shaping = block and block.reward_shaping
        if shaping and shaping.stop_properly_penalty_coef is not None and _has_lengths(shaping):
            yield Warning(
                "W-6",
                f"spec.algorithm.{name}.rewardShaping",
                "stopProperlyPenaltyCoef is set, so overlongBufferLength, overlongBufferPenalty and "
                "maxResponseLength are ignored: remove them",
            )
    if spec.data.validation is None and spec.validation != ValidationSpec():
        yield Warning(
            "W-7", "spec.validation", "validation has no prompts and will not run: set data.validation"
        )
    health = spec.async_rl.generation_fleet_health
    if not health.enabled:
        for key, name, field in keys_of(GenerationFleetHealthSpec):
            if getattr(health, name) != field.default:
                path = f"asyncRL.generationFleetHealth.{key}"
                yield _no_effect(path, "asyncRL.generationFleetHealth.enabled is false")
    if spec.checkpointing.pretrained_checkpoint is not None and spec.model.name is not None:
        yield _no_effect("model.name", "the weights come from checkpointing.pretrainedCheckpoint")
    if spec.async_rl.in_flight_weight_updates and spec.async_rl.drain_timeout_seconds is not None:
        yield _no_effect("asyncRL.drainTimeoutSeconds", "asyncRL.inFlightWeightUpdates is true")


def _has_lengths(shaping: object) -> bool:
    names = ("overlong_buffer_length", "overlong_buffer_penalty", "max_response_length")
    return any(getattr(shaping, name) is not None for name in names)


def _no_effect(field: str, reason: str) -> Warning:
    return Warning("W-10", f"spec.{field}", f"{field} has no effect because {reason}: remove it or enable it")


def _learning(spec: JobSpec, facts: Derived) -> Iterator[Warning]:
    loss = spec.loss
    if facts.estimator == "opd":
        wanted = {
            "loss.disablePpoRatio": loss.disable_ppo_ratio,
            "loss.useImportanceSamplingCorrection": facts.corrects,
            "loss.truncatedImportanceSamplingType icepop": loss.truncated_importance_sampling_type
            == "icepop",
        }
        missing = [name for name, is_set in wanted.items() if not is_set]
        if missing:
            yield Warning(
                "W-8",
                "spec.loss",
                "estimator opd expects loss.disablePpoRatio, the correction and "
                f"truncatedImportanceSamplingType icepop: set {', '.join(missing)}",
            )
    if facts.skips_previous_logprobs:
        yield Warning(
            "W-9",
            "spec.loss.forceOnPolicyRatio",
            "sequence errors will not be reported, since previous log-probs are not computed",
        )
    room = facts.num_prompts_per_step * (facts.staleness + 1)
    if facts.sampler == "windowed" and facts.buffer_size <= room:
        yield Warning(
            "W-16",
            "spec.asyncRL.maxBufferedRollouts",
            f"sampler windowed works best with more than {room} buffered groups",
        )


def _saving(spec: JobSpec, facts: Derived) -> Iterator[Warning]:
    checkpointing = spec.checkpointing
    if not facts.saves:
        return
    if spec.data_plane.backend == "mooncake_cpu":
        yield Warning(
            "W-4",
            "spec.checkpointing.saveDataPlane",
            "finished but untrained rollouts will not be restored: "
            "the rows of dataPlane.backend mooncake_cpu cannot be saved",
        )
    if (checkpointing.metric_name or "").startswith("val:") and _may_save_before_validating(spec, facts):
        yield Warning(
            "W-14",
            "spec.checkpointing.metricName",
            "checkpoints older than the first validation cannot become the best: "
            "validate at start, or as often as checkpoints are written",
        )
    if facts.takes_snapshots and checkpointing.save_period > 1:
        yield Warning(
            "W-15",
            "spec.checkpointing.savePeriod",
            "steps without a trainer checkpoint cannot anchor a snapshot: set checkpointing.savePeriod to 1",
        )


def _may_save_before_validating(spec: JobSpec, facts: Derived) -> bool:
    periods = (spec.checkpointing.save_period, spec.checkpointing.ft_save_period)
    first_save = min(period for period in periods if period is not None)
    period = facts.validation_period_steps
    if facts.validates_at_start or period == 0:
        return False
    first_validation = period * max(1, math.ceil(spec.validation.start_at / period))
    return first_save < first_validation


def _cluster(spec: JobSpec) -> Iterator[Warning]:
    if not spec.checkpointing.enabled and spec.fault_policy.max_restarts > 0:
        yield Warning(
            "W-12", "spec.checkpointing.enabled", "every restart begins at step 0: turn checkpointing on"
        )
    template = spec.checkpointing.volume and spec.checkpointing.volume.template
    one_pod = spec.data_plane.backend == "inProcess"
    if template and "ReadWriteMany" not in template.access_modes and not one_pod:
        yield Warning(
            "W-13",
            "spec.checkpointing.volume.template.accessModes",
            "controller and trainer are different pods and can share a ReadWriteOnce volume on one node "
            "only: use ReadWriteMany",
        )
