import math

import pytest

from asyncrl_runtime.algorithms.errors import NothingToNormalize, StatMismatch
from asyncrl_runtime.algorithms.metrics import Moments, Normalizer, Stat, Totals, finalize, merge, normalizer


def test_each_reduction():
    first = {
        "mean": Stat(Normalizer.TOKENS, 6.0, 2.0),
        "sum": Stat(Normalizer.NONE, 6.0),
        "low": Stat(Normalizer.MIN, 6.0),
        "high": Stat(Normalizer.MAX, 6.0),
    }
    second = {
        "mean": Stat(Normalizer.TOKENS, 1.0, 5.0),
        "sum": Stat(Normalizer.NONE, 1.0),
        "low": Stat(Normalizer.MIN, 1.0),
        "high": Stat(Normalizer.MAX, 1.0),
    }
    assert finalize([first, second]) == {"mean": 1.0, "sum": 7.0, "low": 1.0, "high": 6.0}


def test_a_part_that_saw_nothing_does_not_reach_extremes_or_means():
    empty = {
        "mean": Stat(Normalizer.ROWS, 0.0, 0.0),
        "low": Stat(Normalizer.MIN, math.inf, empty=-1.0),
    }
    seen = {"mean": Stat(Normalizer.ROWS, 4.0, 2.0), "low": Stat(Normalizer.MIN, 3.0, empty=-1.0)}
    assert finalize([empty, seen]) == {"mean": 2.0, "low": 3.0}
    assert finalize([empty]) == {"mean": 0.0, "low": -1.0}


def test_inputs_of_other_metrics_are_not_published():
    assert finalize([{"_hidden": Stat(Normalizer.NONE, 1.0)}]) == {}


def test_sc_11_69_one_name_has_one_reduction():
    with pytest.raises(StatMismatch, match=r"loss is declared as tokens and as none"):
        merge([{"loss": Stat(Normalizer.TOKENS, 1.0, 1.0)}, {"loss": Stat(Normalizer.NONE, 1.0)}])
    with pytest.raises(StatMismatch):
        merge([{"x": Moments(1, 1, 1)}, {"x": Stat(Normalizer.NONE, 1.0)}])


def test_moments_of_few_values():
    assert finalize([{"x": Moments(0, 0, 0)}]) == {"x_mean": 0, "x_std": 0}
    assert finalize([{"x": Moments(1, 3, 9)}]) == {"x_mean": 3, "x_std": 0}
    assert finalize([{"x": Moments(1, 3, 9)}, {"x": Moments(1, 1, 1)}]) == pytest.approx(
        {"x_mean": 2, "x_std": math.sqrt(2)}
    )


def test_sc_11_71_the_normalizer_is_t_or_s():
    totals = Totals(10, 2, 4) + Totals(2, 1, 0)
    assert totals == Totals(12, 3, 4)
    assert normalizer(totals, token_level=True) == 12
    assert normalizer(totals, token_level=False) == 3


def test_sc_14_119_a_fully_masked_step_raises():
    with pytest.raises(NothingToNormalize, match="every row is masked"):
        normalizer(Totals(0, 0, 0), token_level=True)
