import numpy as np
import pytest

from asyncrl_runtime.algorithms import settings as s
from asyncrl_runtime.algorithms.errors import NonFiniteRewards
from asyncrl_runtime.algorithms.rewards import has_zero_spread, scale, shape, transform

SCALING = s.RewardScaling(source_min=0.0, source_max=1.0, target_min=-1.0, target_max=1.0)
OVERLONG = s.OverlongShaping(buffer_tokens=20, penalty=1.0, max_response_tokens=100)


def test_sc_11_58_scaling_clamps_and_maps():
    scaled, outside = scale(np.array([-0.5, 0, 0.25, 1, 2]), SCALING)
    assert scaled.tolist() == [-1, -1, -0.5, 1, 1]
    assert outside == 2


def test_sc_11_59_and_sc_14_131_the_overlong_penalty_saturates():
    lengths = np.array([60, 80, 90, 100, 110, 5000])
    shaped = shape(np.zeros(6), OVERLONG, response_tokens=lengths, truncated=np.zeros(6))
    assert shaped.tolist() == [0, 0, -0.5, -1, -1, -1]


def test_sc_11_59_the_stop_coefficient_touches_truncated_rows_only():
    shaped = shape(
        np.array([1.0, 1.0]),
        s.StopShaping(coefficient=0.25),
        response_tokens=np.array([500, 500]),
        truncated=np.array([1, 0]),
    )
    assert shaped.tolist() == [0.25, 1.0]


def test_sc_11_57_scaling_comes_before_shaping_and_components_are_scaled_alike():
    got = transform(
        np.array([0.0, 3.0]),
        {"format": np.array([0.5, -1.0])},
        s.RewardSettings(scaling=SCALING, shaping=OVERLONG),
        response_tokens=np.array([90, 0]),
        truncated=np.zeros(2),
    )
    assert got.rewards.tolist() == [-1.5, 1.0]
    assert got.components["format"].tolist() == [0.0, -1.0]
    assert got.out_of_range == 1
    assert got.components_out_of_range == {"format": 1}


def test_without_transforms_rewards_stay():
    got = transform(
        np.array([0.0, 7.0]),
        {},
        s.RewardSettings(scaling=None, shaping=None),
        response_tokens=np.zeros(2),
        truncated=np.ones(2),
    )
    assert got.rewards.tolist() == [0, 7]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_reward_is_an_error(bad):
    nothing = s.RewardSettings(scaling=None, shaping=None)
    with pytest.raises(NonFiniteRewards, match=r"reward is NaN or infinite in 1 rows \(1\)"):
        transform(np.array([0, bad]), {}, nothing, response_tokens=np.zeros(2), truncated=np.zeros(2))
    with pytest.raises(NonFiniteRewards, match="reward_component/style"):
        transform(
            np.zeros(2),
            {"style": np.array([bad, 0])},
            nothing,
            response_tokens=np.zeros(2),
            truncated=np.zeros(2),
        )


def test_sc_11_60_a_group_without_spread():
    assert has_zero_spread([1, 1, 1])
    assert not has_zero_spread([1, 1, 0.999])
    assert not has_zero_spread([1, 1], {"a": [1, 0], "b": [0, 1]})
    assert has_zero_spread([1, 0], {"a": [1, 1], "b": [0, 0]})
