from dataclasses import replace

import numpy as np
import pytest
from algorithms.build import GAE, GRPO, KL, REINFORCE, rows

from asyncrl_runtime.algorithms import columns as c
from asyncrl_runtime.algorithms import settings as s
from asyncrl_runtime.algorithms.advantages import estimate
from asyncrl_runtime.algorithms.errors import ColumnsMismatch, RewardWeightMismatch, TooFewComponents
from asyncrl_runtime.algorithms.kl import kl_in_reward
from asyncrl_runtime.algorithms.metrics import finalize
from asyncrl_runtime.ports import columns as port

with_kl = s.ReinforcePlusPlusSettings(
    minus_baseline=True, exclude_masked=False, kl=KL, filtered_sampling=False
)


def test_ex_11_9_opd_mixes_teacher_and_policy():
    gap = np.array([[0.0, np.log(2), -np.log(2)]])
    previous = np.array([[0.0, -1.0, -2.0]])
    settings = s.OpdSettings(proximal_teacher_alpha=0.5, subtract_global_baseline=False)
    batch = rows([0.0], tokens=[2])

    mixed = estimate(batch, settings, previous_logprobs=previous, teacher_logprobs=previous + gap)
    assert mixed.values[0, 1:] == pytest.approx([0.4055, -0.2877], abs=5e-5)
    metrics = finalize([mixed.stats])
    assert metrics["on_policy_distillation/advantage_std"] == pytest.approx(0.4901, abs=5e-5)
    assert metrics["on_policy_distillation/teacher_gap_std"] == pytest.approx(0.9803, abs=5e-5)
    assert metrics["on_policy_distillation/advantage_mean"] == pytest.approx(0.0589, abs=5e-5)

    settings = s.OpdSettings(proximal_teacher_alpha=0.5, subtract_global_baseline=True)
    centred = estimate(batch, settings, previous_logprobs=previous, teacher_logprobs=previous + gap)
    assert centred.values[0, 1:] == pytest.approx([0.3466, -0.3466], abs=5e-5)


def test_opd_with_the_teacher_alone_is_the_gap():
    settings = s.OpdSettings(proximal_teacher_alpha=1.0, subtract_global_baseline=False)
    previous = np.array([[0.0, -1.0, -np.inf]])
    teacher = np.array([[0.0, -3.0, -1.0]])
    values = estimate(
        rows([0.0], tokens=[2]), settings, previous_logprobs=previous, teacher_logprobs=teacher
    ).values
    assert values.tolist() == [[0.0, -2.0, 0.0]]


def test_sc_11_30_opd_statistics_pool_over_chunks():
    settings = s.OpdSettings(proximal_teacher_alpha=1.0, subtract_global_baseline=False)
    gaps = np.random.default_rng(1).normal(size=(3, 5))
    whole = rows([0, 0, 0], tokens=[4, 2, 3])

    def stats(picked):
        part = rows([0] * len(picked), tokens=[[4, 2, 3][i] for i in picked])
        width = part.token_mask.shape[1]
        zeros = np.zeros((len(picked), width))
        return estimate(part, settings, previous_logprobs=zeros, teacher_logprobs=gaps[picked, :width]).stats

    metrics = finalize([stats([0]), stats([1, 2])])
    taken = gaps[whole.valid]
    assert metrics["on_policy_distillation/teacher_gap_mean"] == pytest.approx(taken.mean())
    assert metrics["on_policy_distillation/teacher_gap_std"] == pytest.approx(taken.std(ddof=1))


def test_sc_11_17_a_renamed_column_is_not_swallowed():
    batch = rows([1, 0])
    column = np.zeros(batch.token_mask.shape)
    with pytest.raises(ColumnsMismatch) as caught:
        estimate(batch, with_kl, previous_logprobs=column, ref_logprobs=column)
    assert caught.value.missing == ("reference_logprobs",)
    assert caught.value.unknown == ("ref_logprobs",)
    with pytest.raises(ColumnsMismatch):
        estimate(batch, GRPO, previous_logprobs=column)


def test_sc_14_125_only_the_critic_estimator_asks_for_values():
    batch = rows([1, 0])
    with pytest.raises(ColumnsMismatch, match="values"):
        estimate(batch, GAE)
    for settings in (GRPO, REINFORCE, with_kl):
        assert c.VALUES not in c.estimator_columns(settings)


def test_column_names_are_those_of_the_data_plane():
    for name in ("GENERATION_LOGPROBS", "PREVIOUS_LOGPROBS", "REFERENCE_LOGPROBS"):
        assert getattr(c, name) == getattr(port, name)


def test_kl_in_the_reward_reads_unfiltered_logprobs_under_filtered_sampling():
    filtered = replace(with_kl, filtered_sampling=True)
    assert c.estimator_columns(filtered) == ("unfiltered_previous_logprobs", "reference_logprobs")


