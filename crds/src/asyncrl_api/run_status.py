"""Status of the run itself: progress, sampler, fleet, checkpoints."""

from typing import Annotated, Literal

from annotated_types import MaxLen
from pydantic import ConfigDict

from asyncrl_api.base import ApiModel, Format, Int32, Int64, Name

Short = Annotated[str, MaxLen(64)]
Text = Annotated[str, MaxLen(256)]
Message = Annotated[str, MaxLen(1024)]
Time = Annotated[str, Format("date-time"), MaxLen(64)]

ShardState = Literal["HEALTHY", "SUSPECT", "DEAD", "RESTARTING", "STALE", "RETIRED"]


class StatusModel(ApiModel):
    """A block of status. A newer operator may have written more than this version knows."""

    model_config = ConfigDict(extra="ignore")


class ProgressStatus(StatusModel):
    """Where training is."""

    step: Int64 | None = None
    """RL steps done."""

    max_steps: Int64 | None = None
    """RL steps to do, cut to what the data holds."""

    trainer_version: Int64 | None = None
    """Version of the newest weights."""

    epoch: Int32 | None = None
    """Pass over the training data."""

    reward_mean: Short | None = None
    """Mean reward of the last step."""

    tokens_per_second: Short | None = None
    """Tokens generated per second."""

    step_seconds: Short | None = None
    """Seconds of the last step."""

    trainer_idle_percent: Int32 | None = None
    """Share of time that the trainer waits."""

    eta_seconds: Int64 | None = None
    """Time left."""

    update_time: Time | None = None
    """Time of the report."""


class SamplerStatus(StatusModel):
    """The sampler in force, and what it holds."""

    name: Short | None = None
    """Its name."""

    knobs: Text | None = None
    """Its knobs."""

    staleness_p50: Int32 | None = None
    """Median versions behind of the trained data."""

    staleness_p95: Int32 | None = None
    """95th percentile of the same."""

    staleness_max: Int32 | None = None
    """Most versions behind."""

    buffered: Int32 | None = None
    """Groups held."""

    ready: Int32 | None = None
    """Groups ready to train."""

    inflight: Int32 | None = None
    """Groups still generating."""

    capacity: Int32 | None = None
    """Buffer size in force."""

    evicted_total: Int64 | None = None
    """Groups thrown away as too old."""

    aborted_total: Int64 | None = None
    """Groups whose rollout was aborted."""

    dropped_total: Int64 | None = None
    """Groups lost to failures."""

    replaced_total: Int64 | None = None
    """Lost groups that a spare prompt replaced."""

    promoted_total: Int64 | None = None
    """Groups moved to an earlier step."""


class GenerationStatus(StatusModel):
    """The fleet in numbers."""

    shards: Int32 | None = None
    """Shards that exist."""

    serving: Int32 | None = None
    """Shards that answer requests."""

    quarantined: Int32 | None = None
    """Shards out of service."""

    selector: Text | None = None
    """Label selector of the shards' pods, for the scale subresource."""

    weight_version_min: Int64 | None = None
    """Oldest weights that serve."""

    weight_version_max: Int64 | None = None
    """Newest weights that serve."""


class ShardStatus(StatusModel):
    """One shard."""

    index: Int32 | None = None
    """Its number."""

    state: ShardState | None = None
    """Its state."""

    weight_version: Int64 | None = None
    """Weights that it serves."""

    pod: Name | None = None
    """Its pod."""

    node: Name | None = None
    """Node of that pod."""

    since: Time | None = None
    """Since when it is in that state."""

    reason: Message | None = None
    """Why it is."""

    restarts: Int32 | None = None
    """Restarts of its engine."""


class TrainingStatus(StatusModel):
    """Training pods."""

    hosts: Int32 | None = None
    """Pods wanted."""

    ready: Int32 | None = None
    """Pods ready."""


class GpuStatus(StatusModel):
    """The resolved GPU split."""

    generation: Int32 | None = None
    """GPUs of the shards."""

    training: Int32 | None = None
    """GPUs of the trainer."""


class CheckpointStatus(StatusModel):
    """What is saved, and what went wrong last."""

    claim_name: Name | None = None
    """Claim that holds it."""

    last_step: Int64 | None = None
    """Step of the newest checkpoint."""

    last_time: Time | None = None
    """When that was written."""

    last_snapshot: Text | None = None
    """Newest rollout snapshot."""

    last_snapshot_time: Time | None = None
    """When that was written."""

    last_error: Message | None = None
    """What went wrong last."""
