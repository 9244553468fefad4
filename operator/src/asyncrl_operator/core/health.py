"""What pods and reports say of an attempt: conditions by role, and whether it is over."""

from __future__ import annotations

from asyncrl_operator.core.draft import Draft
from asyncrl_operator.core.facts import Container, Pod, Report
from asyncrl_operator.core.faults import Fault
from asyncrl_operator.core.reported import SERVING, serving
from asyncrl_operator.core.times import read
from asyncrl_operator.manifests.names import Role
from asyncrl_operator.manifests.ray_cluster import worker_pods

SILENT_SECONDS, LOST_SECONDS = 30.0, 120.0
"""No report for so long: not ready; not responding any more."""

CRASHES, CRASH_SECONDS = 3, 600.0
DEGRADED_SECONDS = 300.0
TRAINER_SECONDS = 60.0
UNANSWERED_SECONDS = 60.0
"""How long KubeRay may take to show that it has seen a RayCluster."""

_CONDITIONS: dict[Role, str] = {
    "controller": "ControllerReady",
    "generation": "GenerationHealthy",
    "training": "TrainingHealthy",
}
_PULLS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
_CONFIGS = ("CreateContainerConfigError", "CreateContainerError")


def causes(draft: Draft) -> dict[Role, tuple[str, str]]:
    """Why pods of a role do not come up: reason and message, where that is known."""
    found: dict[Role, tuple[str, str]] = {}
    for pod in draft.pods:
        if pod.role not in found and (cause := _cause(pod)) is not None:
            found[pod.role] = cause
    return found


def refusal(draft: Draft) -> tuple[str, str] | None:
    """Why there are no pods: what KubeRay, a quota or a webhook said."""
    cluster = draft.cluster
    if cluster is None:
        return None
    if cluster.rejection:
        return "RayClusterRejected", f"KubeRay refuses RayCluster {cluster.name}: {cluster.rejection}"
    if "exceeded quota" in cluster.refusal:
        return "QuotaExceeded", cluster.refusal
    if cluster.refusal:
        hint = "; label the namespace for it" if "violates PodSecurity" in cluster.refusal else ""
        return "ChildRejected", f"{cluster.refusal}{hint}"
    age = (draft.now - cluster.created).total_seconds()
    if age < UNANSWERED_SECONDS:
        draft.look_again(UNANSWERED_SECONDS - age)
    elif not cluster.has_status and not draft.pods:
        return (
            "KubeRayNotResponding",
            f"KubeRay has not looked at RayCluster {cluster.name} for {age:.0f} s: check its operator",
        )
    return None


def controller(draft: Draft) -> Fault | None:
    """Set ControllerReady; gives how the attempt ended, if it is the controller's or its pod's end."""
    head, conditions = draft.head, draft.conditions
    if head is None:
        if conditions.holds("ControllerReady"):
            return Fault(reason="ControllerPodLost", message="the head pod is gone", role="controller")
        return None
    if head.deleted or head.phase == "Failed":
        what = "is being deleted" if head.deleted else "has failed"
        return of_controller(head, "ControllerPodLost", f"head pod {head.name} {what}")
    others = [pod for pod in draft.pods if pod.role == "controller" and pod.uid != head.uid]
    if others:
        what = f"head pod {head.name} was replaced by {others[0].name}"
        return of_controller(head, "ControllerPodLost", what)
    container = head.container("controller")
    if container is not None and (crash := _crashes(draft, head, container)) is not None:
        return crash
    return _heard(draft, head)


def of_controller(
    head: Pod, reason: str, message: str, *, exit_code: int | None = None, final: bool = False
) -> Fault:
    """A fault of the controller's container or its pod."""
    return Fault(
        reason=reason,
        message=message,
        role="controller",
        pod=head.name,
        container="controller",
        exit_code=exit_code,
        node=head.node,
        final=final,
    )


def generation(draft: Draft, report: Report) -> Fault | None:
    """Set GenerationHealthy, Degraded, ShardsQuarantined; too small a fleet ends the attempt in time."""
    spec, conditions = draft.seen.job.spec, draft.conditions
    assert spec is not None
    wanted, found = spec.generation.shards, serving(report)
    bad = [shard for shard in report.shards if shard.state not in SERVING]
    told = ", ".join(f"shard {shard.index} {shard.state}" for shard in bad)
    retired = [shard.index for shard in report.shards if shard.state == "RETIRED"]
    conditions.set(
        "ShardsQuarantined",
        bool(retired),
        "OutOfService" if retired else "NoneOut",
        f"shards out of service: {', '.join(map(str, retired))}" if retired else "no shard is out of service",
    )
    text = f"{found}/{wanted} shards serving" + (f": {told}" if told else "")
    conditions.set("Degraded", found < wanted, "GenerationDegraded" if found < wanted else "AllServe", text)
    enough = found >= spec.generation.min_shards
    conditions.set("GenerationHealthy", enough, "Serving" if enough else "GenerationDegraded", text)
    if enough:
        return None
    waited = conditions.seconds("GenerationHealthy")
    if waited >= DEGRADED_SECONDS:
        message = f"{text}, fewer than minShards {spec.generation.min_shards} for {waited:.0f} s"
        return Fault(reason="GenerationDegraded", message=message, role="generation")
    draft.look_again(DEGRADED_SECONDS - waited)
    return None


