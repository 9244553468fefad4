"""What the operator reports about a job. Everything is optional; fractions are strings (API-20)."""

from typing import Annotated, Literal

from annotated_types import MaxLen

from asyncrl_api.base import Int32, Int64, Items, Name
from asyncrl_api.run_status import (
    CheckpointStatus,
    GenerationStatus,
    GpuStatus,
    Message,
    ProgressStatus,
    SamplerStatus,
    ShardStatus,
    Short,
    StatusModel,
    Text,
    Time,
    TrainingStatus,
)

Phase = Literal[
    "Pending",
    "Queued",
    "Provisioning",
    "Initializing",
    "Running",
    "Degraded",
    "Checkpointing",
    "Suspending",
    "Suspended",
    "Restarting",
    "Succeeded",
    "Failed",
]


class Condition(StatusModel):
    """One fact about the job, as Kubernetes reports facts."""

    type: Short
    """What it is about."""

    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""

    observed_generation: Int64 | None = None
    """Generation of the spec that it is about."""

    last_transition_time: Time | None = None
    """When `status` last changed."""

    reason: Short | None = None
    """Cause, one CamelCase word."""

    message: Message | None = None
    """The same in one sentence with the facts."""


class AttemptStatus(StatusModel):
    """The running or last attempt."""

    number: Int32 | None = None
    """Number of the attempt, from 1."""

    ray_cluster_name: Name | None = None
    """Its RayCluster."""

    start_time: Time | None = None
    """When it was started."""

    reason: Short | None = None
    """Why it was started."""

    resumed_from_step: Int64 | None = None
    """Step that it resumed from."""

    template_hash: Short | None = None
    """Hash of the pods it was rendered with."""


class RestartStatus(StatusModel):
    """Restarts so far."""

    counted: Int32 | None = None
    """Restarts that count towards the limit."""

    total: Int32 | None = None
    """All restarts."""

    last_time: Time | None = None
    """When the last one was."""

    next_retry_time: Time | None = None
    """When the next one is due."""


class QuarantineStatus(StatusModel):
    """Nodes that the job keeps off."""

    nodes: Annotated[Items[Name], MaxLen(64)] | None = None
    """Their names."""

    cap_reached: bool | None = None
    """`maxPercent` stops more."""


class ConfigStatus(StatusModel):
    """Which settings are in force."""

    applied_generation: Int64 | None = None
    """Generation that the controller has acknowledged."""

    pending: Annotated[Items[Text], MaxLen(64)] | None = None
    """Fields that wait for the next attempt."""


class KubeRayStatus(StatusModel):
    """What the installed KubeRay can do."""

    version: Short | None = None
    """Its version."""

    features: Annotated[Items[Short], MaxLen(32)] | None = None
    """Features that the job may use."""


class FailureStatus(StatusModel):
    """Why the job, or the last attempt, ended badly."""

    reason: Short | None = None
    """Cause, one CamelCase word."""

    message: Message | None = None
    """The last part of the container's own message."""

    pod: Name | None = None
    """Pod that failed."""

    container: Name | None = None
    """Container that failed."""

    exit_code: Int32 | None = None
    """Its exit code."""

    node: Name | None = None
    """Node of that pod."""


class PastAttempt(StatusModel):
    """An attempt that has ended."""

    number: Int32 | None = None
    """Number of the attempt."""

    reason: Short | None = None
    """Why it ended."""

    start_time: Time | None = None
    """When it was started."""

    end_time: Time | None = None
    """When it ended."""

    from_step: Int64 | None = None
    """Step that it began at."""

    to_step: Int64 | None = None
    """Step that it reached."""

    counted: bool | None = None
    """Whether its restart counts."""

    exit_code: Int32 | None = None
    """Exit code of the container that failed."""

    node: Name | None = None
    """Node of that container."""


class JobStatus(StatusModel):
    """Where the job stands. Written by the operator only."""

    observed_generation: Int64 | None = None
    """Generation of the spec that this status is about."""

    phase: Phase | None = None
    """Where the job stands, in one word."""

    reason: Short | None = None
    """Cause of the phase, one CamelCase word."""

    message: Message | None = None
    """The same in one sentence with the facts."""

    conditions: Annotated[Items[Condition], MaxLen(20)] | None = None
    """Conditions, one of each type; set once as Unknown, never removed."""

    attempt: AttemptStatus | None = None
    """The running or last attempt, why it was started, and from which step."""

    restarts: RestartStatus | None = None
    """Restarts so far, and when the next one is due."""

    progress: ProgressStatus | None = None
    """Where training is, how it learns and how fast."""

    sampler: SamplerStatus | None = None
    """The sampler in force, how stale the data is, what is buffered."""

    generation: GenerationStatus | None = None
    """The fleet in numbers."""

    shards: Annotated[Items[ShardStatus], MaxLen(128)] | None = None
    """Single shards, worst first, up to `observability.maxReportedShards`."""

    training: TrainingStatus | None = None
    """Training pods wanted and ready."""

    gpus: GpuStatus | None = None
    """The resolved GPU split."""

    checkpoint: CheckpointStatus | None = None
    """What is saved, and what went wrong last."""

    quarantine: QuarantineStatus | None = None
    """Nodes that the job keeps off."""

    config: ConfigStatus | None = None
    """Which settings are in force, and which wait."""

    kuberay: KubeRayStatus | None = None
    """What the installed KubeRay can do."""

    start_time: Time | None = None
    """When the job was accepted."""

    running_time: Time | None = None
    """When it first ran."""

    completion_time: Time | None = None
    """When it ended."""

    active_seconds: Int64 | None = None
    """Seconds that it held resources."""

    failure: FailureStatus | None = None
    """Why the job, or the last attempt, ended badly."""

    history: Annotated[Items[PastAttempt], MaxLen(10)] | None = None
    """The last attempts, newest first."""
