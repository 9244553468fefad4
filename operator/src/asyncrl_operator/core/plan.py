"""One pass over a job: what it should look like, and the next step towards it."""

from __future__ import annotations

from datetime import datetime

from asyncrl_api.status import AttemptStatus, RestartStatus
from asyncrl_operator.core import ending, health, reported, watching
from asyncrl_operator.core.actions import AddFinalizer, Apply, Create, CreateSecret, Nudge, Plan
from asyncrl_operator.core.draft import ACTIVE, TERMINAL, Draft
from asyncrl_operator.core.facts import Exit, Snapshot
from asyncrl_operator.core.faults import Fault
from asyncrl_operator.core.times import read, written
from asyncrl_operator.manifests import beside
from asyncrl_operator.manifests.names import (
    FINALIZER,
    PAUSED_ANNOTATION,
    attempt_name,
)
from asyncrl_operator.manifests.ray_cluster import ray_cluster, template_hash

_NUDGE_SECONDS = 60.0
_DISCOVERY_SECONDS = 60.0


def plan(seen: Snapshot, *, now: datetime) -> Plan:
    """Pure. Carrying the plan out and planning again comes to rest."""
    draft = Draft.of(seen, now)
    job = seen.job
    if job.deleted is not None:
        ending.delete(draft)
    elif job.annotations.get(PAUSED_ANNOTATION) == "true":
        _paused(draft)
    else:
        draft.conditions.set("ReconcilePaused", False, "NotPaused", "the operator looks after this job")
        if draft.phase in TERMINAL:
            ending.finished(draft)
        elif _accepted(draft) and _storage(draft):
            _advance(draft)
    return draft.plan()


def _paused(draft: Draft) -> None:
    text = f"remove the annotation {PAUSED_ANNOTATION} to go on"
    draft.conditions.set("ReconcilePaused", True, "Paused", text)


def _accepted(draft: Draft) -> bool:
    """The spec is sound and the cluster can run it."""
    job, conditions = draft.seen.job, draft.conditions
    if FINALIZER not in job.finalizers:
        draft.do(AddFinalizer())
    if draft.phase is None:
        draft.say("Pending", "Pending", "first seen")
        draft.update(start_time=written(draft.now))
    if job.spec is None:
        conditions.set("Accepted", False, "Invalid", "; ".join(job.problems))
        if draft.phase == "Pending":
            draft.say("Pending", "Invalid", "; ".join(job.problems))
        return False
    if not draft.seen.kuberay:
        text = "the cluster does not know RayClusters: install the KubeRay operator"
        conditions.set("Accepted", False, "KubeRayNotInstalled", text)
        draft.say(draft.phase or "Pending", "KubeRayNotInstalled", text)
        draft.look_again(_DISCOVERY_SECONDS)
        return False
    if not conditions.holds("Accepted"):
        draft.tell("Accepted", "the job is sound")
    conditions.set("Accepted", True, "Valid", "the job is sound")
    provider = job.spec.scheduling.provider
    if provider == "None":
        conditions.set("QuotaReserved", True, "NoQueue", "no queue is asked")
    else:
        conditions.set("QuotaReserved", "Unknown", provider, "waits for its queue")
    conditions.set("DisruptionPending", False, "NoDisruption", "no node of the job is being drained")
    _show_security(draft)
    draft.update(gpus=reported.gpus(draft.seen))
    return True


def _show_security(draft: Draft) -> None:
    spec = draft.seen.job.spec
    assert spec is not None
    security = spec.security
    off = [
        name
        for name, value in (("rayAuth", security.ray_auth), ("networkPolicy", security.network_policy))
        if value == "Disabled"
    ]
    text = f"{', '.join(off)} off in spec.security" if off else "tokens and network policy are on"
    draft.conditions.set("SecurityEnforced", not off, "Degraded" if off else "Enforced", text)


