"""What the operator reads: restarts, node quarantine, scheduling, security, lifecycle, what is shown."""

from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen
from pydantic import Field

from asyncrl_api.base import (
    COLD_SUSPENDED,
    HOT,
    WARM,
    ApiModel,
    Count,
    Count64,
    DefaultsTo,
    Int32,
    Items,
    Name,
    Natural,
)


class BackoffSpec(ApiModel):
    """Wait between attempts."""

    base_seconds: Annotated[Natural, Le(3600)] = 10
    """Wait before the first restart; it doubles each time."""

    max_seconds: Annotated[Natural, Le(86400)] = 300
    """Longest wait."""


class FaultRule(ApiModel):
    """What to do for particular failures."""

    name: Annotated[str, MaxLen(63)]
    """Name shown in conditions and events."""

    reasons: (
        Annotated[
            Items[
                Literal[
                    "ControllerFailed",
                    "ControllerPodLost",
                    "ControllerNotResponding",
                    "TrainerFailed",
                    "GenerationDegraded",
                    "NodeLost",
                    "OOMKilled",
                    "StepStalled",
                    "CheckpointStuck",
                    "CheckpointFailed",
                    "ClusterDeleted",
                    "StartupDeadlineExceeded",
                ]
            ],
            MaxLen(12),
        ]
        | None
    ) = None
    """Matches if the attempt ended for one of these. Unset: any."""

    roles: Annotated[Items[Literal["controller", "generation", "training"]], MaxLen(3)] | None = None
    """Matches if the failed pod has one of these roles. Unset: any."""

    exit_codes: Annotated[Items[Annotated[Natural, Le(255)]], MaxLen(32)] | None = None
    """Matches if the container exited with one of these. Unset: any."""

    action: Literal["RestartJob", "FailJob"]
    """Start another attempt, or fail the job."""

    counted: bool = True
    """Whether that restart counts towards `maxRestarts`."""


class FaultPolicySpec(ApiModel):
    """When a failed attempt is followed by another."""

    max_restarts: Annotated[Natural, Le(10000)] = 10
    """Counted restarts before the job fails."""

    backoff: BackoffSpec = Field(default_factory=BackoffSpec)
    """Wait between attempts."""

    reset_after_seconds: Natural = 3600
    """An attempt that ran this long sets counter and wait back. 0: never."""

    rules: Annotated[Items[FaultRule], MaxLen(32)] = ()
    """What to do for particular failures; the first rule that matches decides. Without a match:
    StartupDeadlineExceeded fails the job, NodeLost restarts uncounted, everything else restarts counted.
    """


class NodeSignal(ApiModel):
    """A mark on a node that quarantines it at once."""

    kind: Literal["Condition", "Taint", "Annotation"]
    """Where the mark is."""

    key: Annotated[str, MaxLen(317)]
    """Type of the condition, or key of the taint or annotation."""

    value: Annotated[Name | None, DefaultsTo("True for a condition, any value otherwise")] = None
    """Value that counts as bad."""


class NodeQuarantineSpec(ApiModel):
    """Keeps the job's pods off nodes that have failed it."""

    mode: Literal["Enforce", "Observe", "Disabled"] = "Enforce"
    """Keep pods off, only report which nodes it would be, or do nothing."""

    failures: Annotated[Count, Le(100)] = 3
    """Failures on one node within the window that quarantine it."""

    window_seconds: Annotated[Count, Le(604800)] = 1800
    """The window."""

    release_after_seconds: Count = 21600
    """How long a node stays in quarantine."""

    max_percent: Annotated[Natural, Le(100)] = 25
    """Share of the job's nodes that may be in quarantine at once."""

    node_signals: Annotated[Items[NodeSignal], MaxLen(16)] = ()
    """Marks on a node that quarantine it at once, since vendors report bad GPUs in different ways."""


class SchedulingSpec(ApiModel):
    """Queueing, priority, gang placement, disruption."""

    provider: Annotated[Literal["None", "Kueue", "KAI", "Volcano"], COLD_SUSPENDED] = "None"
    """Which batch scheduler admits the job."""

    queue_name: Annotated[Name, COLD_SUSPENDED] = ""
    """Its queue. Set exactly when a provider is."""

    priority_class_name: Name = ""
    """Priority class of the pods. Empty: the cluster's default."""

    gang: Annotated[bool, COLD_SUSPENDED] = True
    """Place all pods of an attempt or none. Needs a provider."""

    disruption: Annotated[Literal["CheckpointThenAllow", "Allow"], HOT] = "CheckpointThenAllow"
    """On a node drain: save first, for at most `checkpointing.timeoutSeconds`, or let pods go at once."""


class SecuritySpec(ApiModel):
    """Access to the job's pods."""

    ray_auth: Literal["Token", "Disabled"] = "Token"
    """Demand a token on Ray's and the controller's interfaces."""

    network_policy: Annotated[Literal["Enabled", "Disabled"], HOT] = "Enabled"
    """Let only the job's pods, the operator and monitoring connect."""

    tls: Literal["Enabled", "Disabled"] = "Disabled"
    """Encrypt traffic of the control API. Ray's own traffic is protected by its token and the network
    policy."""

    allow_degraded_security: Annotated[bool, HOT] = False
    """Run even where the cluster cannot do what is asked here, with a warning."""


class LifecycleSpec(ApiModel):
    """Deadlines, and what remains of a finished job."""

    startup_deadline_seconds: Count = 1800
    """Time from admission to the first running state."""

    stall_deadline_seconds: Count = 1800
    """Time without a step after which the operator ends the attempt, whatever the controller reports."""

    active_deadline_seconds: Count64 | None = None
    """Time that the job may hold resources, over all attempts. Unset: no limit."""

    ttl_seconds_after_finished: Natural | None = None
    """Time after the end at which the job deletes itself. Unset: never. The one field that a finished job
    may change."""

    on_finished: Literal["DeleteCluster", "KeepCluster"] = "DeleteCluster"
    """What becomes of the pods of a job that has succeeded."""

    keep_failed_cluster_seconds: Annotated[Natural, Le(604800)] = 0
    """Time that the pods of a failed job stay for inspection."""

    termination_grace_period_seconds: Annotated[Count, Le(3600), WARM] = 120
    """Time that a pod has for saving and leaving."""

    on_suspend: Literal["Checkpoint", "Stop"] = "Checkpoint"
    """Save before the job is suspended or deleted, or stop at once."""


class ObservabilitySpec(ApiModel):
    """How much of the run is shown."""

    progress_interval_seconds: Annotated[Int32, Ge(5), Le(3600)] = 30
    """Shortest time between status updates that only report progress."""

    pod_monitor: bool = True
    """Create a PodMonitor where the cluster knows that kind."""

    max_reported_shards: Annotated[Natural, Le(128)] = 64
    """Shards listed in status, worst first."""

    metrics_port: Annotated[
        Annotated[Natural, Le(65535)] | None, DefaultsTo("8090 in a pod, 0 on one machine"), WARM
    ] = None
    """Port of the Prometheus endpoint of the controller. 0: off."""
