"""Settings of the algorithms from a resolved job spec: the one place that knows both."""

from __future__ import annotations

from typing import TypeVar

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_api.spec.algorithm import GrpoAdvEstimator, GrpoSpec, PolicyGradientSpec, PpoAdvEstimator
from asyncrl_runtime.algorithms.errors import UnresolvedSetting
from asyncrl_runtime.algorithms.settings import (
    EstimatorSettings,
    GaeSettings,
    GdpoSettings,
    GrpoSettings,
    KlSettings,
    LossSettings,
    MaskSettings,
    OpdSettings,
    OverlongShaping,
    RatioKind,
    RawRewardSettings,
    ReinforcePlusPlusSettings,
    RewardScaling,
    RewardSettings,
    StageSettings,
    StopShaping,
    Truncation,
    ValueLossSettings,
)

T = TypeVar("T")


def stage_settings(spec: JobSpec) -> StageSettings:
    """Settings of the advantage stage.

    Raises:
        UnresolvedSetting: a field that depends on others has not been filled in.
    """
    algorithm = _algorithm(spec)
    grpo = algorithm if isinstance(algorithm, GrpoSpec) else None
    return StageSettings(
        rewards=_reward_settings(algorithm),
        masks=mask_settings(spec),
        estimator=_estimator_settings(spec),
        clip_low=grpo.advantage_clip_low if grpo else None,
        clip_high=grpo.advantage_clip_high if grpo else None,
        invalid_tool_call_advantage=grpo.invalid_tool_call_advantage if grpo else None,
        malformed_thinking_advantage=grpo.malformed_thinking_advantage if grpo else None,
    )


def mask_settings(spec: JobSpec) -> MaskSettings:
    """Which rows are kept out of the loss; commit and advantage stage use the same."""
    algorithm = _algorithm(spec)
    return MaskSettings(
        overlong_filtering=algorithm.overlong_filtering,
        mask_env_flagged=algorithm.mask_env_flagged_samples,
        seq_error_threshold=algorithm.seq_logprob_error_threshold,
    )


def loss_settings(spec: JobSpec) -> LossSettings:
    """Settings of the policy loss. A truncation without a type does not exist."""
    loss = spec.loss
    truncation = None
    if loss.truncated_importance_sampling_type is not None:
        truncation = Truncation(
            kind=loss.truncated_importance_sampling_type,
            lower=loss.truncated_importance_sampling_ratio_min,
            upper=_filled(
                loss.truncated_importance_sampling_ratio, "spec.loss.truncatedImportanceSamplingRatio"
            ),
        )
    reported = not loss.use_kl_in_reward and not Derived(spec).skips_reference_logprobs
    return LossSettings(
        ratio=_ratio_kind(spec),
        clip_min=loss.ratio_clip_min,
        clip_max=loss.ratio_clip_max,
        dual_clip=loss.ratio_clip_c,
        cispo=loss.use_cispo,
        token_level=loss.token_level_loss,
        correction=Derived(spec).corrects,
        truncation=truncation,
        kl=_kl_settings(spec) if reported else None,
        on_policy_kl=loss.use_on_policy_kl_approximation,
        nll_weight=loss.positive_example_nll_weight,
    )


def value_loss_settings(spec: JobSpec) -> ValueLossSettings | None:
    """Settings of the critic's loss; None without a critic."""
    if spec.value_loss is None:
        return None
    return ValueLossSettings(scale=spec.value_loss.scale, clip_range=spec.value_loss.cliprange)


def filters_sampling(spec: JobSpec) -> bool:
    """Whether log-probs are of the top-k/top-p filtered distribution (SC-11.6)."""
    sampling = spec.generation.sampling
    return sampling.top_k is not None or sampling.top_p < 1


def _algorithm(spec: JobSpec) -> PolicyGradientSpec:
    return _filled(Derived(spec).algorithm, "spec.algorithm")


def _filled(value: T | None, path: str) -> T:
    if value is None:
        raise UnresolvedSetting(path)
    return value


def _ratio_kind(spec: JobSpec) -> RatioKind:
    """The first row of the table in SC-11.65 that applies."""
    loss = spec.loss
    if loss.force_on_policy_ratio:
        return "forced"
    if loss.disable_ppo_ratio:
        return "disabled"
    return "sequence" if loss.sequence_level_importance_ratios else "token"