def _storage(draft: Draft) -> bool:
    """There is a place for checkpoints, or there will be once a pod asks for it."""
    spec, conditions, claim = draft.seen.job.spec, draft.conditions, draft.seen.claim
    assert spec is not None
    draft.update(checkpoint=reported.checkpoint(draft.seen, draft.status.checkpoint))
    volume = spec.checkpointing.volume
    if volume is None:
        conditions.set("StorageReady", True, "NoVolume", "the job saves nothing that outlives a pod")
        return True
    name = (draft.status.checkpoint.claim_name if draft.status.checkpoint else None) or ""
    if claim is None:
        text = f"claim {name} does not exist"
        conditions.set("StorageReady", False, "ClaimPending", text)
        if volume.template is None:
            _hold(draft, "ClaimPending", f"{text}: create it, or use checkpointing.volume.template")
            return draft.phase in ACTIVE
        return True
    if claim.deleted or claim.phase == "Lost":
        text = f"claim {name} is {'being deleted' if claim.deleted else 'lost'}"
        conditions.set("StorageReady", False, "ClaimPending", text)
        conditions.set("CheckpointHealthy", False, "ClaimPending", text)
        _hold(draft, "ClaimPending", text)
        return draft.phase in ACTIVE
    if wrong := _mismatch(draft):
        conditions.set("StorageReady", False, "ClaimMismatch", wrong)
        _hold(draft, "ClaimMismatch", wrong)
        return draft.phase in ACTIVE
    bound = claim.phase == "Bound"
    text = f"claim {name} is bound" if bound else f"claim {name} waits for its first pod"
    conditions.set("StorageReady", bound, "Bound" if bound else "ClaimPending", text)
    return True


def _mismatch(draft: Draft) -> str:
    """What a bound claim lacks of what was asked for; empty: nothing."""
    spec, claim = draft.seen.job.spec, draft.seen.claim
    assert spec is not None
    assert claim is not None
    assert spec.checkpointing.volume is not None
    template = spec.checkpointing.volume.template
    if spec.training.hosts > 1 and "ReadWriteMany" not in claim.access_modes:
        return f"claim {claim.name} has not ReadWriteMany, which {spec.training.hosts} training hosts need"
    if template is None:
        return ""
    if missing := [mode for mode in template.access_modes if mode not in claim.access_modes]:
        return f"claim {claim.name} has not the access modes {', '.join(missing)}"
    asked = template.storage_class_name
    if asked is not None and claim.storage_class not in (None, asked):
        return f"claim {claim.name} has class {claim.storage_class}, not {asked}"
    return ""


def _hold(draft: Draft, reason: str, message: str) -> None:
    """Say why no attempt starts; one that runs goes on."""
    if draft.phase not in ACTIVE:
        draft.say(draft.phase or "Pending", reason, message)


def _advance(draft: Draft) -> None:
    """The part that starts, watches and ends attempts."""
    spec = draft.seen.job.spec
    assert spec is not None
    if spec.suspend:
        ending.suspend(draft)
        return
    if draft.phase in ("Suspended", "Suspending") or (
        draft.phase == "Checkpointing" and draft.conditions.status("Suspended") != "False"
    ):
        _resume(draft)
        return
    draft.conditions.set("Suspended", False, "NotSuspended", "spec.suspend is false")
    if draft.attempt is None:
        _begin(draft, draft.next_attempt, "Created")
    elif draft.phase == "Restarting":
        _restart(draft)
    elif _over_time(draft):
        limit = spec.lifecycle.active_deadline_seconds
        message = f"it held resources for lifecycle.activeDeadlineSeconds {limit}"
        ending.fail(draft, Fault(reason="DeadlineExceeded", message=message, final=True))
    else:
        _run(draft)


def _begin(draft: Draft, number: int, reason: str) -> None:
    """Write the attempt down before anything of it exists."""
    job = draft.seen.job
    assert job.spec is not None
    progress = draft.status.checkpoint
    draft.update(
        attempt=AttemptStatus(
            number=number,
            ray_cluster_name=attempt_name(job.identity.name, number),
            start_time=written(draft.now),
            reason=reason,
            resumed_from_step=(progress.last_step if progress and number > 1 else None),
            template_hash=template_hash(job.identity, job.spec, draft.seen.settings),
        ),
        restarts=draft.status.restarts or RestartStatus(counted=0, total=0),
    )
    draft.conditions.set("ClusterCreated", False, "Starting", f"attempt {number} begins")
    draft.conditions.set("Restarting", False, "Starting", f"attempt {number} begins")
    draft.say("Provisioning", reason, f"attempt {number} begins")
    draft.look_again(0)


def _resume(draft: Draft) -> None:
    """Suspension is over: what is left of it goes, then a new attempt begins."""
    if draft.own_clusters:
        ending.remove_clusters(draft, at_once=True)
        draft.say("Suspending", "Resumed", "waiting until the suspended pods are gone")
        return
    draft.conditions.set("Suspended", False, "Resumed", "spec.suspend is false")
    draft.tell("Resumed", "the job goes on from what was saved")
    _begin(draft, draft.next_attempt, "Resumed")


def _restart(draft: Draft) -> None:
    due = draft.status.restarts.next_retry_time if draft.status.restarts else None
    left = (read(due) - draft.now).total_seconds() if due else 0.0
    if draft.own_clusters:
        ending.remove_clusters(draft, at_once=True)
    elif left > 0:
        draft.look_again(left)
    else:
        _begin(draft, draft.next_attempt, draft.status.reason or "Restarted")


