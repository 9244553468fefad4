"""The trainer."""

from typing import Annotated, Literal

from annotated_types import Le, Lt
from pydantic import Field

from asyncrl_api.base import (
    COLD,
    COLD_SUSPENDED,
    ApiModel,
    Count,
    Count64,
    DefaultsTo,
    Natural,
    Natural64,
    NonNegative,
    Positive,
)
from asyncrl_api.spec.pods import PodFields


class Parallelism(ApiModel):
    """How one copy of the policy is spread over ranks. Copies multiply what is left."""

    tensor: Annotated[Count, Le(1024)] = 1
    """Ranks over which each layer is split."""

    pipeline: Annotated[Count, Le(1024)] = 1
    """Stages that the layers are cut into."""

    context: Annotated[Count, Le(1024)] = 1
    """Ranks over which a sequence is split."""

    expert: Annotated[Count, Le(1024)] = 1
    """Ranks over which experts are spread."""


class OptimizerSpec(ApiModel):
    """AdamW settings of the policy."""

    lr: NonNegative = 1e-06
    """Learning rate after the warm-up."""

    weight_decay: NonNegative = 0.01
    """Weight decay."""

    beta1: Annotated[NonNegative, Lt(1)] = 0.9
    """Decay of the first moment."""

    beta2: Annotated[NonNegative, Lt(1)] = 0.999
    """Decay of the second moment."""

    eps: Positive = 1e-08
    """Floor under the second moment."""


class SchedulerSpec(ApiModel):
    """Learning-rate schedule of the policy, counted in policy updates."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up."""

    warmup_steps: Natural64 = 0
    """Updates over which the rate rises from 0."""

    decay_steps: Annotated[Count64 | None, DefaultsTo("all policy updates of the run")] = None
    """Updates until the lowest rate is reached."""

    min_lr: NonNegative = 0.0
    """Lowest rate."""


class MicroBatching(ApiModel):
    """How sequences form batches."""

    enabled: bool = False
    """Switch it on."""

    micro_batch_tokens: Annotated[
        Count | None, DefaultsTo("microBatchSize · model.maxTotalSequenceLength")
    ] = None
    """Tokens per packed row or batch."""


class TrainingSpec(PodFields):
    """The trainer. One rank per GPU, or one per host without GPUs."""

    backend: Annotated[Literal["megatron", "torch"], COLD] = "megatron"
    """Trainer. `torch` runs anywhere, also without a GPU; `megatron` needs GPUs."""

    hosts: Annotated[Count, Le(4096), COLD_SUSPENDED] = 1
    """Training pods."""

    gpus_per_host: Annotated[Natural, Le(64), COLD_SUSPENDED] = 1
    """GPUs of one training pod. 0: CPU only."""

    segment_size: Annotated[Natural, Le(4096), COLD_SUSPENDED] = 0
    """Hosts that must share one network segment. 0: no such demand."""

    parallelism: Annotated[Parallelism, COLD_SUSPENDED] = Field(default_factory=Parallelism)
    """How one copy of the policy is spread over ranks. Copies multiply what is left."""

    precision: Annotated[Literal["bfloat16", "float16", "float32"] | None, DefaultsTo("model.dtype")] = None
    """Number format of the trainer's arithmetic; master weights stay in float32."""

    micro_batch_size: Annotated[Count, Le(65536)] = 4
    """Sequences per forward and backward pass of one rank."""

    logprob_batch_size: Annotated[Count, Le(65536)] = 4
    """Sequences per pass when log-probabilities are only read."""

    make_sequence_length_divisible_by: Annotated[Count, Le(65536)] = 1
    """Pad sequences to a multiple of this."""

    max_grad_norm: Positive | None = 1.0
    """Gradient norm above which the gradient is scaled down. null: never."""

    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    """AdamW settings of the policy."""

    scheduler: SchedulerSpec = Field(default_factory=SchedulerSpec)
    """Learning-rate schedule of the policy, counted in policy updates."""

    sequence_packing: MicroBatching = Field(default_factory=MicroBatching)
    """Pack several short sequences into one row."""

    dynamic_batching: MicroBatching = Field(default_factory=MicroBatching)
    """Group sequences of like length into batches of equal token count."""

    offload_optimizer_for_logprob: Annotated[bool | None, DefaultsTo("false (grpo), true (ppo)")] = None
    """Move optimizer state off the GPU while log-probabilities or values are computed."""

    ckpt_assume_constant_structure: bool = False
    """Let Megatron reuse the layout of the previous checkpoint. Not possible with critic warm-up."""

    router_replay: bool = False
    """Train a mixture-of-experts model on the routes that generation took. Rows without routes are an
    error."""
