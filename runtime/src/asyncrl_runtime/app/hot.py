"""Hot settings: which of them a running job takes over, and how (API-6, SC-5.97)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from asyncrl_api.derived import Derived
from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.rules import change_violations
from asyncrl_runtime.app import settings
from asyncrl_runtime.app.build import Parts
from asyncrl_runtime.app.samplers import over_sampling_cap
from asyncrl_runtime.core.samplers.base import GatedSampler
from asyncrl_runtime.core.samplers.windowed import Windowed


@dataclass(frozen=True, slots=True)
class Hot:
    """Some settings that a running job can take over."""

    paths: tuple[str, ...]
    """Dotpaths below `spec`, each with all that is below it."""

    apply: Callable[[Parts, JobSpec], None]
    """Without an await: it runs inside the block that closes a step."""


def _sampler(parts: Parts, spec: JobSpec) -> None:
    facts, asked, sampler = Derived(spec), spec.async_rl.sampler, parts.sampler
    if isinstance(sampler, GatedSampler):
        sampler.window = facts.lookahead if asked.name == "in_order" else facts.staleness
    elif isinstance(sampler, Windowed):
        sampler.window = facts.staleness
        sampler.freshest_first = bool(asked.sample_freshest_first)
        sampler.over_sampling_ratio = asked.over_sampling_ratio
    parts.rollout.over_sampling_cap = over_sampling_cap(sampler, parts.versions, facts)


def _buffer(parts: Parts, spec: JobSpec) -> None:
    parts.buffer.capacity = Derived(spec).buffer_size


def _dispatch(parts: Parts, spec: JobSpec) -> None:
    parts.rollout.max_inflight_prompts = settings.max_inflight_prompts(spec, parts.buffer.capacity)
    parts.rollout.groups.requeue_aborted = spec.async_rl.requeue_aborted_prompts


def _train(parts: Parts, spec: JobSpec) -> None:
    parts.train.settings = settings.train_settings(spec, parts.max_steps)


def _failures(parts: Parts, spec: JobSpec) -> None:
    failure, groups = spec.async_rl.rollout_failure, parts.rollout.groups
    groups.retry, groups.drops = settings.retry_policy(spec), settings.drop_policy(spec)
    groups.min_valid_row_fraction = failure.min_valid_row_fraction
    parts.budgets.max_skipped = failure.max_skipped_prompts
    parts.budgets.max_consecutive = failure.max_consecutive_dropped_prompts
    _train(parts, spec)


def _refit(parts: Parts, spec: JobSpec) -> None:
    parts.refit.settings = settings.refit_settings(spec)
    parts.refit.transfer.settings = settings.transfer_settings(spec)


def _watchdog(parts: Parts, spec: JobSpec) -> None:
    parts.watchdog.settings = settings.watchdog_settings(spec)
    parts.busy.allowance_seconds = spec.async_rl.stall_watchdog.stall_timeout_seconds


def _fleet(parts: Parts, spec: JobSpec) -> None:
    health = spec.async_rl.generation_fleet_health
    if parts.fleet.ledger is not None:
        parts.fleet.ledger.settings = settings.fleet_settings(spec)
    if parts.probe is not None:
        parts.probe.interval_seconds = health.probe_interval_seconds
        parts.probe.timeout_seconds = health.probe_timeout_seconds
    if parts.restarts is not None:
        parts.restarts.backoff_base_seconds = health.restart_backoff_base_seconds
    _refit(parts, spec)


def _validation(parts: Parts, spec: JobSpec) -> None:
    parts.validator.settings = settings.validation_settings(spec)


def _checkpoints(parts: Parts, spec: JobSpec) -> None:
    parts.checkpointer.settings = settings.save_settings(spec)
    parts.checkpointer.retention = settings.retention(spec)
    _validation(parts, spec)


def _snapshots(parts: Parts, spec: JobSpec) -> None:
    parts.snapshots.keep_latest = spec.rollout_checkpointing.keep_latest_k
    _checkpoints(parts, spec)


HOT: tuple[Hot, ...] = (
    Hot(
        (
            "asyncRL.sampler.maxLookaheadVersions",
            "asyncRL.sampler.maxStalenessVersions",
            "asyncRL.sampler.sampleFreshestFirst",
            "asyncRL.sampler.overSamplingRatio",
        ),
        _sampler,
    ),
    Hot(("asyncRL.maxBufferedRollouts",), _buffer),
    Hot(("asyncRL.maxInflightPrompts", "asyncRL.requeueAbortedPrompts"), _dispatch),
    Hot(
        ("asyncRL.minGroupsForStreamingTrain", "asyncRL.trainStepRetries", "asyncRL.finalPartialStep"), _train
    ),
    Hot(
        tuple(
            f"asyncRL.rolloutFailure.{key}"
            for key in (
                "maxInfraAttemptsPerPrompt",
                "maxDataAttemptsPerPrompt",
                "backoffBaseSeconds",
                "maxBackoffSeconds",
                "maxSkippedPrompts",
                "maxConsecutiveDroppedPrompts",
                "minStepBatchFraction",
                "onDroppedPrompt",
                "maxReplacementAttempts",
                "replacementReservePrompts",
                "minValidRowFraction",
            )
        ),
        _failures,
    ),
    Hot(
        (
            "asyncRL.inFlightWeightUpdates",
            "asyncRL.drainTimeoutSeconds",
            "asyncRL.drainTimeoutAction",
            "asyncRL.abortGraceSeconds",
            "asyncRL.recomputeKvCacheAfterWeightUpdates",
            "asyncRL.refit.deadlineSeconds",
            "asyncRL.refit.unwindGraceSeconds",
            "asyncRL.refit.maxRetries",
        ),
        _refit,
    ),
    Hot(("asyncRL.stallWatchdog",), _watchdog),
    Hot(
        tuple(
            f"asyncRL.generationFleetHealth.{key}"
            for key in (
                "probeIntervalSeconds",
                "probeTimeoutSeconds",
                "unhealthyThreshold",
                "healthyThreshold",
                "maxRestartAttemptsPerShard",
                "restartBackoffBaseSeconds",
                "minHealthyShards",
                "restartGraceSeconds",
            )
        ),
        _fleet,
    ),
    Hot(("validation",), _validation),
    Hot(
        tuple(
            f"checkpointing.{key}"
            for key in (
                "timeoutSeconds",
                "savePeriod",
                "metricName",
                "higherIsBetter",
                "keepTopK",
                "ftSavePeriod",
                "ftKeepLatestK",
            )
        ),
        _checkpoints,
    ),
    Hot(("rolloutCheckpointing.keepLatestK", "rolloutCheckpointing.barrierTimeoutSeconds"), _snapshots),
)

OPERATORS: tuple[str, ...] = (
    "faultPolicy",
    "lifecycle",
    "nodeQuarantine",
    "observability",
    "scheduling",
    "security",
    "suspend",
)
"""What the operator alone reads: a running job has nothing to take over."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a new version of the job would change in this run."""

    applied: Sequence[str]
    """Paths that the run takes over."""

    pending: Sequence[str]
    """Paths that wait for the next start."""

    refused: Sequence[tuple[str, str]]
    """Paths that may not change, each with the reason."""

    hot: Sequence[Hot]
    """What to apply."""