def _over_time(draft: Draft) -> bool:
    spec = draft.seen.job.spec
    assert spec is not None
    limit = spec.lifecycle.active_deadline_seconds
    if limit is None:
        return False
    used = ending.active_seconds(draft)
    if used < limit:
        draft.look_again(limit - used)
    return used >= limit


def _run(draft: Draft) -> None:
    """An attempt that is under way."""
    cluster, attempt = draft.cluster, draft.attempt
    assert attempt is not None
    if cluster is None:
        _without_cluster(draft)
        return
    if draft.conditions.reason("ClusterCreated") == "Starting":
        draft.tell("RayClusterCreated", f"RayCluster {cluster.name} of attempt {attempt.number}")
    draft.conditions.set("ClusterCreated", True, "Created", f"RayCluster {cluster.name}")
    if cluster.deleted:
        _cluster_deleted(draft, cluster.name)
        return
    fault = _over(draft)
    if fault is None:
        watching.watch(draft)
        health.show_causes(draft)
        _nudge(draft)
        return
    if fault.reason == "Completed":
        ending.succeed(draft, fault.message)
    elif fault.final:
        ending.fail(draft, fault)
    else:
        ending.end_attempt(draft, fault)


def _without_cluster(draft: Draft) -> None:
    attempt = draft.attempt
    assert attempt is not None
    name = attempt.ray_cluster_name
    if any(cluster.name == name for cluster in draft.seen.clusters):
        message = f"a RayCluster {name} exists that is not this job's: delete or rename it"
        draft.conditions.set("ClusterCreated", False, "ForeignRayCluster", message)
        draft.say(draft.phase or "Provisioning", "ForeignRayCluster", message)
        return
    if draft.conditions.holds("ClusterCreated"):
        _cluster_deleted(draft, name or "")
        return
    _create(draft)


def _cluster_deleted(draft: Draft, name: str) -> None:
    ending.end_attempt(draft, Fault(reason="ClusterDeleted", message=f"RayCluster {name} was deleted"))


def _create(draft: Draft) -> None:
    """Everything of an attempt; what exists is left as it is."""
    job, settings = draft.seen.job, draft.seen.settings
    assert job.spec is not None
    assert draft.attempt is not None
    number = draft.attempt.number or 1
    if not draft.has_secret(number):
        draft.do(CreateSecret(number))
    claim = beside.claim(job.identity, job.spec)
    if claim is not None and draft.seen.claim is None:
        draft.do(Create(claim))
    draft.do(Apply(beside.service(job.identity, job.spec)))
    for manifest in (
        beside.network_policy(job.identity, job.spec, settings),
        beside.disruption_budget(job.identity, job.spec, number),
        beside.pod_monitor(job.identity, job.spec, settings),
    ):
        if manifest is not None:
            draft.do(Apply(manifest))
    draft.do(Create(ray_cluster(job.identity, job.spec, number, settings)))


def _over(draft: Draft) -> Fault | None:
    """The attempt's end, orderly or not."""
    exit = draft.orderly_exit
    if exit is not None:
        return _last_words(draft, exit)
    fault, report = health.controller(draft), draft.report
    if fault is None and report is not None:
        fault = health.generation(draft, report) or health.advance(draft, report)
    return fault or health.training(draft) or health.startup(draft)


def _last_words(draft: Draft, exit: Exit) -> Fault:
    head, words = draft.head, exit.report()
    assert head is not None
    step, message, code = words.get("step", 0), str(words.get("message", "")), words.get("code")
    match words.get("outcome"):
        case "complete":
            return Fault(reason="Completed", message=f"complete at step {step}")
        case "invalid":
            return health.of_controller(head, "Invalid", message, final=True)
        case "stopped":
            text = f"the run was stopped at step {step} by a request that was not the operator's"
            return health.of_controller(head, "Stopped", text, final=True)
        case "failed":
            exit_code = code if isinstance(code, int) else None
            return health.of_controller(head, "ControllerFailed", message, exit_code=exit_code)
    return health.of_controller(head, "ControllerFailed", "the controller ended and did not say why")


def _nudge(draft: Draft) -> None:
    """KubeRay does not notice quota that becomes free."""
    if draft.conditions.reason("ClusterCreated") != "QuotaExceeded" or draft.cluster is None:
        return
    if draft.conditions.seconds("ClusterCreated") >= _NUDGE_SECONDS:
        draft.do(Nudge(draft.cluster.name))
    draft.look_again(_NUDGE_SECONDS)