def _kl_settings(spec: JobSpec) -> KlSettings:
    loss = spec.loss
    return KlSettings(
        penalty=Derived(spec).kl_penalty,
        kind=loss.reference_policy_kl_type,
        input_clamp=loss.kl_input_clamp_value,
        output_clamp=loss.kl_output_clamp_value,
    )


def _kl_in_reward(spec: JobSpec) -> KlSettings | None:
    active = spec.loss.use_kl_in_reward and Derived(spec).kl_penalty > 0
    return _kl_settings(spec) if active else None


def _reward_settings(algorithm: PolicyGradientSpec) -> RewardSettings:
    scaling, shaping = algorithm.reward_scaling, algorithm.reward_shaping
    path = "spec.algorithm.*.rewardShaping"
    shaped: OverlongShaping | StopShaping | None = None
    if shaping.enabled and shaping.stop_properly_penalty_coef is not None:
        shaped = StopShaping(coefficient=shaping.stop_properly_penalty_coef)
    elif shaping.enabled:
        shaped = OverlongShaping(
            buffer_tokens=_filled(shaping.overlong_buffer_length, f"{path}.overlongBufferLength"),
            penalty=_filled(shaping.overlong_buffer_penalty, f"{path}.overlongBufferPenalty"),
            max_response_tokens=_filled(shaping.max_response_length, f"{path}.maxResponseLength"),
        )
    return RewardSettings(
        scaling=RewardScaling(
            source_min=scaling.source_min,
            source_max=scaling.source_max,
            target_min=scaling.target_min,
            target_max=scaling.target_max,
        )
        if scaling.enabled
        else None,
        shaping=shaped,
    )


def _estimator_settings(spec: JobSpec) -> EstimatorSettings:
    if spec.algorithm.ppo is not None:
        return _ppo_estimator(spec, spec.algorithm.ppo.adv_estimator)
    return _grpo_estimator(spec, _filled(spec.algorithm.grpo, "spec.algorithm.grpo").adv_estimator)


def _ppo_estimator(spec: JobSpec, estimator: PpoAdvEstimator) -> EstimatorSettings:
    path = "spec.algorithm.ppo.advEstimator"
    normalize = _filled(estimator.normalize_advantages, f"{path}.normalizeAdvantages")
    if estimator.name == "raw_reward":
        return RawRewardSettings(normalize=normalize)
    return GaeSettings(
        gae_lambda=_filled(estimator.gae_lambda, f"{path}.gaeLambda"),
        gamma=_filled(estimator.gae_gamma, f"{path}.gaeGamma"),
        lambda_value=estimator.gae_lambda_value,
        lambda_policy=estimator.gae_lambda_policy,
        length_adaptive_alpha=_filled(estimator.length_adaptive_alpha, f"{path}.lengthAdaptiveAlpha"),
        normalize=normalize,
        kl=_kl_in_reward(spec),
        filtered_sampling=filters_sampling(spec),
    )


def _grpo_estimator(spec: JobSpec, estimator: GrpoAdvEstimator) -> EstimatorSettings:
    path = "spec.algorithm.grpo.advEstimator"
    if estimator.name == "opd":
        teachers = _filled(spec.on_policy_distillation, "spec.onPolicyDistillation")
        return OpdSettings(
            proximal_teacher_alpha=teachers.proximal_teacher_alpha,
            subtract_global_baseline=teachers.subtract_global_baseline,
        )
    exclude_masked = _filled(estimator.baseline_excludes_masked, f"{path}.baselineExcludesMasked")
    if estimator.name == "reinforce_plus_plus":
        return ReinforcePlusPlusSettings(
            minus_baseline=_filled(estimator.minus_baseline, f"{path}.minusBaseline"),
            exclude_masked=exclude_masked,
            kl=_kl_in_reward(spec),
            filtered_sampling=filters_sampling(spec),
        )
    group = GrpoSettings(
        leave_one_out=_filled(estimator.use_leave_one_out_baseline, f"{path}.useLeaveOneOutBaseline"),
        normalize=_filled(estimator.normalize_rewards, f"{path}.normalizeRewards"),
        exclude_masked=exclude_masked,
    )
    if estimator.name == "gdpo":
        return GdpoSettings(group=group, reward_weights=estimator.reward_weights)
    return group