def training(draft: Draft) -> Fault | None:
    """Set TrainingHealthy; a trainer's pod that stays away ends the attempt."""
    spec, conditions = draft.seen.job.spec, draft.conditions
    assert spec is not None
    wanted = worker_pods(spec).get("training", 0)
    ready = [pod for pod in draft.pods if pod.role == "training" and pod.ready and not pod.deleted]
    if len(ready) >= wanted:
        conditions.set("TrainingHealthy", True, "Ready", f"{wanted or 1}/{wanted or 1} trainers ready")
        return None
    was_ready = conditions.holds("TrainingHealthy") or conditions.reason("TrainingHealthy") == "TrainerFailed"
    message = f"{len(ready)}/{wanted} training pods ready"
    conditions.set("TrainingHealthy", False, "TrainerFailed" if was_ready else "Starting", message)
    waited = conditions.seconds("TrainingHealthy")
    if was_ready and waited >= TRAINER_SECONDS:
        return Fault(reason="TrainerFailed", message=f"{message} for {waited:.0f} s", role="training")
    if was_ready:
        draft.look_again(TRAINER_SECONDS - waited)
    return None


def advance(draft: Draft, report: Report) -> Fault | None:
    """Set Progressing; no step for too long ends the attempt, whatever the controller says of itself."""
    spec = draft.seen.job.spec
    assert spec is not None
    limit, idle = spec.lifecycle.stall_deadline_seconds, report.idle_seconds or 0.0
    idle += (draft.now - report.received).total_seconds()
    if idle >= limit:
        saving = report.phase == "Checkpointing"
        reason = "CheckpointStuck" if saving else "StepStalled"
        message = f"no progress for {idle:.0f} s; lifecycle.stallDeadlineSeconds is {limit}"
        draft.conditions.set("Progressing", False, reason, message)
        return Fault(reason=reason, message=message, role="controller")
    draft.conditions.set("Progressing", True, "Stepping", f"it runs towards step {report.max_steps}")
    draft.look_again(limit - idle)
    return None


def show_causes(draft: Draft) -> None:
    """Pods that do not come up, in the conditions of their roles."""
    for role, (reason, message) in causes(draft).items():
        draft.conditions.set(_CONDITIONS[role], False, reason, message)
    if (refused := refusal(draft)) is not None:
        draft.conditions.set("ClusterCreated", False, *refused)
        draft.conditions.set("ControllerReady", False, *refused)


def _cause(pod: Pod) -> tuple[str, str] | None:
    if pod.unschedulable:
        return "Unschedulable", f"pod {pod.name}: {pod.unschedulable}"
    for container in pod.containers:
        text = f"pod {pod.name}, container {container.name}: {container.waiting_message}"
        if container.waiting in _PULLS:
            return "ImagePullFailed", text
        if container.waiting in _CONFIGS:
            return "ConfigReferenceMissing", text
        if container.last_exit is not None and container.last_exit.reason == "OOMKilled":
            return "OOMKilled", f"pod {pod.name}, container {container.name} ran out of memory"
    return None


def _crashes(draft: Draft, head: Pod, container: Container) -> Fault | None:
    """Ends other than the orderly one are the kubelet's to repair, until there are too many."""
    exit = container.exit if container.exit is not None else container.last_exit
    if exit is None or exit.code == 0:
        return None
    age = (draft.now - exit.at).total_seconds() if exit.at else 0.0
    report = draft.seen.report
    heard = report is not None and exit.at is not None and report.received > exit.at
    if age >= CRASH_SECONDS or (container.restarts < CRASHES and (heard or age < LOST_SECONDS)):
        if not heard:
            draft.look_again(LOST_SECONDS - age)
        return None
    reason = "OOMKilled" if exit.reason == "OOMKilled" else "ControllerFailed"
    message = f"the controller exited with {exit.code} {container.restarts} times: {exit.message[-400:]}"
    return of_controller(head, reason, message.rstrip(": "), exit_code=exit.code)


def _heard(draft: Draft, head: Pod) -> Fault | None:
    report, conditions = draft.report, draft.conditions
    if report is not None:
        silent = (draft.now - report.received).total_seconds()
        if silent < SILENT_SECONDS:
            conditions.set("ControllerReady", True, "Reporting", f"the controller in {head.name} reports")
            draft.look_again(SILENT_SECONDS - silent)
            return None
    elif conditions.holds("ControllerReady") or conditions.reason("ControllerReady") == "NoReport":
        silent = (draft.now - (draft.seen.listening or draft.now)).total_seconds()
        if silent < SILENT_SECONDS:  # an operator that has just started has heard nobody yet
            draft.look_again(SILENT_SECONDS - silent)
            return None
    else:
        conditions.set("ControllerReady", False, "Starting", f"waiting for the controller in {head.name}")
        return None
    what = f"no report from {head.name} for {silent:.0f} s"
    conditions.set("ControllerReady", False, "NoReport", what)
    if silent >= LOST_SECONDS:
        return of_controller(head, "ControllerNotResponding", what)
    draft.look_again(LOST_SECONDS - silent)
    return None


def startup(draft: Draft) -> Fault | None:
    """An attempt that does not run in time."""
    spec, attempt = draft.seen.job.spec, draft.attempt
    assert spec is not None
    assert attempt is not None
    if attempt.start_time is None or draft.phase not in ("Provisioning", "Initializing"):
        return None
    limit = spec.lifecycle.startup_deadline_seconds
    waited = (draft.now - read(attempt.start_time)).total_seconds()
    if waited < limit:
        draft.look_again(limit - waited)
        return None
    why = next(iter(causes(draft).values()), None) or refusal(draft)
    text = f": {why[0]}, {why[1]}" if why else ""
    message = f"not running after {waited:.0f} s; lifecycle.startupDeadlineSeconds is {limit}{text}"
    return Fault(reason="StartupDeadlineExceeded", message=message)
