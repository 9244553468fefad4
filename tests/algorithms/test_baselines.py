import numpy as np
import pytest
from algorithms.build import GRPO, REINFORCE, rows
from hypothesis import given
from hypothesis import strategies as st

from asyncrl_runtime.algorithms import settings as s
from asyncrl_runtime.algorithms.advantages import estimate
from asyncrl_runtime.algorithms.baselines import baselines, group_advantages, group_rows


def per_row(batch, settings):
    """The advantage of each row's first generated token."""
    return estimate(batch, settings).values[:, 1]


def grpo(*, leave_one_out=True, normalize=True, exclude_masked=False):
    return s.GrpoSettings(leave_one_out=leave_one_out, normalize=normalize, exclude_masked=exclude_masked)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (grpo(), [1.1547, -1.1547, -1.1547, 1.1547]),
        (grpo(normalize=False), [0.6667, -0.6667, -0.6667, 0.6667]),
        (grpo(leave_one_out=False), [0.866, -0.866, -0.866, 0.866]),
    ],
)
def test_ex_11_1_group_relative_advantages(settings, expected):
    assert per_row(rows([1, 0, 0, 1]), settings) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 1, 1, 1], [0, 0, 0, 0]),
        ([1, 0], [1, -1]),
        ([1, 0, 0, 0], [1.0, -0.57735, -0.57735, -0.57735]),
    ],
)
def test_ex_11_2_spread_of_the_siblings(rewards, expected):
    assert per_row(rows(rewards), GRPO) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (None, [1.4858, -0.3981, -0.6896, -0.3981]),
        ((1.0, 1.0), [1.4858, -0.3981, -0.6896, -0.3981]),
        ((1.0, 0.5), [1.3608, -0.7511, 0.1415, -0.7511]),
    ],
)
def test_ex_11_3_gdpo_combines_components(weights, expected):
    batch = rows([0] * 4, components={"format": [1, 1, 0, 1], "correctness": [1, 0, 1, 0]})
    settings = s.GdpoSettings(group=grpo(leave_one_out=False), reward_weights=weights)
    assert per_row(batch, settings) == pytest.approx(expected, abs=5e-5)


def test_ex_11_4_reinforce_plus_plus_normalises_over_tokens():
    groups = ["a", "a", "b", "b"]
    even = estimate(rows([1, 0, 1, 1], groups=groups, tokens=[2, 2, 2, 2]), REINFORCE).values
    assert even[:, 1] == pytest.approx([1.4142, -1.4142, 0, 0], abs=5e-5)
    uneven = estimate(rows([1, 0, 1, 1], groups=groups, tokens=[1, 3, 2, 2]), REINFORCE).values
    assert uneven[:, 1] == pytest.approx([1.8898, -1.1339, 0.378, 0.378], abs=5e-5)
    assert uneven[0, 2:] == pytest.approx([0, 0])


def test_reinforce_plus_plus_without_baseline_keeps_the_reward():
    settings = s.ReinforcePlusPlusSettings(
        minus_baseline=False, exclude_masked=False, kl=None, filtered_sampling=False
    )
    # groups do not matter: mean 0.75, population std sqrt(3)/4
    assert per_row(rows([1, 0, 1, 1], groups=list("aabb")), settings) == pytest.approx(
        [0.57735, -1.73205, 0.57735, 0.57735], abs=5e-5
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (grpo(exclude_masked=True), [1, -0.7071, -0.7071, 0]),
        (grpo(exclude_masked=True, normalize=False), [1, -0.5, -0.5, 0]),
        (grpo(exclude_masked=True, leave_one_out=False), [1.1547, -0.5773, -0.5773, 0]),
    ],
)
def test_ex_11_7_masked_siblings_leave_the_baseline(settings, expected):
    batch = rows([1, 0, 0, 1], sample_mask=[1, 1, 1, 0])
    assert per_row(batch, settings) == pytest.approx(expected, abs=1e-4)


def test_sc_11_27_masked_siblings_stay_in_the_baseline_by_default():
    batch = rows([1, 0, 0, 1], sample_mask=[1, 1, 1, 0])
    assert per_row(batch, grpo(normalize=False)) == pytest.approx([0.6667, -0.6667, -0.6667, 0], abs=5e-5)


