"""Which checkpoints stay (SC-9.40)."""

import itertools

import pytest

from asyncrl_runtime.core.retention import Retention, Saved

HISTORY = [Saved(2, 0.3), Saved(4, 0.9), Saved(6, 0.9), Saved(8, 0.5)]


def rules(*, period=2, top=2, by_metric=True, higher=True, latest=None):
    return Retention(
        save_period=period,
        keep_top_k=top,
        by_metric=by_metric,
        higher_is_better=higher,
        ft_keep_latest_k=latest,
    )


def test_ex_9_1():
    assert rules().kept(HISTORY) == {4, 6, 8}
    assert rules(latest=3).kept(HISTORY) == {4, 6, 8}


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (rules(top=None), {2, 4, 6, 8}),
        (rules(top=None, latest=1), {2, 4, 6, 8}),
        (rules(top=None, period=4, latest=1), {4, 8}),
        (rules(top=None, period=4, latest=2), {4, 6, 8}),
        (rules(top=1), {6, 8}),
        (rules(top=1, higher=False), {2, 8}),
        (rules(top=2, by_metric=False), {6, 8}),
        (rules(top=1, period=100), {8}),
    ],
)
def test_sc_9_40_a_checkpoint_stays_if_any_rule_keeps_it(policy, kept):
    for history in itertools.permutations(HISTORY):
        assert policy.kept(history) == kept


def test_sc_9_40_a_missing_value_is_below_every_value():
    history = [Saved(2, -1e9), Saved(4, None), Saved(6, float("nan")), Saved(8, None)]
    assert rules(top=1).kept(history) == {2, 8}
    assert rules(top=1, higher=False).kept(history) == {2, 8}


def test_nothing_saved_nothing_kept():
    assert rules().kept([]) == set()
    assert rules().best([]) is None


def test_sc_9_45_the_best_is_among_those_with_a_metric():
    assert rules().best(HISTORY) == 6
    assert rules(higher=False).best(HISTORY) == 2
    assert rules().best([Saved(2, 0.1), Saved(4, None), Saved(6, float("nan"))]) == 2
    assert rules().best([Saved(2, None), Saved(4, None)]) == 4
    assert rules(by_metric=False).best(HISTORY) == 8
