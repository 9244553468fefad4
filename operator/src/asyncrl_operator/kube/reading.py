"""From Kubernetes objects to the facts of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from asyncrl_api.control import control_pb2 as pb
from asyncrl_api.parse import ManifestInvalid, parse
from asyncrl_api.resolve import resolve
from asyncrl_api.status import JobStatus
from asyncrl_operator.core.facts import Claim, Container, Exit, Job, Pod, RayCluster, Report, Shard
from asyncrl_operator.core.times import read
from asyncrl_operator.kube.api import Object
from asyncrl_operator.manifests.names import (
    ATTEMPT_LABEL,
    HASH_ANNOTATION,
    JOB_UID_LABEL,
    ROLE_LABEL,
    Identity,
)

_REFUSED = "ReplicaFailure"


def job_of(found: Object) -> Job:
    """The resource, checked by the rules that its models have."""
    meta = found["metadata"]
    identity = Identity(meta["name"], meta["namespace"], meta["uid"], meta.get("generation", 0))
    spec, problems = None, ()
    try:
        parsed = parse({**found, "metadata": _plain(meta)}, cluster=True)
        spec = resolve(parsed, cluster=True).spec
    except ManifestInvalid as invalid:
        problems = tuple(map(str, invalid.problems))
    return Job(
        identity=identity,
        spec=spec,
        raw_spec=found.get("spec") or {},
        problems=problems,
        status=JobStatus.model_validate(found.get("status") or {}, by_alias=True, by_name=False),
        finalizers=tuple(meta.get("finalizers", ())),
        annotations=meta.get("annotations") or {},
        created=read(meta["creationTimestamp"]),
        deleted=_time(meta.get("deletionTimestamp")),
    )


def cluster_of(found: Object, *, rejection: str = "") -> RayCluster:
    """A RayCluster."""
    meta, spec, status = found["metadata"], found.get("spec", {}), found.get("status") or {}
    labels = meta.get("labels") or {}
    return RayCluster(
        name=meta["name"],
        uid=meta["uid"],
        job_uid=labels.get(JOB_UID_LABEL, ""),
        attempt=_number(labels.get(ATTEMPT_LABEL)),
        created=read(meta["creationTimestamp"]),
        deleted=meta.get("deletionTimestamp") is not None,
        suspended=bool(spec.get("suspend")),
        has_status=bool(status),
        template_hash=(meta.get("annotations") or {}).get(HASH_ANNOTATION, ""),
        replicas={g["groupName"]: g.get("replicas", 0) for g in spec.get("workerGroupSpecs", [])},
        refusal=next(
            (
                condition.get("message", "")
                for condition in status.get("conditions", [])
                if condition["type"] == _REFUSED and condition["status"] == "True"
            ),
            "",
        ),
        rejection=rejection,
    )


def pod_of(found: Object) -> Pod | None:
    """A pod of a job; None: it has no role that we know."""
    meta, spec, status = found["metadata"], found.get("spec", {}), found.get("status") or {}
    labels = meta.get("labels") or {}
    role = labels.get(ROLE_LABEL)
    if role not in ("controller", "generation", "training"):
        return None
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    refused = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    states = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        role=role,
        attempt=_number(labels.get(ATTEMPT_LABEL)),
        phase=status.get("phase", "Pending"),
        ready=conditions.get("Ready", {}).get("status") == "True",
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        deleted=meta.get("deletionTimestamp") is not None,
        created=read(meta["creationTimestamp"]),
        unschedulable=scheduled.get("message", "") if refused else "",
        containers=tuple(_container(state) for state in states),
    )


def claim_of(found: Object | None) -> Claim | None:
    """The claim for checkpoints."""
    if found is None:
        return None
    spec = found.get("spec", {})
    return Claim(
        name=found["metadata"]["name"],
        phase=(found.get("status") or {}).get("phase", "Pending"),
        deleted=found["metadata"].get("deletionTimestamp") is not None,
        access_modes=tuple(spec.get("accessModes", ())),
        storage_class=spec.get("storageClassName"),
    )


def report_of(message: pb.RunStatus, *, pod_uid: str, received: datetime) -> Report:
    """What a controller says of its run."""
    progress, sampler = message.progress, message.sampler

    def known(block: Any, name: str) -> Any:
        return getattr(block, name) if block.HasField(name) else None

    return Report(
        pod_uid=pod_uid,
        received=received,
        phase=message.phase,
        step=progress.step,
        max_steps=progress.max_steps,
        trainer_version=progress.trainer_version,
        epoch=progress.epoch,
        reward_mean=known(progress, "reward_mean"),
        eta_seconds=known(progress, "eta_seconds"),
        step_seconds=known(progress, "step_seconds"),
        tokens_per_second=known(progress, "generated_tokens_per_second"),
        idle_fraction=known(progress, "trainer_idle_fraction"),
        idle_seconds=known(progress, "idle_seconds"),
        sampler=sampler.name,
        knobs=sampler.knobs,
        staleness_p50=known(sampler, "staleness_p50"),
        staleness_p95=known(sampler, "staleness_p95"),
        staleness_max=known(sampler, "staleness_max"),
        ready=sampler.ready_groups,
        inflight=sampler.inflight_groups,
        capacity=sampler.capacity_groups,
        shards=tuple(_shards(message.shards)),
        dropped=message.prompts.dropped,
        discarded_by_cause=dict(message.prompts.discarded_by_cause),
        checkpoint_step=known(message.saved, "last_checkpoint_step"),
        applied_generation=message.applied_generation,
        failure=message.failure.message,
    )


def _shards(found: Iterable[pb.Shard]) -> Iterable[Shard]:
    for shard in found:
        if shard.state in ("HEALTHY", "SUSPECT", "DEAD", "RESTARTING", "STALE", "RETIRED"):
            yield Shard(index=shard.index, state=shard.state, weight_version=shard.weight_version)


def _container(state: Mapping[str, Any]) -> Container:
    now, before = state.get("state") or {}, state.get("lastState") or {}
    waiting = now.get("waiting") or {}
    return Container(
        name=state["name"],
        ready=bool(state.get("ready")),
        restarts=state.get("restartCount", 0),
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        exit=_exit(now.get("terminated")),
        last_exit=_exit(before.get("terminated")),
    )


def _exit(ended: Mapping[str, Any] | None) -> Exit | None:
    if ended is None:
        return None
    return Exit(
        code=ended.get("exitCode", 0),
        reason=ended.get("reason", ""),
        message=ended.get("message", ""),
        at=_time(ended.get("finishedAt")),
    )


def _plain(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": meta["name"], "namespace": meta["namespace"]}


def _time(text: str | None) -> datetime | None:
    return read(text) if text else None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def utc_now() -> datetime:
    """With whole seconds, as Kubernetes writes times."""
    return datetime.now(UTC).replace(microsecond=0)