def test_sc_11_27_an_excluded_row_and_an_empty_set_compare_with_themselves():
    rewards = np.array([3.0, 5.0])
    base, std = baselines(rewards, np.array([True, False]), leave_one_out=True, exclude_masked=True)
    assert base.tolist() == [3.0, 5.0]
    assert std.tolist() == [0.0, 0.0]
    base, _ = baselines(rewards, np.array([False, False]), leave_one_out=False, exclude_masked=True)
    assert base.tolist() == [3.0, 5.0]


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_ex_11_8_a_constant_group_has_no_spread(leave_one_out):
    rewards = np.full(8, 0.7)
    base, std = baselines(rewards, np.ones(8, bool), leave_one_out=leave_one_out, exclude_masked=False)
    assert std.tolist() == [0.0] * 8
    assert rewards - base == pytest.approx([0.0] * 8, abs=1e-15)


@given(
    level=st.floats(-1e3, 1e3),
    noise=st.lists(st.floats(-1, 1), min_size=2, max_size=16),
    leave_one_out=st.booleans(),
)
def test_sc_14_137_a_nearly_constant_group_is_not_divided_by_noise(level, noise, leave_one_out):
    rewards = level + 4e-7 * max(1.0, abs(level)) * np.array(noise)
    advantages = group_advantages(
        rewards,
        np.ones(len(rewards), bool),
        [np.arange(len(rewards))],
        leave_one_out=leave_one_out,
        normalize=True,
        exclude_masked=False,
    )
    assert np.abs(advantages).max() <= 1e-6 * max(1.0, abs(level))


def test_sc_14_120_groups_are_told_apart_by_id():
    # the same prompt in two live groups: each is compared within itself
    apart = per_row(rows([1, 0, 0, 0], groups=["g1", "g1", "g2", "g2"]), grpo(normalize=False))
    assert apart.tolist() == [1, -1, 0, 0]
    assert [group.tolist() for group in group_rows([7, "x", 7])] == [[0, 2], [1]]


def test_a_single_sibling_has_no_advantage():
    assert per_row(rows([5.0]), GRPO).tolist() == [0]


def test_leave_one_out_of_a_large_group_equals_the_direct_formula():
    rewards = np.random.default_rng(0).normal(size=600)
    base, std = baselines(rewards, np.ones(600, bool), leave_one_out=True, exclude_masked=False)
    for i in (0, 255, 256, 599):
        others = np.delete(rewards, i)
        assert base[i] == pytest.approx(others.mean())
        assert std[i] == pytest.approx(others.std(ddof=1))


rewards_lists = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=12)


@given(rewards=rewards_lists, data=st.data(), leave_one_out=st.booleans(), normalize=st.booleans())
def test_advantages_follow_a_permutation_of_rows(rewards, data, leave_one_out, normalize):
    groups = [data.draw(st.sampled_from("abc")) for _ in rewards]
    order = data.draw(st.permutations(range(len(rewards))))
    settings = grpo(leave_one_out=leave_one_out, normalize=normalize)
    before = per_row(rows(rewards, groups=groups), settings)
    after = per_row(rows([rewards[i] for i in order], groups=[groups[i] for i in order]), settings)
    assert after == pytest.approx(before[order], abs=1e-9)


@given(
    rewards=st.lists(st.integers(-3, 3), min_size=2, max_size=12),
    factor=st.floats(0.5, 100),
    shift=st.floats(-5, 5),
)
def test_normalised_advantages_ignore_scale_and_shift(rewards, factor, shift):
    values = np.array(rewards, dtype=np.float64)
    plain = per_row(rows(values), GRPO)
    moved = per_row(rows(values * factor + shift), GRPO)
    spread = np.array([np.ptp(np.delete(values, i)) > 0 for i in range(len(values))])
    assert moved[spread] == pytest.approx(plain[spread], rel=1e-4, abs=1e-4)


@given(rewards=rewards_lists)
def test_a_full_group_baseline_sums_to_zero(rewards):
    advantages = per_row(rows(rewards), grpo(leave_one_out=False))
    assert advantages.sum() == pytest.approx(0, abs=1e-6)
