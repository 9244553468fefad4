"""From the controller's report to the status of the run."""

from __future__ import annotations

from asyncrl_api.run_status import (
    CheckpointStatus,
    GenerationStatus,
    GpuStatus,
    ProgressStatus,
    SamplerStatus,
    ShardStatus,
    TrainingStatus,
)
from asyncrl_operator.core.facts import Pod, Report, Snapshot
from asyncrl_operator.core.times import written
from asyncrl_operator.manifests.names import claim_name, selector
from asyncrl_operator.manifests.ray_cluster import worker_pods

SERVING = ("HEALTHY", "SUSPECT")
_WORST_FIRST = ("DEAD", "RETIRED", "RESTARTING", "STALE", "SUSPECT", "HEALTHY")


def progress(report: Report) -> ProgressStatus:
    """Where training is."""
    idle = report.idle_fraction
    return ProgressStatus(
        step=report.step,
        max_steps=report.max_steps,
        trainer_version=report.trainer_version,
        epoch=report.epoch,
        reward_mean=_text(report.reward_mean),
        tokens_per_second=_text(report.tokens_per_second),
        step_seconds=_text(report.step_seconds),
        trainer_idle_percent=None if idle is None else round(100 * idle),
        eta_seconds=None if report.eta_seconds is None else round(report.eta_seconds),
        update_time=written(report.received),
    )


def sampler(report: Report) -> SamplerStatus:
    """How stale the data is, and what is buffered."""
    causes = report.discarded_by_cause
    return SamplerStatus(
        name=report.sampler or None,
        knobs=report.knobs or None,
        staleness_p50=report.staleness_p50,
        staleness_p95=report.staleness_p95,
        staleness_max=report.staleness_max,
        buffered=report.ready + report.inflight,
        ready=report.ready,
        inflight=report.inflight,
        capacity=report.capacity,
        evicted_total=causes.get("evicted", 0),
        aborted_total=causes.get("aborted", 0),
        dropped_total=report.dropped,
    )


def generation(snapshot: Snapshot, report: Report | None) -> GenerationStatus:
    """The fleet in numbers."""
    assert snapshot.job.spec is not None
    shards = report.shards if report else ()
    versions = [shard.weight_version for shard in shards if shard.state in SERVING]
    return GenerationStatus(
        shards=snapshot.job.spec.generation.shards,
        serving=serving(report),
        quarantined=sum(shard.state == "RETIRED" for shard in shards),
        selector=selector(snapshot.job.identity, "generation"),
        weight_version_min=min(versions, default=None),
        weight_version_max=max(versions, default=None),
    )


def serving(report: Report | None) -> int:
    """Shards that answer requests."""
    return sum(shard.state in SERVING for shard in report.shards) if report else 0


def shards(report: Report, limit: int) -> tuple[ShardStatus, ...]:
    """Single shards, worst first."""
    worst = sorted(report.shards, key=lambda shard: (_WORST_FIRST.index(shard.state), shard.index))
    return tuple(
        ShardStatus(index=shard.index, state=shard.state, weight_version=shard.weight_version)
        for shard in worst[:limit]
    )


def training(snapshot: Snapshot, pods: tuple[Pod, ...]) -> TrainingStatus:
    """Training pods wanted and ready; without groups the controller's pod trains."""
    assert snapshot.job.spec is not None
    own = worker_pods(snapshot.job.spec)
    role = "training" if "training" in own else "controller"
    wanted = own.get("training", 1)
    return TrainingStatus(hosts=wanted, ready=sum(pod.ready for pod in pods if pod.role == role))


def gpus(snapshot: Snapshot) -> GpuStatus:
    """The resolved split."""
    assert snapshot.job.spec is not None
    generation, training = snapshot.job.spec.generation, snapshot.job.spec.training
    return GpuStatus(
        generation=0 if generation.colocated else generation.shards * generation.gpus_per_shard,
        training=training.hosts * training.gpus_per_host,
    )


def checkpoint(snapshot: Snapshot, before: CheckpointStatus | None) -> CheckpointStatus:
    """What is saved."""
    assert snapshot.job.spec is not None
    report, known = snapshot.report, before or CheckpointStatus()
    step, time = known.last_step, known.last_time
    if report is not None and report.checkpoint_step is not None and report.checkpoint_step != step:
        step, time = report.checkpoint_step, written(report.received)
    return known.model_copy(
        update={
            "claim_name": claim_name(snapshot.job.identity.name, snapshot.job.spec),
            "last_step": step,
            "last_time": time,
        }
    )


def _text(number: float | None) -> str | None:
    return None if number is None else f"{number:.4g}"
