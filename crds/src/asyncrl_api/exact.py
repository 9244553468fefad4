"""Exact arithmetic on settings, which users write in decimal."""

from fractions import Fraction
from functools import lru_cache
from math import ceil


@lru_cache
def ceil_product(value: float, count: int) -> int:
    """The ceiling of value * count, taken on the decimal text of value (SC-5.52).

    In binary floating point 0.28 * 25 comes out above 7 and would give 8.
    """
    return ceil(Fraction(repr(float(value))) * count)
