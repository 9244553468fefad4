"""What is saved, where, and what is redone after a loss."""

from typing import Annotated, Literal

from annotated_types import Le, MaxLen
from pydantic import StringConstraints

from asyncrl_api.base import (
    COLD,
    HOT,
    WARM,
    ApiModel,
    Count,
    Count64,
    DefaultsTo,
    DnsName,
    Items,
    Name,
    Path,
    Positive,
    Size,
    Word,
)


class VolumeTemplate(ApiModel):
    """A claim to create for the job."""

    storage: Size
    """Size to ask for."""

    storage_class_name: DnsName | None = None
    """Storage class. Unset: the cluster's default."""

    access_modes: Annotated[Items[Literal["ReadWriteMany", "ReadWriteOnce"]], MaxLen(2)] = ("ReadWriteMany",)
    """Access modes. ReadWriteOnce works only where all pods that mount it run on one node."""


class CheckpointVolume(ApiModel):
    """The volume that holds the job's checkpoints: an existing claim, or a template for one."""

    claim_name: DnsName | None = None
    """An existing PersistentVolumeClaim of the job's namespace. It is never deleted."""

    template: VolumeTemplate | None = None
    """A claim to create for the job."""

    retention: Literal["Retain", "Delete"] = "Retain"
    """What becomes of a claim made from the template when the job is deleted."""


class PretrainedCheckpoint(ApiModel):
    """Starting weights of the policy from another run's checkpoint."""

    path: Path
    """Path of that checkpoint."""

    format: Literal["safetensors", "megatron"] = "safetensors"
    """How its weights are stored."""


class CheckpointingSpec(ApiModel):
    """What is saved, where, how often, and what is kept."""

    enabled: bool = True
    """Save checkpoints. Off: every restart begins at step 0."""

    volume: Annotated[
        CheckpointVolume | None, DefaultsTo("none; needed on a cluster while enabled"), COLD
    ] = None
    """The volume that holds the job's checkpoints: an existing claim, or a template for one. Must be
    reachable from the controller and every training host."""

    mount_path: Annotated[Path, StringConstraints(pattern=r"^/.*$"), COLD] = "/checkpoints"
    """Where the volume is mounted in every pod. On one machine the run folder takes its place."""

    directory: Annotated[
        Annotated[Name, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")] | None,
        DefaultsTo("the job's name"),
        COLD,
    ] = None
    """Folder of this job below `mountPath`. A job made again with the same folder goes on from what it
    finds there."""

    resume_from: Literal["Latest", "None"] = "Latest"
    """Where an attempt starts: at the newest good checkpoint, or at step 0."""

    timeout_seconds: Annotated[Count, Le(86400), HOT] = 600
    """Longest save that suspending, draining or moving the job waits for."""

    save_period: Annotated[Count64, HOT] = 10
    """RL steps between checkpoints. 1 is best with periodic rollout snapshots."""

    save_data_plane: bool = True
    """Save finished but untrained rollouts with the checkpoint."""

    save_optimizer: bool = True
    """Save optimizer state, which an exact resume needs."""

    metric_name: Annotated[Word | None, HOT] = None
    """Metric that ranks checkpoints, as `train:<metric>` or `val:<metric>`. Unset: newest first."""

    higher_is_better: Annotated[bool, HOT] = True
    """Direction of that metric."""

    keep_top_k: Annotated[Annotated[Count, Le(10000)] | None, HOT] = 3
    """Checkpoints to keep by rank. null: all. The newest is always kept."""

    ft_save_period: Annotated[Count64 | None, HOT] = None
    """A second, usually shorter, period for fault tolerance only."""

    ft_keep_latest_k: Annotated[Annotated[Count, Le(10000)] | None, HOT] = None
    """Newest checkpoints kept for fault tolerance, whatever their rank."""

    must_save_by_seconds: Count64 | None = None
    """Seconds from the start of an attempt within which it must save. It saves in time, then ends the run
    as a success."""

    pretrained_checkpoint: Annotated[PretrainedCheckpoint | None, COLD] = None
    """Starting weights of the policy from another run's checkpoint."""

    model_save_format: Literal["safetensors", "megatron"] = "safetensors"
    """How weights are stored: portable, or Megatron's sharded form."""

    save_consolidated: bool = False
    """Also write the weights as one portable copy, ready to serve."""

    is_async: bool = False
    """Go on training while weights are still being written."""


class RolloutCheckpointingSpec(ApiModel):
    """Snapshots of the rollout side between trainer checkpoints."""

    snapshot_attempt_interval_seconds: Positive | None = None
    """How often a snapshot is tried. Unset: never. An attempt needs a trainer checkpoint of the current
    step."""

    keep_latest_k: Annotated[Count, Le(1000)] = 2
    """Snapshots kept per trainer checkpoint."""

    restore_mode: Annotated[Literal["latest", "trainer_checkpoint"], WARM] = "latest"
    """Resume from the newest snapshot, or from the trainer checkpoint alone."""

    barrier_timeout_seconds: Positive = 120.0
    """Longest wait for commits to pause, for snapshots and for trainer checkpoints."""

    extra_fingerprint_excluded_paths: Annotated[Items[Annotated[str, MaxLen(256)]], MaxLen(64), COLD] = ()
    """Settings, as dotpaths below `spec` with `*` and `**`, that may differ when snapshots from before the
    first step are restored. Only list what has no influence on prompts, sampling or scoring."""


class RolloutRecoverySpec(ApiModel):
    """What is redone when part of a group is lost."""

    default_granularity: Literal["sibling", "prompt_group"] = "sibling"
    """Redo only the missing completions, or the whole group."""

    task_source_granularity_overrides: (
        Annotated[dict[Word, Literal["sibling", "prompt_group"]], MaxLen(64)] | None
    ) = None
    """The same by the task name that a prompt carries."""

    agent_granularity_overrides: (
        Annotated[dict[Word, Literal["sibling", "prompt_group"]], MaxLen(64)] | None
    ) = None
    """The same by agent; wins over the task's."""


class TokenCaptureSpec(ApiModel):
    """Stores each completion's tokens as they are produced, so that finished siblings outlive a crash."""

    enabled: bool = False
    """Switch it on. Periodic rollout snapshots need it."""

    num_finalizers: Annotated[Count, Le(1024)] = 1
    """Workers that assemble finished groups."""

    finalize_timeout_seconds: Annotated[Positive | None, HOT] = None
    """Longest assembly of one group. Unset: no limit."""
