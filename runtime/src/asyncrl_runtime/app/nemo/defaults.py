"""Settings whose default in the reference is another one than here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncrl_api.derived import DEFAULT_BUFFER_GROUPS, DEFAULT_CHUNK_GROUPS, DEFAULT_KL_PENALTY
from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import UNSET, value_at
from asyncrl_runtime.app.nemo.state import Import, Remark


@dataclass(frozen=True, slots=True)
class Default:
    """A setting that may be left out there and here."""

    source: str
    target: str
    grpo: Any
    """What the reference takes under GRPO."""

    ppo: Any


DEFAULTS = (
    Default("<algo>.val_period", "validation.periodSteps", 10, 20),
    Default("<algo>.val_at_start", "validation.atStart", False, True),
    Default("async_rl.min_groups_for_streaming_train", "asyncRL.minGroupsForStreamingTrain",
            DEFAULT_CHUNK_GROUPS, DEFAULT_CHUNK_GROUPS),
    Default("async_rl.max_buffered_rollouts", "asyncRL.maxBufferedRollouts",
            DEFAULT_BUFFER_GROUPS, DEFAULT_BUFFER_GROUPS),
    Default("checkpointing.save_data_plane", "checkpointing.saveDataPlane", False, False),
    Default("policy.offload_optimizer_for_logprob", "training.offloadOptimizerForLogprob", False, False),
    Default("loss_fn.use_importance_sampling_correction", "loss.useImportanceSamplingCorrection",
            False, False),
    Default("loss_fn.reference_policy_kl_penalty", "loss.referencePolicyKlPenalty",
            DEFAULT_KL_PENALTY, DEFAULT_KL_PENALTY),
    Default("value.train_micro_batch_size", "value.microBatchSize", 4, 4),
    Default("value.logprob_batch_size", "value.logprobBatchSize", 4, 4),
    Default("value.optimizer.kwargs.weight_decay", "value.optimizer.weightDecay", 0.01, 0.01),
    Default("value.optimizer.kwargs.betas", "value.optimizer.beta1", 0.9, 0.9),
    Default("value.optimizer.kwargs.betas", "value.optimizer.beta2", 0.999, 0.999),
    Default("value.optimizer.kwargs.eps", "value.optimizer.eps", 1e-8, 1e-8),
    Default("value.scheduler", "value.scheduler.name", "constant", "constant"),
    Default("value.sequence_packing.enabled", "value.sequencePacking.enabled", False, False),
    Default("value.dynamic_batching.enabled", "value.dynamicBatching.enabled", False, False),
)  # fmt: skip


def differing_defaults(job: Import, resolved: AsyncRLJob) -> list[Remark]:
    """What the file leaves open and the two fill differently, given the job with its defaults filled."""
    found = []
    for default in DEFAULTS:
        source = default.source.replace("<algo>", job.algorithm)
        theirs = getattr(default, job.algorithm)
        ours = value_at(resolved, f"spec.{default.target}")
        if job.made(default.target) is None and ours is not UNSET and ours != theirs:
            text = f"is not set: {_spelt(theirs)} there, {_spelt(ours)} here (spec.{default.target})"
            found.append(Remark(source, text))
    return found


def _spelt(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
