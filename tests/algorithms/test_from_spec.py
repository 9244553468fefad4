from dataclasses import replace

import pytest
from algorithms.build import GAE, GRPO, KL, LOSS, REINFORCE

from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.resolve import resolve
from asyncrl_runtime.algorithms import from_spec, settings
from asyncrl_runtime.algorithms.errors import UnresolvedSetting

GRPO_KNOBS = {"useLeaveOneOutBaseline": True, "normalizeRewards": True, "baselineExcludesMasked": False}
GAE_KNOBS = {"gaeLambda": 0.95, "gaeGamma": 1.0, "lengthAdaptiveAlpha": 0.0, "normalizeAdvantages": False}


def spec(*, estimator=None, algorithm="grpo", block=None, **blocks):
    """A spec whose fields are filled in as `resolve` would."""
    return JobSpec.model_validate(
        {
            "model": {"init": {}},
            "data": {"source": {"generated": {}}},
            "environment": {"arithmetic": {}},
            "algorithm": {algorithm: {"advEstimator": estimator or GRPO_KNOBS, **(block or {})}},
            **blocks,
        }
    )


def reinforce(**knobs):
    return {"name": "reinforce_plus_plus", "minusBaseline": True, "baselineExcludesMasked": False, **knobs}


def test_defaults():
    loss = from_spec.loss_settings(spec(loss={"useImportanceSamplingCorrection": False}))
    assert loss == settings.LossSettings(
        **{name: getattr(LOSS, name) for name in LOSS.__slots__ if name != "kl"},
        kl=settings.KlSettings(penalty=0.01, kind="k3", input_clamp=20.0, output_clamp=10.0),
    )
    stage = from_spec.stage_settings(spec())
    assert stage.estimator == GRPO
    assert stage.rewards == settings.RewardSettings(scaling=None, shaping=None)
    assert from_spec.value_loss_settings(spec()) is None


def test_estimators():
    teachers = {"teacherModelByAgentName": {"a": "m"}, "proximalTeacherAlpha": 0.5}
    assert from_spec.stage_settings(
        spec(estimator={"name": "gdpo", "rewardWeights": [1.0, 2.0], **GRPO_KNOBS})
    ).estimator == settings.GdpoSettings(group=GRPO, reward_weights=(1.0, 2.0))
    assert from_spec.stage_settings(
        spec(estimator={"name": "opd"}, onPolicyDistillation=teachers)
    ).estimator == settings.OpdSettings(proximal_teacher_alpha=0.5, subtract_global_baseline=False)
    assert from_spec.stage_settings(spec(estimator=reinforce())).estimator == REINFORCE
    assert from_spec.stage_settings(spec(algorithm="ppo", estimator=GAE_KNOBS)).estimator == GAE
    raw = {"name": "raw_reward", "normalizeAdvantages": True}
    estimator = from_spec.stage_settings(spec(algorithm="ppo", estimator=raw)).estimator
    assert estimator == settings.RawRewardSettings(normalize=True)


def test_the_kl_term_is_in_the_loss_or_in_the_reward_but_never_in_both():
    loss = {"referencePolicyKlPenalty": 0.1, "useKlInReward": True}
    made = spec(estimator=reinforce(), loss=loss, generation={"sampling": {"topP": 0.9}})
    estimator = from_spec.stage_settings(made).estimator
    assert estimator.kl == KL
    assert estimator.filtered_sampling
    assert from_spec.loss_settings(made).kl is None

    unweighted = spec(estimator=reinforce(), loss={**loss, "referencePolicyKlPenalty": 0.0})
    assert from_spec.stage_settings(unweighted).estimator.kl is None


def test_without_reference_logprobs_there_is_no_kl_term():
    made = spec(block={"skipReferencePolicyLogprobsCalculation": True})
    assert from_spec.loss_settings(made).kl is None


@pytest.mark.parametrize(
    ("loss", "ratio"),
    [
        ({"forceOnPolicyRatio": True, "disablePpoRatio": True}, "forced"),
        ({"disablePpoRatio": True, "sequenceLevelImportanceRatios": True}, "disabled"),
        ({"sequenceLevelImportanceRatios": True}, "sequence"),
        ({}, "token"),
    ],
)
def test_sc_11_65_the_first_ratio_that_applies(loss, ratio):
    assert from_spec.loss_settings(spec(loss=loss)).ratio == ratio


