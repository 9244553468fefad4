"""Settings of the algorithms, as small records.

Defaults live in the resource alone; every field here is required.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KlKind = Literal["k1", "k2", "k3"]
RatioKind = Literal["forced", "disabled", "sequence", "token"]
"""Rows of the table in SC-11.65, first to last."""
TruncationKind = Literal["tis", "icepop", "seq-mask-tis"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KlSettings:
    """Distance to the reference policy, per token (SC-11.63)."""

    penalty: float
    kind: KlKind
    input_clamp: float | None
    output_clamp: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardScaling:
    """Linear map of the source interval onto the target interval (SC-11.58)."""

    source_min: float
    source_max: float
    target_min: float
    target_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongShaping:
    """Penalty that grows over the last tokens before the length limit (SC-11.59)."""

    buffer_tokens: int
    penalty: float
    max_response_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopShaping:
    """Factor on the reward of a truncated completion (SC-11.59)."""

    coefficient: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """Transforms of rewards before the estimator; None leaves one out."""

    scaling: RewardScaling | None
    shaping: OverlongShaping | StopShaping | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSettings:
    """Which rows are kept out of the loss (SC-11.50)."""

    overlong_filtering: bool
    mask_env_flagged: bool
    seq_error_threshold: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoSettings:
    """Reward against its group (SC-11.20)."""

    leave_one_out: bool
    normalize: bool
    exclude_masked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GdpoSettings:
    """`GrpoSettings` per reward component, then combined (SC-11.21)."""

    group: GrpoSettings
    reward_weights: tuple[float, ...] | None
    """In the order of the sorted component names; None weighs all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpdSettings:
    """Distance to a teacher (SC-11.32)."""

    proximal_teacher_alpha: float
    subtract_global_baseline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlusSettings:
    """Reward normalised over the batch (SC-11.23)."""

    minus_baseline: bool
    exclude_masked: bool
    kl: KlSettings | None
    """KL term in the reward; None: in the loss, or nowhere."""

    filtered_sampling: bool
    """Log-probs are of the top-k/top-p filtered distribution, so the KL term reads a column of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaeSettings:
    """Generalised advantage estimation (SC-11.24)."""

    gae_lambda: float
    gamma: float
    lambda_value: float | None
    lambda_policy: float | None
    length_adaptive_alpha: float
    normalize: bool
    kl: KlSettings | None
    filtered_sampling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRewardSettings:
    """Reward over tokens (SC-11.25)."""

    normalize: bool


EstimatorSettings = (
    GrpoSettings | GdpoSettings | OpdSettings | ReinforcePlusPlusSettings | GaeSettings | RawRewardSettings
)


def has_batch_statistics(settings: EstimatorSettings) -> bool:
    """Whether an estimator must see the whole step at once (SC-2.308)."""
    match settings:
        case GdpoSettings() | ReinforcePlusPlusSettings():
            return True
        case GaeSettings(normalize=normalize) | RawRewardSettings(normalize=normalize):
            return normalize
        case OpdSettings(subtract_global_baseline=baseline):
            return baseline
        case _:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """The advantage stage (SC-11.12)."""

    rewards: RewardSettings
    masks: MaskSettings
    estimator: EstimatorSettings
    clip_low: float | None
    clip_high: float | None
    invalid_tool_call_advantage: float | None
    malformed_thinking_advantage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Bounds on correction weights (SC-11.67)."""

    kind: TruncationKind
    lower: float | None
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The policy loss (11.7)."""

    ratio: RatioKind
    clip_min: float
    clip_max: float
    dual_clip: float | None
    cispo: bool
    token_level: bool
    correction: bool
    """Weigh tokens by previous against generation probability (SC-11.66)."""

    truncation: Truncation | None
    kl: KlSettings | None
    """KL term in the loss. With penalty 0 it is only reported, if the batch holds reference log-probs."""

    on_policy_kl: bool
    nll_weight: float
    """Weight of the likelihood term on rows with positive raw reward; 0 leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLossSettings:
    """The critic's loss (SC-10.20)."""

    scale: float
    clip_range: float | None
