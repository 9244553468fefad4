"""Small statistics, as the metrics define them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def percentile(values: Sequence[float], quantile: float) -> float | None:
    """Nearest-rank percentile (SC-12.4); None for no values."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[max(0, ceil(quantile * len(ranked)) - 1)]


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean; None for no values."""
    return sum(values) / len(values) if values else None
