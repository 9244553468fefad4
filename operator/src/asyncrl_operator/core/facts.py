"""What one pass over a job may know: the job, what exists of it, and what its controller reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from asyncrl_api.job import JobSpec
from asyncrl_api.status import JobStatus
from asyncrl_operator.manifests.names import Identity, Role, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The resource itself."""

    identity: Identity
    spec: JobSpec | None
    """Resolved; None: it breaks rules."""

    raw_spec: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """Why there is no spec."""

    status: JobStatus = field(default_factory=JobStatus)
    finalizers: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    created: datetime
    deleted: datetime | None = None
    """When its deletion was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container's state."""

    name: str
    ready: bool = False
    restarts: int = 0
    waiting: str = ""
    """Reason, CamelCase; empty: it does not wait."""

    waiting_message: str = ""
    exit: Exit | None = None
    """It has ended and is not restarted."""

    last_exit: Exit | None = None
    """How its earlier start ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a container ended."""

    code: int
    reason: str = ""
    message: str = ""
    at: datetime | None = None

    def report(self) -> Mapping[str, Any]:
        """The controller's last words: outcome, code, step, message. Empty: it had none."""
        try:
            found = json.loads(self.message)
        except ValueError:
            return {}
        return found if isinstance(found, dict) and "outcome" in found else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the job."""

    name: str
    uid: str
    role: Role
    attempt: int
    phase: str = "Pending"
    ready: bool = False
    node: str = ""
    ip: str = ""
    deleted: bool = False
    created: datetime
    unschedulable: str = ""
    """The scheduler's words; empty: it has not refused."""

    containers: tuple[Container, ...] = ()

    def container(self, name: str) -> Container | None:
        """One container by name."""
        return next((found for found in self.containers if found.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """A RayCluster with the job's label, or with the name that the attempt needs."""

    name: str
    uid: str
    job_uid: str
    attempt: int
    created: datetime
    deleted: bool = False
    suspended: bool = False
    has_status: bool = False
    template_hash: str = ""
    replicas: Mapping[str, int] = field(default_factory=dict)
    refusal: str = ""
    """Message of its condition ReplicaFailure."""

    rejection: str = ""
    """KubeRay's event about an invalid spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim for checkpoints."""

    name: str
    phase: str
    deleted: bool = False
    access_modes: tuple[str, ...] = ()
    storage_class: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A generation shard as the controller reports it."""

    index: int
    state: Literal["HEALTHY", "SUSPECT", "DEAD", "RESTARTING", "STALE", "RETIRED"]
    weight_version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The controller's newest report."""

    pod_uid: str
    received: datetime
    phase: str
    step: int = 0
    max_steps: int = 0
    trainer_version: int = 0
    epoch: int = 0
    reward_mean: float | None = None
    eta_seconds: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    idle_fraction: float | None = None
    idle_seconds: float | None = None
    sampler: str = ""
    knobs: str = ""
    staleness_p50: int | None = None
    staleness_p95: int | None = None
    staleness_max: int | None = None
    ready: int = 0
    inflight: int = 0
    capacity: int = 0
    shards: tuple[Shard, ...] = ()
    dropped: int = 0
    discarded_by_cause: Mapping[str, int] = field(default_factory=dict)
    checkpoint_step: int | None = None
    applied_generation: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that `plan` looks at."""

    job: Job
    settings: Settings
    kuberay: bool = True
    """The cluster serves RayClusters."""

    clusters: tuple[RayCluster, ...] = ()
    pods: tuple[Pod, ...] = ()
    claim: Claim | None = None
    children: frozenset[tuple[str, str]] = frozenset()
    """Kind and name of everything else that the job owns."""

    report: Report | None = None
    listening: datetime | None = None
    """Since when this process listens to the attempt's controller."""

    first_head: str | None = None
    """UID of the attempt's first head pod, as far as this process has seen it."""

    told: frozenset[str] = frozenset()
    """What the controller of this attempt was asked for and has acknowledged."""

    pending_config: tuple[str, ...] = ()
    """Fields that the controller said it takes over at its next start."""
