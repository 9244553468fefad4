"""GRPO and PPO."""

from typing import Annotated, Literal

from annotated_types import Le, MaxLen
from pydantic import Field

from asyncrl_api.base import (
    WARM,
    ApiModel,
    Count,
    Count64,
    DefaultsTo,
    Fraction,
    Items,
    Natural64,
    NonNegative,
    Number,
    Path,
    Positive,
)


class RewardScaling(ApiModel):
    """Linear mapping of rewards from one interval to another, applied before shaping."""

    enabled: bool = False
    """Scale rewards. The raw reward stays in the metrics."""

    source_min: Number = 0.0
    """Reward that maps to `targetMin`; lower ones are raised to it."""

    source_max: Number = 1.0
    """Reward that maps to `targetMax`; higher ones are lowered to it."""

    target_min: Number = 0.0
    """Scaled reward at `sourceMin`."""

    target_max: Number = 1.0
    """Scaled reward at `sourceMax`."""


class RewardShaping(ApiModel):
    """Penalty for completions that run near or into the length limit. Not with `gdpo`."""

    enabled: bool = False
    """Shape rewards."""

    overlong_buffer_length: Count | None = None
    """Tokens before `maxResponseLength` over which the penalty grows."""

    overlong_buffer_penalty: NonNegative | None = None
    """Penalty at the end of that stretch; it grows no further."""

    max_response_length: Count | None = None
    """Completion length at which the full penalty applies."""

    stop_properly_penalty_coef: Fraction | None = None
    """Multiply the reward of a truncated completion by this instead; the three length settings are then
    ignored."""


class PolicyGradientSpec(ApiModel):
    """What both algorithms have."""

    num_prompts_per_step: Annotated[Count, Le(65536)] = 32
    """Prompts in one RL step. A trailing batch with fewer is never dispatched."""

    num_generations_per_prompt: Annotated[Count, Le(4096)] = 16
    """Completions per prompt; together they form the group that is compared."""

    max_rollout_turns: Annotated[Count, WARM] = 1
    """Turns a conversation with the environment may take."""

    seed: Annotated[Natural64, WARM] = 42
    """Seed of every random generator at start, initial weights included."""

    seq_logprob_error_threshold: Annotated[Positive | None, WARM] = None
    """Mask a sequence whose mean generation-to-trainer probability error is above this. Unset: only report
    it."""

    overlong_filtering: Annotated[bool, WARM] = False
    """Leave completions that hit the length limit out of the loss."""

    mask_env_flagged_samples: Annotated[bool, WARM] = True
    """Leave completions that their environment flagged out of the loss."""

    use_dynamic_sampling: Annotated[bool, WARM] = False
    """Discard a group whose rewards are all equal and generate another prompt in its place."""

    dynamic_sampling_max_gen_batches: Annotated[Count, WARM] = 10
    """Groups that dynamic sampling may discard in one step, in multiples of N. More ends the run."""

    reward_scaling: Annotated[RewardScaling, WARM] = Field(default_factory=RewardScaling)
    """Linear mapping of rewards from one interval to another, applied before shaping."""

    reward_shaping: Annotated[RewardShaping, WARM] = Field(default_factory=RewardShaping)
    """Penalty for completions that run near or into the length limit. Not with `gdpo`."""


class GrpoAdvEstimator(ApiModel):
    """How rewards become advantages. A union on `name`: a knob of another estimator is an error."""

    name: Literal["grpo", "gdpo", "opd", "reinforce_plus_plus"] = "grpo"
    """`grpo`: reward against its group. `gdpo`: the same per reward component, then combined. `opd`:
    distance to a teacher per token. `reinforce_plus_plus`: normalised over the whole batch."""

    use_leave_one_out_baseline: Annotated[bool | None, DefaultsTo("true")] = None
    """grpo, gdpo: compare each completion with its siblings, itself left out."""

    normalize_rewards: Annotated[bool | None, DefaultsTo("true")] = None
    """grpo, gdpo: divide by the group's spread."""

    baseline_excludes_masked: Annotated[bool | None, DefaultsTo("false")] = None
    """grpo, gdpo, reinforce_plus_plus: leave completions that are masked from the loss out of the baseline
    too."""

    reward_weights: Annotated[Annotated[Items[Number], MaxLen(32)] | None, DefaultsTo("1 for each")] = None
    """gdpo: weight of each reward component, in the order of their sorted names."""

    minus_baseline: Annotated[bool | None, DefaultsTo("true")] = None
    """reinforce_plus_plus: subtract the group's mean first."""