def test_truncation_and_clipping():
    loss = from_spec.loss_settings(
        spec(
            loss={
                "useImportanceSamplingCorrection": True,
                "truncatedImportanceSamplingType": "icepop",
                "truncatedImportanceSamplingRatio": 2.0,
                "truncatedImportanceSamplingRatioMin": 0.5,
                "ratioClipMax": 0.28,
                "ratioClipC": 3.0,
                "useCispo": True,
                "tokenLevelLoss": False,
                "useOnPolicyKlApproximation": True,
                "positiveExampleNllWeight": 0.25,
            }
        )
    )
    assert loss.truncation == settings.Truncation(kind="icepop", lower=0.5, upper=2.0)
    assert (loss.clip_min, loss.clip_max, loss.dual_clip, loss.nll_weight) == (0.2, 0.28, 3.0, 0.25)
    assert (loss.cispo, loss.token_level, loss.on_policy_kl, loss.correction) == (True, False, True, True)


def test_masks_rewards_and_advantage_bounds():
    overlong = {"overlongBufferLength": 20, "overlongBufferPenalty": 0.5, "maxResponseLength": 100}
    stage = from_spec.stage_settings(
        spec(
            block={
                "overlongFiltering": True,
                "maskEnvFlaggedSamples": False,
                "seqLogprobErrorThreshold": 2.0,
                "rewardScaling": {"enabled": True, "sourceMin": -1.0, "targetMax": 5.0},
                "rewardShaping": {"enabled": True, **overlong},
                "advantageClipLow": -1.0,
                "advantageClipHigh": 2.0,
                "invalidToolCallAdvantage": -3.0,
                "malformedThinkingAdvantage": -4.0,
            }
        )
    )
    assert stage.masks == settings.MaskSettings(
        overlong_filtering=True, mask_env_flagged=False, seq_error_threshold=2.0
    )
    assert stage.rewards.scaling == settings.RewardScaling(
        source_min=-1.0, source_max=1.0, target_min=0.0, target_max=5.0
    )
    assert stage.rewards.shaping == settings.OverlongShaping(
        buffer_tokens=20, penalty=0.5, max_response_tokens=100
    )
    assert (stage.clip_low, stage.clip_high) == (-1, 2)
    assert (stage.invalid_tool_call_advantage, stage.malformed_thinking_advantage) == (-3, -4)
    stop = {"enabled": True, "stopProperlyPenaltyCoef": 0.5, **overlong}
    shaped = from_spec.stage_settings(spec(block={"rewardShaping": stop})).rewards.shaping
    assert shaped == settings.StopShaping(coefficient=0.5)


def test_the_critics_loss():
    made = spec(algorithm="ppo", estimator=GAE_KNOBS, valueLoss={"scale": 0.5, "cliprange": 0.2})
    assert from_spec.value_loss_settings(made) == settings.ValueLossSettings(scale=0.5, clip_range=0.2)


@pytest.mark.parametrize("name", ["grpo", "gdpo", "reinforce_plus_plus", "gae"])
def test_a_resolved_spec_has_all_that_is_needed(name):
    algorithm = "ppo" if name == "gae" else "grpo"
    job = AsyncRLJob(
        api_version="asyncrl.io/v1alpha1",
        kind="AsyncRLJob",
        metadata={"name": "job"},
        spec=spec(algorithm=algorithm, estimator={"name": name}),
    )
    expected = {
        "grpo": GRPO,
        "gdpo": settings.GdpoSettings(group=GRPO, reward_weights=None),
        "reinforce_plus_plus": REINFORCE,
        "gae": replace(GAE, normalize=True),
    }
    assert from_spec.stage_settings(resolve(job).spec).estimator == expected[name]


def test_sc_2_9_an_unresolved_spec_is_refused():
    with pytest.raises(UnresolvedSetting, match=r"advEstimator\.baselineExcludesMasked is unset"):
        from_spec.stage_settings(spec(estimator={"name": "grpo"}))
