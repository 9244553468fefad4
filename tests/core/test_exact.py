"""Exact products (SC-5.52)."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl_runtime.core.exact import ceil_product


@pytest.mark.parametrize(
    ("groups", "floor"),
    [(2, 2), (4, 4), (8, 8), (9, 9), (10, 9), (16, 15), (20, 18), (32, 29), (64, 58), (128, 116), (256, 231)],
)
def test_ex_5_1_the_floor_at_a_fraction_of_nine_tenths(groups, floor):
    assert ceil_product(0.9, groups) == floor


@pytest.mark.parametrize(
    ("value", "count", "product"),
    [
        (0.28, 25, 7),
        (0.55, 100, 55),
        (0.9, 16, 15),
        (1.0, 8, 8),
        (1.1, 50, 55),
        (0.01, 4, 1),
        (1.0, 7, 7),
        (1, 7, 7),
    ],
)
def test_sc_14_18_binary_fractions_do_not_round_up(value, count, product):
    assert ceil_product(value, count) == product


@given(hundredths=st.integers(0, 500), count=st.integers(0, 4096))
def test_decimal_settings_are_taken_at_their_word(hundredths, count):
    assert ceil_product(hundredths / 100, count) == ceil(Fraction(hundredths, 100) * count)
