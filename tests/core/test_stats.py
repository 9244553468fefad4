"""Percentiles and means as the metrics define them."""

import pytest

from asyncrl_runtime.core.stats import mean, percentile


@pytest.mark.parametrize(
    ("values", "quantile", "expected"),
    [
        ([], 0.5, None),
        ([7], 0.95, 7),
        ([3, 1, 2], 0.5, 2),
        ([1, 2, 3, 4], 0.5, 2),
        (range(1, 101), 0.95, 95),
        (range(1, 101), 0.0, 1),
        (range(1, 101), 1.0, 100),
    ],
)
def test_sc_12_4_percentiles_are_nearest_rank(values, quantile, expected):
    assert percentile(list(values), quantile) == expected


def test_mean():
    assert mean([1, 2, 6]) == 3
    assert mean([]) is None
