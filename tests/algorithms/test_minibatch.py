import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl_runtime.algorithms.minibatch import split_groups


@given(groups=st.integers(0, 40), minibatches=st.integers(1, 12), seed=st.none() | st.text(max_size=5))
def test_sc_10_44_every_group_is_in_one_minibatch_and_sizes_differ_by_at_most_one(groups, minibatches, seed):
    parts = split_groups(groups, minibatches, seed=seed)
    assert sorted(group for part in parts for group in part) == list(range(groups))
    assert len(parts) == min(groups, minibatches)
    sizes = [len(part) for part in parts]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert all(sizes)


def test_without_a_seed_the_order_stays():
    assert split_groups(5, 2) == [[0, 1, 2], [3, 4]]


def test_a_seed_shuffles_the_same_way_each_time():
    shuffled = split_groups(20, 4, seed="42/7/0")
    assert shuffled == split_groups(20, 4, seed="42/7/0")
    assert shuffled != split_groups(20, 4, seed="42/7/1")
    assert shuffled != split_groups(20, 4)


def test_no_minibatches_is_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        split_groups(3, 0)
