"""The generation shards."""

from typing import Annotated, Literal

from annotated_types import Le, MaxLen
from pydantic import Field, StringConstraints

from asyncrl_api.base import (
    COLD_SUSPENDED,
    HOT,
    ApiModel,
    Count,
    DefaultsTo,
    FreeForm,
    Items,
    Natural,
    Positive,
    Share,
)
from asyncrl_api.spec.pods import PodFields


class SamplingSpec(ApiModel):
    """How training completions are sampled."""

    temperature: Positive = 1.0
    """Randomness of sampling."""

    top_p: Share = 1.0
    """Sample from the smallest set of tokens with this probability."""

    top_k: Count | None = None
    """Sample from this many best tokens. Unset: all."""

    max_new_tokens: Annotated[Count | None, DefaultsTo("model.maxTotalSequenceLength")] = None
    """Longest completion of one turn."""

    stop_strings: Annotated[Items[Annotated[str, MaxLen(256)]], MaxLen(16)] | None = None
    """Strings that end a completion."""

    stop_token_ids: Annotated[Items[Natural], MaxLen(64)] | None = None
    """Tokens that end a completion."""


class GenerationSpec(PodFields):
    """The generation shards. A shard serves one copy of the policy."""

    backend: Annotated[Literal["vllm", "megatron", "torch"], COLD_SUSPENDED] = "vllm"
    """Engine of the shards. `torch` runs anywhere, also without a GPU; `vllm` has a CPU build; `megatron`
    needs GPUs and the Megatron trainer."""

    shards: Annotated[Count, Le(4096), HOT] = 1
    """Shards to run. `kubectl scale` and autoscalers set it. Under Kueue a change waits for the next
    attempt, since it would evict the whole cluster."""

    min_shards: Annotated[Count, Le(4096), HOT] = 1
    """Fewest ready shards to train with. Below it for five minutes the attempt ends with
    GenerationDegraded."""

    max_shards: Annotated[Annotated[Count, Le(4096)] | None, DefaultsTo("no bound"), HOT] = None
    """Most shards that scaling may ask for."""

    gpus_per_shard: Annotated[Natural, Le(1024), COLD_SUSPENDED] = 1
    """GPUs of one shard, over all its hosts. 0: CPU only."""

    hosts_per_shard: Annotated[Count, Le(64), COLD_SUSPENDED] = 1
    """Pods that one shard is spread over."""

    tensor_parallel: Annotated[
        Annotated[Count, Le(1024)] | None,
        DefaultsTo("max(1, gpusPerShard / pipelineParallel)"),
        COLD_SUSPENDED,
    ] = None
    """GPUs over which each layer is split."""

    pipeline_parallel: Annotated[Count, Le(64), COLD_SUSPENDED] = 1
    """Stages that the layers are cut into."""

    colocated: Annotated[bool, COLD_SUSPENDED] = False
    """Generate on the training GPUs, in turn with training. Megatron only."""

    segment_size: Annotated[Natural, Le(4096), COLD_SUSPENDED] = 0
    """Hosts that must share one network segment. 0: no such demand."""

    drain_seconds: Annotated[Natural, Le(86400), HOT] = 60
    """Time that a shard may finish its rollouts in before it is removed."""

    kv_cache_dtype: Annotated[str, MaxLen(32), StringConstraints(pattern=r"^[a-z0-9_]+$")] = "auto"
    """Number format of the engine's attention cache. An `fp8` kind makes weight updates carry its scales."""

    engine_args: FreeForm | None = None
    """Further arguments of the engine, passed on as they are. Arguments that the job itself decides are
    refused."""

    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    """How training completions are sampled."""
