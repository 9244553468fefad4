"""Names, labels and ports that objects of one job share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from asyncrl_api.job import JobSpec

Role = Literal["controller", "generation", "training"]
Manifest = dict[str, Any]

API_VERSION = "asyncrl.io/v1alpha1"
KIND = "AsyncRLJob"
FIELD_MANAGER = "asyncrl-operator"
FINALIZER = "asyncrl.io/cleanup"

JOB_LABEL = "asyncrl.io/job"
JOB_UID_LABEL = "asyncrl.io/job-uid"
ATTEMPT_LABEL = "asyncrl.io/attempt"
ROLE_LABEL = "asyncrl.io/role"
GENERATION_ANNOTATION = "asyncrl.io/generation"
HASH_ANNOTATION = "asyncrl.io/template-hash"
PAUSED_ANNOTATION = "asyncrl.io/paused"
RESTART_ANNOTATION = "asyncrl.io/restart"
QUARANTINE_ANNOTATION = "asyncrl.io/quarantine-shards"

CONTROL_PORT, HEALTH_PORT = 8091, 8092
RAY_METRICS_PORT, RAY_AGENT_PORT = 8080, 52365


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's own configuration, as far as renderings depend on it."""

    image: str
    """Of jobs that name none."""

    namespace: str = "asyncrl-system"
    """Where the operator's pods are."""

    pod_monitors: bool = False
    """The cluster serves the kind PodMonitor."""

    monitoring_namespaces: tuple[tuple[str, str], ...] = ()
    """Labels of namespaces whose pods may read metrics."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which job an object belongs to."""

    name: str
    namespace: str
    uid: str
    generation: int = 0

    def labels(self, attempt: int | None = None, role: Role | None = None) -> dict[str, str]:
        """Of every object of the job, of an attempt, of a role."""
        found = {
            JOB_LABEL: self.name,
            JOB_UID_LABEL: self.uid,
            "app.kubernetes.io/name": "asyncrl",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": "asyncrl-operator",
        }
        if attempt is not None:
            found[ATTEMPT_LABEL] = str(attempt)
        if role is not None:
            found |= {ROLE_LABEL: role, "app.kubernetes.io/component": role}
        return found

    def owner(self) -> Manifest:
        """Reference by which the job owns its objects."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def metadata(self, name: str, *, attempt: int | None = None, owned: bool = True) -> Manifest:
        """Metadata of one object."""
        found: Manifest = {"name": name, "namespace": self.namespace, "labels": self.labels(attempt)}
        if owned:
            found["ownerReferences"] = [self.owner()]
        return found


def attempt_name(job: str, attempt: int) -> str:
    """RayCluster, Secret and disruption budget of one attempt."""
    return f"{job}-a{attempt}"


def claim_name(job: str, spec: JobSpec) -> str | None:
    """The claim that holds checkpoints; None: there is none."""
    volume = spec.checkpointing.volume
    if volume is None:
        return None
    return volume.claim_name or f"{job}-checkpoints"


def selector(identity: Identity, role: Role) -> str:
    """Label selector of a role's pods."""
    return f"{JOB_UID_LABEL}={identity.uid},{ROLE_LABEL}={role}"
