"""How a job, an attempt or a suspension ends: saving first where there is something to save."""

from __future__ import annotations

from dataclasses import replace

from asyncrl_api.status import FailureStatus, PastAttempt, RestartStatus
from asyncrl_operator.core.actions import (
    Ask,
    DeleteAttempt,
    DeleteCluster,
    DeleteJob,
    RemoveFinalizer,
)
from asyncrl_operator.core.conditions import MAX_MESSAGE, shortened
from asyncrl_operator.core.draft import TERMINAL, Draft
from asyncrl_operator.core.faults import Fault, backoff, counted_restarts, decide
from asyncrl_operator.core.times import read, written
from asyncrl_operator.manifests.names import FINALIZER

MAX_HISTORY = 10
CLEANUP_SECONDS = 60.0
_POLL_SECONDS = 2.0
_OF_AN_ATTEMPT = (
    "ControllerReady",
    "GenerationHealthy",
    "TrainingHealthy",
    "Progressing",
    "ClusterCreated",
    "Degraded",
)


def delete(draft: Draft) -> None:
    """The job's deletion was asked for: save if it may, then let everything go."""
    job = draft.seen.job
    assert job.deleted is not None
    draft.gone = FINALIZER not in job.finalizers
    if draft.gone:
        return
    waited = (draft.now - job.deleted).total_seconds()
    grace = job.spec.lifecycle.termination_grace_period_seconds if job.spec else 0
    if not draft.own_clusters:
        draft.do(RemoveFinalizer())
        draft.gone = True
    elif waited >= grace + CLEANUP_SECONDS:
        draft.tell("CleanupForced", f"its pods were not gone {waited:.0f} s after the deletion", warning=True)
        draft.do(RemoveFinalizer())
        draft.gone = True
    elif waited < grace and not has_left(draft) and _quiesce(draft, "deleted"):
        draft.look_again(_POLL_SECONDS)
    else:
        remove_clusters(draft, at_once=waited >= grace)
        draft.look_again(grace + CLEANUP_SECONDS - waited)


def suspend(draft: Draft) -> None:
    """Save, free everything, stay."""
    job, conditions = draft.seen.job, draft.conditions
    assert job.spec is not None
    if conditions.status("Suspended") != "True" and draft.phase not in ("Checkpointing", "Suspending"):
        conditions.set("Suspended", "Unknown", "Suspending", "saving, then freeing every GPU")
    waited = conditions.seconds("Suspended")
    if not draft.own_clusters:
        if not conditions.holds("Suspended"):
            draft.tell("Suspended", "nothing runs and no GPU is held; set spec.suspend to false to go on")
        conditions.set("Suspended", True, "Suspended", "nothing runs; set spec.suspend to false to go on")
        _nothing_runs(draft, "Suspended")
        draft.say("Suspended", "Suspended", "nothing runs and no GPU is held")
        return
    limit = job.spec.checkpointing.timeout_seconds
    if waited < limit and not has_left(draft) and _quiesce(draft, "suspended"):
        draft.say("Checkpointing", "Suspending", f"saving before it is suspended, for at most {limit} s")
        draft.look_again(min(_POLL_SECONDS, limit - waited))
        return
    remove_clusters(draft, at_once=has_left(draft))
    draft.say("Suspending", "Suspending", "waiting until its pods are gone")


def finished(draft: Draft) -> None:
    """Clear up behind a job that has ended, and in the end itself."""
    job = draft.seen.job
    ended = draft.status.completion_time
    if job.spec is None or ended is None:
        return
    since, lifecycle = (draft.now - read(ended)).total_seconds(), job.spec.lifecycle
    if draft.phase == "Succeeded":
        keep = None if lifecycle.on_finished == "KeepCluster" else 0
    else:
        keep = lifecycle.keep_failed_cluster_seconds
    if draft.own_clusters and keep is not None:
        if since >= keep:
            remove_clusters(draft, at_once=True)
        else:
            draft.look_again(keep - since)
    if lifecycle.ttl_seconds_after_finished is not None:
        left = lifecycle.ttl_seconds_after_finished - since
        if left <= 0:
            draft.tell("TTLExpired", f"deleted {lifecycle.ttl_seconds_after_finished} s after its end")
            draft.do(DeleteJob())
        else:
            draft.look_again(left)


def succeed(draft: Draft, message: str) -> None:
    """The run is complete."""
    draft.conditions.set("Complete", True, "Completed", message)
    draft.conditions.set("Failed", False, "Completed", message)
    _close(draft, "Completed")
    draft.say("Succeeded", "Completed", message)
    draft.tell("Completed", message)


def fail(draft: Draft, fault: Fault) -> None:
    """The job has failed for good."""
    draft.conditions.set("Failed", True, fault.reason, fault.message)
    draft.conditions.set("Complete", False, fault.reason, fault.message)
    draft.update(failure=_failure(fault))
    _close(draft, fault.reason)
    draft.say("Failed", fault.reason, fault.message)
    draft.tell("Failed", fault.message, warning=True)


