from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ("min_interval_seconds",)
    MIN_INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    min_interval_seconds: float
    def __init__(self, min_interval_seconds: _Optional[float] = ...) -> None: ...

class RunStatus(_message.Message):
    __slots__ = ("revision", "name", "phase", "progress", "sampler", "shards", "prompts", "saved", "failure", "applied_generation", "restart_index", "updated_at")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESTART_INDEX_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    revision: int
    name: str
    phase: str
    progress: Progress
    sampler: Sampler
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    prompts: PromptCounts
    saved: Saved
    failure: Failure
    applied_generation: int
    restart_index: int
    updated_at: float
    def __init__(self, revision: _Optional[int] = ..., name: _Optional[str] = ..., phase: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., sampler: _Optional[_Union[Sampler, _Mapping]] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., prompts: _Optional[_Union[PromptCounts, _Mapping]] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., applied_generation: _Optional[int] = ..., restart_index: _Optional[int] = ..., updated_at: _Optional[float] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("step", "max_steps", "trainer_version", "epoch", "reward_mean", "eta_seconds", "step_seconds", "generated_tokens_per_second", "trained_tokens_per_second", "trainer_idle_fraction", "idle_seconds")
    STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    TRAINER_VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REWARD_MEAN_FIELD_NUMBER: _ClassVar[int]
    ETA_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TRAINED_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TRAINER_IDLE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    step: int
    max_steps: int
    trainer_version: int
    epoch: int
    reward_mean: float
    eta_seconds: float
    step_seconds: float
    generated_tokens_per_second: float
    trained_tokens_per_second: float
    trainer_idle_fraction: float
    idle_seconds: float
    def __init__(self, step: _Optional[int] = ..., max_steps: _Optional[int] = ..., trainer_version: _Optional[int] = ..., epoch: _Optional[int] = ..., reward_mean: _Optional[float] = ..., eta_seconds: _Optional[float] = ..., step_seconds: _Optional[float] = ..., generated_tokens_per_second: _Optional[float] = ..., trained_tokens_per_second: _Optional[float] = ..., trainer_idle_fraction: _Optional[float] = ..., idle_seconds: _Optional[float] = ...) -> None: ...

class Sampler(_message.Message):
    __slots__ = ("name", "knobs", "staleness_p50", "staleness_p95", "staleness_max", "staleness_bound", "ready_groups", "inflight_groups", "capacity_groups")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_P50_FIELD_NUMBER: _ClassVar[int]
    STALENESS_P95_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MAX_FIELD_NUMBER: _ClassVar[int]
    STALENESS_BOUND_FIELD_NUMBER: _ClassVar[int]
    READY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_GROUPS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    knobs: str
    staleness_p50: int
    staleness_p95: int
    staleness_max: int
    staleness_bound: int
    ready_groups: int
    inflight_groups: int
    capacity_groups: int
    def __init__(self, name: _Optional[str] = ..., knobs: _Optional[str] = ..., staleness_p50: _Optional[int] = ..., staleness_p95: _Optional[int] = ..., staleness_max: _Optional[int] = ..., staleness_bound: _Optional[int] = ..., ready_groups: _Optional[int] = ..., inflight_groups: _Optional[int] = ..., capacity_groups: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("index", "state", "weight_version", "outstanding_requests")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    state: str
    weight_version: int
    outstanding_requests: int
    def __init__(self, index: _Optional[int] = ..., state: _Optional[str] = ..., weight_version: _Optional[int] = ..., outstanding_requests: _Optional[int] = ...) -> None: ...

class PromptCounts(_message.Message):
    __slots__ = ("admitted", "committed", "trained", "dropped", "discarded", "live", "discarded_by_cause")
    class DiscardedByCauseEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_BY_CAUSE_FIELD_NUMBER: _ClassVar[int]
    admitted: int
    committed: int
    trained: int
    dropped: int
    discarded: int
    live: int
    discarded_by_cause: _containers.ScalarMap[str, int]
    def __init__(self, admitted: _Optional[int] = ..., committed: _Optional[int] = ..., trained: _Optional[int] = ..., dropped: _Optional[int] = ..., discarded: _Optional[int] = ..., live: _Optional[int] = ..., discarded_by_cause: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("last_checkpoint_step", "seconds_since_durable")
    LAST_CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_DURABLE_FIELD_NUMBER: _ClassVar[int]
    last_checkpoint_step: int
    seconds_since_durable: float
    def __init__(self, last_checkpoint_step: _Optional[int] = ..., seconds_since_durable: _Optional[float] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("type", "message", "step")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    step: int
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class ApplyConfigRequest(_message.Message):
    __slots__ = ("job_json", "generation")
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job_json: str
    generation: int
    def __init__(self, job_json: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class ApplyConfigResponse(_message.Message):
    __slots__ = ("applied", "pending", "refused")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    applied: _containers.RepeatedScalarFieldContainer[str]
    pending: _containers.RepeatedScalarFieldContainer[str]
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, applied: _Optional[_Iterable[str]] = ..., pending: _Optional[_Iterable[str]] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("path", "reason")
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    path: str
    reason: str
    def __init__(self, path: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("step", "path")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    step: int
    path: str
    def __init__(self, step: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class QuiesceRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class QuiesceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShardRequest(_message.Message):
    __slots__ = ("index", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ShardResponse(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: Shard
    def __init__(self, shard: _Optional[_Union[Shard, _Mapping]] = ...) -> None: ...

class DrainPodRequest(_message.Message):
    __slots__ = ("pod", "timeout_seconds")
    POD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    pod: str
    timeout_seconds: float
    def __init__(self, pod: _Optional[str] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class DrainPodResponse(_message.Message):
    __slots__ = ("shards", "left_requests")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedScalarFieldContainer[int]
    left_requests: int
    def __init__(self, shards: _Optional[_Iterable[int]] = ..., left_requests: _Optional[int] = ...) -> None: ...
