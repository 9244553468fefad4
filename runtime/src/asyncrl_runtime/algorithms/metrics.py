"""Metrics as sufficient statistics: parts of a step merge into exactly what one part would have given.

Plain Python, so that workers send their parts and the controller merges them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from asyncrl_runtime.algorithms.errors import NothingToNormalize, StatMismatch


class Normalizer(StrEnum):
    """How the parts of a metric become its value (SC-11.69)."""

    TOKENS = "tokens"
    """Sum over valid tokens, divided by their number."""
    SEQUENCES = "sequences"
    """Sum over valid rows, divided by their number."""
    ROWS = "rows"
    """Sum over some rows, divided by their number."""
    NONE = "none"
    """Sum."""
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Stat:
    """One metric over a part of a step."""

    normalizer: Normalizer
    value: float
    """Raw sum, or the extreme. Infinite: nothing was seen."""

    weight: float = 0.0
    """What the sum is divided by at the end; unused by none, min and max."""

    empty: float = 0.0
    """Result when nothing was seen."""

    def merged(self, other: Stat) -> Stat:
        """Both parts together."""
        if self.normalizer == Normalizer.MIN:
            return replace(self, value=min(self.value, other.value))
        if self.normalizer == Normalizer.MAX:
            return replace(self, value=max(self.value, other.value))
        return replace(self, value=self.value + other.value, weight=self.weight + other.weight)

    def results(self, name: str) -> dict[str, float]:
        """The finished metric by name."""
        match self.normalizer:
            case Normalizer.NONE:
                return {name: self.value}
            case Normalizer.MIN | Normalizer.MAX:
                return {name: self.empty if math.isinf(self.value) else self.value}
            case _:
                return {name: self.value / self.weight if self.weight > 0 else self.empty}


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and unbiased spread of one quantity, pooled from sums (SC-11.30)."""

    count: float
    total: float
    squares: float

    def merged(self, other: Moments) -> Moments:
        """Both parts together."""
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def results(self, name: str) -> dict[str, float]:
        """`<name>_mean` and `<name>_std`."""
        mean = self.total / self.count if self.count else 0.0
        spread = self.squares - self.total**2 / self.count if self.count else 0.0
        std = math.sqrt(max(0.0, spread / (self.count - 1))) if self.count >= 2 else 0.0
        return {f"{name}_mean": mean, f"{name}_std": std}


Stats = Mapping[str, Stat | Moments]


def merge(parts: Iterable[Stats]) -> dict[str, Stat | Moments]:
    """Pool the parts of a step. Raises `StatMismatch` if a name changes its reduction."""
    pooled: dict[str, Stat | Moments] = {}
    for part in parts:
        for name, stat in part.items():
            pooled[name] = _merged(name, pooled[name], stat) if name in pooled else stat
    return pooled


def finalize(parts: Iterable[Stats]) -> dict[str, float]:
    """Merge the parts and divide once. Names that start with an underscore are inputs only and left out."""
    pooled = merge(parts)
    results: dict[str, float] = {}
    for name, stat in pooled.items():
        if not name.startswith("_"):
            results |= stat.results(name)
    return results


def _merged(name: str, first: Stat | Moments, second: Stat | Moments) -> Stat | Moments:
    if isinstance(first, Moments) and isinstance(second, Moments):
        return first.merged(second)
    if isinstance(first, Stat) and isinstance(second, Stat) and first.normalizer == second.normalizer:
        return first.merged(second)
    raise StatMismatch(name, _kind(first), _kind(second))


def _kind(stat: Stat | Moments) -> str:
    return stat.normalizer.value if isinstance(stat, Stat) else "moments"


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over one optimizer step: T, S and T+ (SC-11.6, SC-11.64)."""

    valid_tokens: float
    valid_rows: float
    positive_tokens: float

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.valid_tokens + other.valid_tokens,
            self.valid_rows + other.valid_rows,
            self.positive_tokens + other.positive_tokens,
        )


def normalizer(totals: Totals, *, token_level: bool) -> float:
    """What the summed gradient is divided by, once per optimizer step: T, or S (SC-11.71).

    Raises:
        NothingToNormalize: the step holds no valid token (row).
    """
    value = totals.valid_tokens if token_level else totals.valid_rows
    if value <= 0:
        raise NothingToNormalize("token" if token_level else "row")
    return value
