"""What a plan can ask for. Each is safe to repeat, and carries what it must find in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from asyncrl_api.status import JobStatus
from asyncrl_operator.manifests.names import Manifest


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Keep the job until its pods are gone."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the job go."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job itself."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object; one that exists and is this job's is left as it is."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """Make the attempt's Secret, with fresh tokens."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object, or bring it to this form."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Delete a RayCluster and its pods, of this UID only."""

    name: str
    uid: str
    at_once: bool
    """Its pods have nothing to save: end them without their grace."""


@dataclass(frozen=True, slots=True)
class DeleteAttempt:
    """Delete what else belongs to an attempt: its Secret and its disruption budget."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the controller for something."""

    what: Literal["quiesce", "apply_config", "quarantine", "release"]
    key: str
    """Names the request: one that was acknowledged is not made again."""

    shard: int = -1


@dataclass(frozen=True, slots=True)
class Nudge:
    """Touch a RayCluster, so that KubeRay looks at it again."""

    name: str


@dataclass(frozen=True, slots=True)
class Tell:
    """An event for the job."""

    reason: str
    message: str
    warning: bool = False


Action = (
    AddFinalizer
    | RemoveFinalizer
    | DeleteJob
    | Create
    | CreateSecret
    | Apply
    | DeleteCluster
    | DeleteAttempt
    | Ask
    | Nudge
    | Tell
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in order, then the status."""

    actions: tuple[Action, ...] = ()
    status: JobStatus = field(default_factory=JobStatus)
    again: timedelta | None = None
    """When to look again though nothing has changed; None: no need."""

    gone: bool = False
    """The job's status cannot be written any more."""