class GrpoSpec(PolicyGradientSpec):
    """GRPO: completions are compared within their group; there is no critic."""

    max_num_epochs: Annotated[Count | None, WARM] = 1
    """Passes over the training data. null: no limit."""

    max_num_steps: Annotated[Count64, WARM] = 1000000
    """RL steps to do, cut to what the epochs hold. Schedules are sized from the result."""

    skip_reference_policy_logprobs_calculation: Annotated[bool, WARM] = False
    """Never compute log-probabilities under the starting model. Rules out a KL penalty."""

    advantage_clip_low: Annotated[Number | None, WARM] = None
    """Lowest advantage after normalisation. Unset: no limit."""

    advantage_clip_high: Annotated[Number | None, WARM] = None
    """Highest advantage after normalisation. Unset: no limit."""

    invalid_tool_call_advantage: Annotated[Number | None, WARM] = None
    """Advantage given to every token of a message with an invalid tool call; wins over the next. Gym path
    only."""

    malformed_thinking_advantage: Annotated[Number | None, WARM] = None
    """Advantage given to every token of a message with malformed thinking. Gym path only."""

    policy_epochs_per_step: Annotated[Count, WARM] = 1
    """Passes over the batch of a step. Each pass makes `policyMinibatchesPerStep` policy updates."""

    policy_minibatches_per_step: Annotated[Count, WARM] = 1
    """Parts, whole groups each, that the batch is split into; one policy update per part."""

    adv_estimator: Annotated[GrpoAdvEstimator, WARM] = Field(default_factory=GrpoAdvEstimator)
    """How rewards become advantages. A union on `name`: a knob of another estimator is an error."""


class PpoAdvEstimator(ApiModel):
    """How rewards become advantages. A union on `name`: a knob of another estimator is an error."""

    name: Literal["gae", "raw_reward"] = "gae"
    """`gae`: generalised advantage estimation from the critic. `raw_reward` is refused, since it gives the
    critic nothing to learn from."""

    gae_lambda: Annotated[Fraction | None, DefaultsTo("0.95")] = None
    """gae: bias-variance trade-off of advantages and returns."""

    gae_gamma: Annotated[Fraction | None, DefaultsTo("1.0")] = None
    """gae: discount per token."""

    gae_lambda_value: Fraction | None = None
    """gae: a λ of its own for the critic's returns. Unset: `gaeLambda`."""

    gae_lambda_policy: Fraction | None = None
    """gae: a λ of its own for the policy's advantages. Unset: `gaeLambda`."""

    length_adaptive_alpha: Annotated[NonNegative | None, DefaultsTo("0 (off)")] = None
    """gae: let the policy's λ grow with the completion's length."""

    normalize_advantages: Annotated[bool | None, DefaultsTo("true")] = None
    """gae, raw_reward: bring advantages to mean 0 and spread 1 over valid tokens."""


class PpoSpec(PolicyGradientSpec):
    """PPO: a critic learns values beside the policy."""

    max_num_epochs: Annotated[Count | None, WARM] = 100000
    """Passes over the training data. null: no limit."""

    max_num_steps: Annotated[Count64, WARM] = 100000
    """RL steps to do, cut to what the epochs hold. Schedules are sized from the result."""

    skip_reference_policy_logprobs_calculation: Annotated[bool, WARM] = True
    """Never compute log-probabilities under the starting model. Rules out a KL penalty."""

    ppo_epochs: Annotated[Count, WARM] = 4
    """Policy updates per RL step."""

    critic_ppo_epochs: Annotated[Count | None, DefaultsTo("ppoEpochs"), WARM] = None
    """Critic updates per RL step; all of them come before the policy's."""

    policy_training_start_step: Natural64 = 0
    """Critic warm-up: steps in which only the critic learns and the policy stays as it is."""

    warm_start_value_checkpoint: Path | None = None
    """Another run's checkpoint to take the critic's weights from. Used on a fresh start only."""

    adv_estimator: Annotated[PpoAdvEstimator, WARM] = Field(default_factory=PpoAdvEstimator)
    """How rewards become advantages. A union on `name`: a knob of another estimator is an error."""


class AlgorithmSpec(ApiModel):
    """The learning rule. Which block is present cannot change."""

    grpo: GrpoSpec | None = None
    """Group-relative policy optimisation, without a critic. / Proximal policy optimisation, with a critic:
    needs `value` and `valueLoss`."""

    ppo: PpoSpec | None = None
    """Group-relative policy optimisation, without a critic. / Proximal policy optimisation, with a critic:
    needs `value` and `valueLoss`."""
