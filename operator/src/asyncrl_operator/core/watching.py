"""An attempt that goes on: its phase, its numbers, its settings, shards taken out by hand."""

from __future__ import annotations

from asyncrl_api.status import ConfigStatus
from asyncrl_operator.core import reported
from asyncrl_operator.core.actions import Ask
from asyncrl_operator.core.draft import Draft
from asyncrl_operator.core.times import read, written
from asyncrl_operator.manifests.names import QUARANTINE_ANNOTATION
from asyncrl_operator.manifests.ray_cluster import template_hash, worker_pods


def watch(draft: Draft) -> None:
    """Phase, numbers and settings of an attempt that goes on."""
    report, head = draft.report, draft.head
    spec = draft.seen.job.spec
    assert spec is not None
    draft.update(training=reported.training(draft.seen, draft.pods))
    if draft.seen.report is not None or draft.status.generation is None:
        draft.update(generation=reported.generation(draft.seen, draft.seen.report))
    if report is None:
        if head is not None and draft.phase == "Provisioning" and head.phase == "Running":
            draft.say("Initializing", "Starting", f"the controller starts in {head.name}")
        return
    _show_report(draft)
    if report.phase in ("Running", "Degraded", "Checkpointing"):
        if draft.status.running_time is None:
            draft.update(running_time=written(draft.now))
        if draft.phase in ("Provisioning", "Initializing"):
            draft.tell("TrainingStarted", f"attempt {draft.attempt.number if draft.attempt else 0} runs")
        degraded = draft.conditions.holds("Degraded")
        if degraded:
            draft.say("Degraded", "GenerationDegraded", draft.conditions.message("Degraded"))
        else:
            draft.say("Running", "Stepping", f"all of {spec.generation.shards} shards serve")
    elif draft.phase in ("Provisioning", "Initializing"):
        draft.say("Initializing", "Starting", "the controller builds model, data and shards")
    _settings(draft)
    _quarantine(draft)


def _show_report(draft: Draft) -> None:
    """Numbers of the run, no more often than asked where nothing else changes."""
    report, spec = draft.seen.report, draft.seen.job.spec
    assert report is not None
    assert spec is not None
    interval = spec.observability.progress_interval_seconds
    before = draft.status.progress.update_time if draft.status.progress else None
    age = (draft.now - read(before)).total_seconds() if before else float(interval)
    if draft.status.shards is None or [s.state for s in report.shards] != [
        s.state for s in sorted(draft.status.shards, key=lambda shard: shard.index or 0)
    ]:
        age = float(interval)
    if age < interval:
        draft.look_again(interval - age)
        return
    draft.update(
        progress=reported.progress(report),
        sampler=reported.sampler(report),
        shards=reported.shards(report, spec.observability.max_reported_shards),
    )
    saved = draft.status.checkpoint.last_step if draft.status.checkpoint else None
    draft.conditions.set(
        "CheckpointHealthy",
        "Unknown" if saved is None else True,
        "NothingSaved" if saved is None else "Saved",
        "nothing is saved yet" if saved is None else f"step {saved} is saved",
    )


def _settings(draft: Draft) -> None:
    """Push hot settings; name what waits for the next attempt."""
    job, report, attempt = draft.seen.job, draft.seen.report, draft.attempt
    assert job.spec is not None
    assert report is not None
    assert attempt is not None
    generation, pending = job.identity.generation, list(draft.seen.pending_config)
    if report.applied_generation < generation:
        key = f"config-{generation}"
        if key not in draft.seen.told:
            draft.do(Ask("apply_config", key))
    if template_hash(job.identity, job.spec, draft.seen.settings) != attempt.template_hash:
        pending = pending or ["the pods' template"]
    cluster = draft.cluster
    if cluster is not None and dict(cluster.replicas) != dict(worker_pods(job.spec)):
        pending = pending or ["spec.generation.shards"]
    behind = report.applied_generation < generation
    text = "waits for the controller" if behind else "all settings are in force"
    if pending:
        text = f"waits for the next attempt: {', '.join(pending)}"
    waits = bool(pending) or behind
    draft.conditions.set("UpdatePending", waits, "UpdatePending" if waits else "UpToDate", text)
    draft.update(
        config=ConfigStatus(
            applied_generation=report.applied_generation or None, pending=tuple(pending[:64]) or None
        )
    )


def _quarantine(draft: Draft) -> None:
    """Take shards out of service by hand, and let them back when the annotation no longer names them."""
    wanted = {
        int(word)
        for word in draft.seen.job.annotations.get(QUARANTINE_ANNOTATION, "").replace(",", " ").split()
        if word.isdigit()
    }
    asked = {int(key.partition("-")[2]) for key in draft.seen.told if key.startswith("quarantine-")}
    for index in sorted(wanted - asked):
        draft.do(Ask("quarantine", f"quarantine-{index}", index))
        draft.tell("ShardQuarantined", f"shard {index}, as annotated")
    for index in sorted(asked - wanted):
        draft.do(Ask("release", f"quarantine-{index}", index))
        draft.tell("ShardReadmitted", f"shard {index} is released")
