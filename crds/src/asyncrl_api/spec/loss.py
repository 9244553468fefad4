"""Losses of policy and critic, the critic itself, teachers."""

from typing import Annotated, Literal

from annotated_types import Gt, Le, Lt, MaxLen

from asyncrl_api.base import (
    COLD_SUSPENDED,
    WARM,
    ApiModel,
    Count,
    Count64,
    DefaultsTo,
    Fraction,
    Natural64,
    NonNegative,
    Number,
    Path,
    Positive,
    Share,
    Word,
)


class LossSpec(ApiModel):
    """Policy loss: clipping, KL penalty, correction for stale data."""

    use_importance_sampling_correction: Annotated[
        bool | None, DefaultsTo("true if data may be stale or the sampler is ready_first, else false")
    ] = None
    """Weigh each token by how the trainer's and the generating policy's probabilities differ. Needed
    whenever data may be stale; an explicit false is the opt-out and accepts a biased gradient."""

    force_on_policy_ratio: bool = False
    """Take the policy ratio as 1, which saves a log-probability pass. Only with one policy update per step.
    """

    reference_policy_kl_penalty: Annotated[
        NonNegative | None, DefaultsTo("0.01, or 0 if reference log-probs are skipped")
    ] = None
    """Weight of the distance to the starting model."""

    reference_policy_kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that distance."""

    kl_input_clamp_value: Positive | None = 20.0
    """Limit on the log-ratio that enters the KL estimate. null: no limit."""

    kl_output_clamp_value: Positive | None = 10.0
    """Limit on the KL estimate itself. null: no limit."""

    use_kl_in_reward: bool = False
    """Put the KL term into the per-token reward instead of the loss. For `reinforce_plus_plus` and `gae`."""

    ratio_clip_min: Fraction = 0.2
    """How far below 1 the policy ratio may count."""

    ratio_clip_max: NonNegative = 0.2
    """How far above 1 the policy ratio may count."""

    ratio_clip_c: Annotated[Number, Gt(1)] | None = None
    """Second bound on the ratio for negative advantages (dual clipping). Unset: off."""

    disable_ppo_ratio: bool = False
    """Plain policy gradient without the ratio."""

    token_level_loss: bool = True
    """Average over tokens; false averages over sequences."""

    sequence_level_importance_ratios: bool = False
    """One ratio per sequence instead of per token. Needs `tokenLevelLoss: false`."""

    use_cispo: bool = False
    """CISPO: clip the importance weight and keep the gradient of every token."""

    use_on_policy_kl_approximation: bool = False
    """Estimate the KL term as if the completions came from the current policy."""

    truncated_importance_sampling_type: Literal["tis", "icepop", "seq-mask-tis"] | None = None
    """What to do with correction weights outside the bounds: `tis` clamps them, `icepop` drops the tokens,
    `seq-mask-tis` drops whole sequences. Unset: weights are used as they are."""

    truncated_importance_sampling_ratio: Positive | None = None
    """Upper bound on correction weights. Needed with a type, an error without one."""

    truncated_importance_sampling_ratio_min: NonNegative | None = None
    """Lower bound on correction weights. Needed with `icepop` and `seq-mask-tis`, an error without a type.
    """

    positive_example_nll_weight: NonNegative = 0.0
    """Weight of an extra likelihood loss on completions whose raw reward is above 0. Above 0 a step trains
    as one chunk."""


class ValueParallelism(ApiModel):
    """How one copy of the critic is spread over GPUs."""

    tensor: Annotated[Annotated[Count, Le(1024)] | None, DefaultsTo("training.parallelism.tensor")] = None
    """Ranks over which each layer is split."""

    pipeline: Annotated[Annotated[Count, Le(1024)] | None, DefaultsTo("training.parallelism.pipeline")] = None
    """Stages that the layers are cut into."""

    context: Annotated[Annotated[Count, Le(1024)] | None, DefaultsTo("training.parallelism.context")] = None
    """Ranks over which a sequence is split."""

    expert: Annotated[Annotated[Count, Le(1024)] | None, DefaultsTo("training.parallelism.expert")] = None
    """Ranks over which experts are spread."""


class ValueOptimizer(ApiModel):
    """The critic's optimizer."""

    lr: Annotated[NonNegative | None, DefaultsTo("training.optimizer.lr")] = None
    """Learning rate."""

    weight_decay: Annotated[NonNegative | None, DefaultsTo("training.optimizer.weightDecay")] = None
    """Weight decay."""

    beta1: Annotated[Annotated[NonNegative, Lt(1)] | None, DefaultsTo("training.optimizer.beta1")] = None
    """Decay of the first moment."""

    beta2: Annotated[Annotated[NonNegative, Lt(1)] | None, DefaultsTo("training.optimizer.beta2")] = None
    """Decay of the second moment."""

    eps: Annotated[Positive | None, DefaultsTo("training.optimizer.eps")] = None
    """Floor under the second moment."""