def compare(old: AsyncRLJob, new: AsyncRLJob) -> Change:
    """Sort the differences of two resolved jobs."""
    refused = tuple((violation.path, violation.message) for violation in change_violations(new, old))
    applied, pending, hot = [], [], []
    for path in sorted(_differences(_plain(old.spec), _plain(new.spec), "")):
        if path.split(".")[0] in OPERATORS:
            continue
        taker = next((entry for entry in HOT if any(_below(path, top) for top in entry.paths)), None)
        if taker is None:
            pending.append(f"spec.{path}")
            continue
        applied.append(f"spec.{path}")
        if taker not in hot:
            hot.append(taker)
    return Change(tuple(applied), tuple(pending), refused, tuple(hot))


def fits(parts: Parts, spec: JobSpec) -> bool:
    """Whether the buffer may be narrowed now: a stamped step that is admitted needs its room (SC-5.97)."""
    if not getattr(parts.sampler, "stamps", False):
        return True
    admitted = parts.sampler.dispatch_index + 1 - parts.versions.trainer
    return Derived(spec).buffer_size >= parts.facts.num_prompts_per_step * admitted


def _plain(spec: JobSpec) -> Mapping[str, object]:
    return spec.model_dump(mode="json", by_alias=True)


def _differences(old: object, new: object, path: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {*old, *new}:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif old != new:
        yield path


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}.")