def end_attempt(draft: Draft, fault: Fault) -> None:
    """The attempt is over: another follows after a wait, or the job has failed."""
    spec, status = draft.seen.job.spec, draft.status
    assert spec is not None
    assert status.attempt is not None
    policy = spec.fault_policy
    decision = decide(fault, policy)
    if not decision.restart:
        fail(draft, fault)
        return
    counted = counted_restarts(status, policy, draft.now) + decision.counted
    if decision.counted and counted > policy.max_restarts:
        draft.tell("RestartLimitReached", f"{policy.max_restarts} restarts were made", warning=True)
        message = f"{fault.message}; faultPolicy.maxRestarts {policy.max_restarts} is reached"
        fail(draft, replace(fault, message=message))
        return
    wait = backoff(policy, counted) if decision.counted else backoff(policy, 1)
    total = (status.restarts.total if status.restarts else None) or 0
    draft.update(
        failure=_failure(fault),
        history=_with_past(draft, fault.reason, counted=decision.counted, fault=fault),
        restarts=RestartStatus(
            counted=counted,
            total=total + 1,
            last_time=written(draft.now),
            next_retry_time=written(draft.now + wait),
        ),
    )
    draft.conditions.set("Restarting", True, fault.reason, fault.message)
    _nothing_runs(draft, fault.reason)
    draft.say("Restarting", fault.reason, f"{fault.message}; the next attempt starts in {wait.seconds} s")
    draft.tell(
        "RestartScheduled",
        f"attempt {status.attempt.number} ended: {fault.message}; the next starts in {wait.seconds} s",
        warning=True,
    )
    remove_clusters(draft, at_once=True)
    draft.look_again(wait.total_seconds())


def remove_clusters(draft: Draft, *, at_once: bool) -> None:
    """Every RayCluster of the job, and what belongs to its attempt."""
    for cluster in draft.own_clusters:
        if not cluster.deleted:
            draft.do(DeleteCluster(cluster.name, cluster.uid, at_once))
        if draft.has_secret(cluster.attempt):
            draft.do(DeleteAttempt(cluster.attempt))


def has_left(draft: Draft) -> bool:
    """The controller has ended its run, or there is none: nothing more is saved."""
    head = draft.head
    gone = head is None or head.deleted or head.phase in ("Failed", "Succeeded")
    return gone or draft.orderly_exit is not None


def _quiesce(draft: Draft, why: str) -> bool:
    """Ask the controller to save and leave; False where it does not save, or cannot be asked."""
    spec = draft.seen.job.spec
    if spec is None or spec.lifecycle.on_suspend == "Stop" or draft.seen.report is None:
        return False
    if "quiesce" not in draft.seen.told:
        draft.do(Ask("quiesce", "quiesce"))
        draft.tell("Checkpointing", f"the job is {why}: it saves first")
    return True


def _close(draft: Draft, reason: str) -> None:
    draft.update(
        completion_time=written(draft.now),
        history=_with_past(draft, reason, counted=False, fault=None),
        active_seconds=active_seconds(draft),
    )
    draft.conditions.set("Restarting", False, reason, "the job has ended")
    _nothing_runs(draft, reason)


def _nothing_runs(draft: Draft, reason: str) -> None:
    for kind in _OF_AN_ATTEMPT:
        draft.conditions.set(kind, False, reason, "nothing runs")


def _with_past(
    draft: Draft, reason: str, *, counted: bool, fault: Fault | None
) -> tuple[PastAttempt, ...] | None:
    attempt, known = draft.attempt, draft.status.history or ()
    if attempt is None:
        return known or None
    past = PastAttempt(
        number=attempt.number,
        reason=reason,
        start_time=attempt.start_time,
        end_time=written(draft.now),
        from_step=attempt.resumed_from_step,
        to_step=draft.status.progress.step if draft.status.progress else None,
        counted=counted,
        exit_code=fault.exit_code if fault else None,
        node=(fault.node or None) if fault else None,
    )
    return (past, *known)[:MAX_HISTORY]


def active_seconds(draft: Draft) -> int:
    """Of all attempts, this one included."""
    spans = [(past.start_time, past.end_time) for past in draft.status.history or ()]
    if draft.attempt is not None and draft.phase not in (*TERMINAL, "Restarting", "Suspended"):
        spans.append((draft.attempt.start_time, written(draft.now)))
    return round(sum((read(end) - read(start)).total_seconds() for start, end in spans if start and end))


def _failure(fault: Fault) -> FailureStatus:
    return FailureStatus(
        reason=fault.reason,
        message=shortened(fault.message, MAX_MESSAGE),
        pod=fault.pod or None,
        container=fault.container or None,
        exit_code=fault.exit_code,
        node=fault.node or None,
    )