class ValueScheduler(ApiModel):
    """The critic's learning-rate schedule."""

    name: Annotated[Literal["constant", "linear", "cosine"] | None, DefaultsTo("training.scheduler.name")] = (
        None
    )
    """Shape after the warm-up."""

    warmup_steps: Annotated[Natural64 | None, DefaultsTo("training.scheduler.warmupSteps")] = None
    """Critic updates over which the rate rises from 0."""

    decay_steps: Annotated[Count64 | None, DefaultsTo("all critic updates of the run")] = None
    """Critic updates until the lowest rate is reached."""

    min_lr: Annotated[NonNegative | None, DefaultsTo("training.scheduler.minLr")] = None
    """Lowest rate."""


class ValueBatching(ApiModel):
    """How the critic's sequences form batches."""

    enabled: Annotated[bool | None, DefaultsTo("that of training")] = None
    """Switch it on."""

    micro_batch_tokens: Annotated[Count | None, DefaultsTo("that of training")] = None
    """Tokens per micro-batch."""


class ValueSpec(ApiModel):
    """The PPO critic. It shares the training GPUs and the training backend with the policy, in turn."""

    name: Annotated[Path | None, DefaultsTo("model.name or model.init")] = None
    """Hub id or path of the critic's starting weights."""

    revision: Annotated[Word | None, DefaultsTo("model.revision if name is unset")] = None
    """Hub revision of those weights."""

    precision: Annotated[
        Literal["bfloat16", "float16", "float32"] | None, DefaultsTo("training.precision"), WARM
    ] = None
    """Number format of the critic's arithmetic."""

    micro_batch_size: Annotated[Count | None, DefaultsTo("training.microBatchSize"), WARM] = None
    """Sequences per forward and backward pass of one rank."""

    logprob_batch_size: Annotated[Count | None, DefaultsTo("training.logprobBatchSize"), WARM] = None
    """Sequences per pass when values are only read."""

    make_sequence_length_divisible_by: Annotated[Count | None, DefaultsTo("training.…"), WARM] = None
    """Pad sequences to a multiple of this."""

    max_grad_norm: Annotated[Positive | None, DefaultsTo("training.maxGradNorm"), WARM] = None
    """Gradient norm above which the critic's gradient is scaled down."""

    parallelism: Annotated[ValueParallelism | None, DefaultsTo("training.parallelism"), COLD_SUSPENDED] = None
    """How one copy of the critic is spread over GPUs. Single fields fall back too."""

    optimizer: Annotated[ValueOptimizer | None, WARM] = None
    """The critic's optimizer. Fields left out follow `training.optimizer`."""

    scheduler: Annotated[ValueScheduler | None, WARM] = None
    """The critic's learning-rate schedule. Fields left out follow `training.scheduler`."""

    sequence_packing: Annotated[ValueBatching | None, WARM] = None
    """Pack several short sequences into one row of the critic."""

    dynamic_batching: Annotated[ValueBatching | None, WARM] = None
    """Group critic sequences of like length into batches of equal token count."""


class ValueLossSpec(ApiModel):
    """Loss of the critic."""

    scale: Positive = 1.0
    """Factor on the critic's loss."""

    cliprange: Positive | None = None
    """How far a value may move from its old one before the loss stops following. Unset: no clipping."""


class OnPolicyDistillationSpec(ApiModel):
    """Teachers for the `opd` estimator."""

    teacher_model_by_agent_name: Annotated[dict[Word, Path], MaxLen(64)]
    """Teacher model (hub id or path) by agent name."""

    default_teacher_alias: Word | None = None
    """Key of the map to use for agents that it does not name."""

    strict_agent_name_match: bool = False
    """Fail on an agent that the map does not name."""

    deduplicate_shared_teacher_checkpoints: bool = False
    """Load a teacher that several agents share once."""

    proximal_teacher_alpha: Share = 1.0
    """Weight of the teacher in the mixture with the policy that the advantage points to. 1: the teacher
    alone."""

    subtract_global_baseline: bool = False
    """Subtract the mean over the batch from the advantage that the teacher gives."""