def test_sc_11_23_kl_in_the_reward_is_subtracted_before_normalisation():
    batch = rows([1, 0], tokens=[2, 1])
    previous = np.array([[0.0, -1.0, -1.0], [0.0, -1.0, 0.0]])
    reference = np.array([[0.0, -1.5, -1.0], [0.0, -1.0, 0.0]])
    got = estimate(batch, with_kl, previous_logprobs=previous, reference_logprobs=reference)
    k = np.exp(-0.5) - 0.5
    raw = np.array([0.5 - 0.1 * k, 0.5, -0.5])
    expected = (raw - raw.mean()) / raw.std()
    assert got.values[batch.valid] == pytest.approx(expected)
    assert finalize([got.stats])["kl_penalty"] == pytest.approx(k / 3)


@pytest.mark.parametrize(("kind", "expected"), [("k1", 0.5), ("k2", 0.125), ("k3", 0.1065)])
def test_kl_in_the_reward_by_kind(kind, expected):
    settings = s.KlSettings(penalty=1, kind=kind, input_clamp=20.0, output_clamp=10.0)
    got = kl_in_reward(np.array([[-1.0]]), np.array([[-1.5]]), np.array([[True]]), settings)
    assert got == pytest.approx(expected, abs=5e-5)


def test_kl_in_the_reward_clamps_and_skips_filtered_tokens():
    policy = np.array([[-1000.0, -np.inf, np.nan]])
    reference = np.array([[0.0, -1.0, np.nan]])
    mask = np.array([[True, True, False]])
    clamps = s.KlSettings(penalty=1, kind="k3", input_clamp=20.0, output_clamp=10.0)
    assert kl_in_reward(policy, reference, mask, clamps).tolist() == [[10.0, 0.0, 0.0]]
    only_output = s.KlSettings(penalty=1, kind="k3", input_clamp=None, output_clamp=10.0)
    assert kl_in_reward(policy, reference, mask, only_output).tolist() == [[10.0, 0.0, 0.0]]


def test_sc_11_28_gdpo_needs_two_components():
    settings = s.GdpoSettings(group=GRPO, reward_weights=None)
    with pytest.raises(TooFewComponents, match="grpo"):
        estimate(rows([1, 0], components={"only": [1, 0]}), settings)


def test_sc_2_307_gdpo_weights_match_the_components():
    settings = s.GdpoSettings(group=GRPO, reward_weights=(1.0,))
    with pytest.raises(RewardWeightMismatch, match=r"1 entries for 2 .* a, b"):
        estimate(rows([1, 0], components={"b": [1, 0], "a": [0, 1]}), settings)


def test_gdpo_statistics_leave_masked_rows_out():
    components = {"a": [1, 0, 0, 1], "b": [0, 1, 1, 0.5]}
    settings = s.GdpoSettings(group=GRPO, reward_weights=None)
    batch = rows([0] * 4, components=components, sample_mask=[1, 1, 1, 0])
    values = estimate(batch, settings).values[:, 1]
    assert values[:3].mean() == pytest.approx(0)
    assert values[:3].std(ddof=1) == pytest.approx(1)
    assert values[3] == 0


def test_gdpo_without_spread_only_centres():
    settings = s.GdpoSettings(group=GRPO, reward_weights=None)
    batch = rows([0] * 3, components={"a": [1, 1, 1], "b": [2, 2, 2]})
    assert estimate(batch, settings).values[:, 1].tolist() == [0, 0, 0]


def test_raw_reward_fills_valid_tokens():
    batch = rows([2.0, 3.0], tokens=[1, 2], sample_mask=[1, 1])
    plain = estimate(batch, s.RawRewardSettings(normalize=False))
    assert plain.values.tolist() == [[0, 2, 0], [0, 3, 3]]
    assert plain.returns is None
    white = estimate(batch, s.RawRewardSettings(normalize=True)).values
    assert white[batch.valid] == pytest.approx([-1.1547, 0.57735, 0.57735], abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (GRPO, False),
        (s.GdpoSettings(group=GRPO, reward_weights=None), True),
        (REINFORCE, True),
        (GAE, False),
        (s.RawRewardSettings(normalize=True), True),
        (s.OpdSettings(proximal_teacher_alpha=1.0, subtract_global_baseline=False), False),
        (s.OpdSettings(proximal_teacher_alpha=1.0, subtract_global_baseline=True), True),
    ],
)
def test_sc_14_121_who_must_see_the_whole_step(settings, expected):
    assert s.has_batch_statistics(settings) is expected


def test_masked_rows_get_zeros_from_every_estimator():
    batch = rows(
        [1, 0, 1], tokens=[2, 2, 2], sample_mask=[1, 0, 1], components={"a": [1, 0, 1], "b": [0, 0, 1]}
    )
    column = np.full(batch.token_mask.shape, -1.0)
    for settings in (
        GRPO,
        s.GdpoSettings(group=GRPO, reward_weights=None),
        REINFORCE,
        with_kl,
        GAE,
        s.OpdSettings(proximal_teacher_alpha=1.0, subtract_global_baseline=True),
        s.RawRewardSettings(normalize=True),
    ):
        columns = dict.fromkeys(c.estimator_columns(settings), column)
        values = estimate(batch, settings, **columns).values
        assert not values[1].any()
        assert not values[:, 0].any()
