"""One asynchronous RL post-training run: the whole resource."""

from typing import Annotated, Literal

from annotated_types import MaxLen
from pydantic import ConfigDict, Field, StringConstraints

from asyncrl_api.base import (
    COLD,
    COLD_SUSPENDED,
    HOT,
    WARM,
    ApiModel,
    DefaultsTo,
    FreeForm,
    Items,
    QualifiedName,
)
from asyncrl_api.spec.algorithm import AlgorithmSpec
from asyncrl_api.spec.async_rl import AsyncRLSpec
from asyncrl_api.spec.checkpointing import (
    CheckpointingSpec,
    RolloutCheckpointingSpec,
    RolloutRecoverySpec,
    TokenCaptureSpec,
)
from asyncrl_api.spec.data import DataSpec
from asyncrl_api.spec.data_plane import DataPlaneSpec
from asyncrl_api.spec.environment import EnvironmentSpec
from asyncrl_api.spec.generation import GenerationSpec
from asyncrl_api.spec.logging import LoggingSpec
from asyncrl_api.spec.loss import LossSpec, OnPolicyDistillationSpec, ValueLossSpec, ValueSpec
from asyncrl_api.spec.model import ModelSpec
from asyncrl_api.spec.operations import (
    FaultPolicySpec,
    LifecycleSpec,
    NodeQuarantineSpec,
    ObservabilitySpec,
    SchedulingSpec,
    SecuritySpec,
)
from asyncrl_api.spec.pods import ControllerSpec, LocalObjectReference
from asyncrl_api.spec.training import TrainingSpec
from asyncrl_api.spec.validation import ValidationSpec
from asyncrl_api.status import JobStatus


class JobSpec(ApiModel):
    """What to learn and where to run."""

    model: Annotated[ModelSpec, COLD]
    """The policy: which weights to start from, or which shape to initialise at random."""

    data: Annotated[DataSpec, COLD]
    """Where prompts come from, for training and for validation."""

    environment: Annotated[EnvironmentSpec, WARM]
    """What answers the model and scores it."""

    algorithm: Annotated[AlgorithmSpec, COLD]
    """The learning rule. Which block is present cannot change."""

    loss: Annotated[LossSpec, WARM] = Field(default_factory=LossSpec)
    """Policy loss: clipping, KL penalty, correction for stale data."""

    value: Annotated[ValueSpec | None, COLD] = None
    """The PPO critic. It shares the training GPUs and the training backend with the policy, in turn."""

    value_loss: Annotated[ValueLossSpec | None, WARM] = None
    """Loss of the critic."""

    on_policy_distillation: Annotated[OnPolicyDistillationSpec | None, WARM] = None
    """Teachers for the `opd` estimator. Present exactly when `algorithm.grpo.advEstimator.name` is `opd`;
    gym path only, text only."""

    validation: Annotated[ValidationSpec, HOT] = Field(default_factory=ValidationSpec)
    """When the policy is measured, and with which sampling."""

    async_rl: Annotated[AsyncRLSpec, HOT] = Field(default_factory=AsyncRLSpec, alias="asyncRL")
    """How far generation may run ahead, and what happens when something fails."""

    data_plane: Annotated[DataPlaneSpec, COLD_SUSPENDED] = Field(default_factory=DataPlaneSpec)
    """Where rollout rows live between generation and training."""

    checkpointing: Annotated[CheckpointingSpec, WARM] = Field(default_factory=CheckpointingSpec)
    """What is saved, where, how often, and what is kept."""

    rollout_checkpointing: Annotated[RolloutCheckpointingSpec, HOT] = Field(
        default_factory=RolloutCheckpointingSpec
    )
    """Snapshots of the rollout side between trainer checkpoints."""

    rollout_recovery: Annotated[RolloutRecoverySpec, WARM] = Field(default_factory=RolloutRecoverySpec)
    """What is redone when part of a group is lost."""

    token_capture: Annotated[TokenCaptureSpec, WARM] = Field(default_factory=TokenCaptureSpec)
    """Stores each completion's tokens as they are produced, so that finished siblings outlive a crash."""

    logging: Annotated[LoggingSpec, WARM] = Field(default_factory=LoggingSpec)
    """Where metrics and samples are written besides Prometheus."""

    custom: Annotated[FreeForm | None, WARM] = None
    """Settings for your own code, such as a sampler or an environment. Passed on as they are and part of
    the fingerprint."""

    image: Annotated[
        Annotated[str, MaxLen(512)] | None, DefaultsTo("the runtime image of the operator's release"), WARM
    ] = None
    """Image of all pods of the job. A change applies at the next attempt."""

    image_pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"], WARM] = "IfNotPresent"
    """When nodes pull the image."""

    image_pull_secrets: Annotated[Items[LocalObjectReference], MaxLen(8), WARM] = ()
    """Secrets for the registry."""

    ray_version: Annotated[
        str, MaxLen(32), StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$"), COLD_SUSPENDED
    ] = "2.60.0"
    """Ray version in the image."""

    gpu_resource_name: Annotated[QualifiedName, MaxLen(253), COLD_SUSPENDED] = "nvidia.com/gpu"
    """Extended resource that stands for one GPU. A role with 0 GPUs does not ask for it."""

    controller: Annotated[ControllerSpec, WARM] = Field(default_factory=ControllerSpec)
    """The head pod, where the controller runs and no GPU is used."""

    generation: Annotated[GenerationSpec, WARM] = Field(default_factory=GenerationSpec)
    """The generation shards."""

    training: Annotated[TrainingSpec, WARM] = Field(default_factory=TrainingSpec)
    """The trainer."""

    fault_policy: Annotated[FaultPolicySpec, HOT] = Field(default_factory=FaultPolicySpec)
    """When a failed attempt is followed by another."""

    node_quarantine: Annotated[NodeQuarantineSpec, HOT] = Field(default_factory=NodeQuarantineSpec)
    """Keeps the job's pods off nodes that have failed it."""

    scheduling: Annotated[SchedulingSpec, WARM] = Field(default_factory=SchedulingSpec)
    """Queueing, priority, gang placement, disruption."""

    security: Annotated[SecuritySpec, WARM] = Field(default_factory=SecuritySpec)
    """Access to the job's pods."""

    lifecycle: Annotated[LifecycleSpec, HOT] = Field(default_factory=LifecycleSpec)
    """Deadlines, and what remains of a finished job."""

    observability: Annotated[ObservabilitySpec, HOT] = Field(default_factory=ObservabilitySpec)
    """How much of the run is shown."""

    suspend: Annotated[bool, HOT] = False
    """Save, then free every GPU. Set it back to go on from there."""

    managed_by: Annotated[QualifiedName, MaxLen(63), COLD] = "asyncrl.io/operator"
    """Controller in charge. The operator ignores jobs with another value."""


class ObjectMeta(ApiModel):
    """Metadata of a Kubernetes object. Only the name matters without a cluster."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, MaxLen(253)]
    """Name of the job; services and pods derive theirs from it."""

    namespace: Annotated[str, MaxLen(63)] | None = None
    """Namespace of the job."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations."""


class AsyncRLJob(ApiModel):
    """One asynchronous RL post-training run."""

    api_version: Literal["asyncrl.io/v1alpha1"]
    """Version of the resource."""

    kind: Literal["AsyncRLJob"]
    """Kind of the resource."""

    metadata: ObjectMeta
    """Name, namespace, labels."""

    spec: JobSpec
    """What to learn and where to run."""

    status: JobStatus | None = None
    """Where the job stands. Written by the operator only."""
