"""Axes: round tick values, ranges and thinned series."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def span_of(values: Iterable[float | None], *, include_zero: bool = False) -> tuple[float, float]:
    """Lowest and highest value, with some air; never empty."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if include_zero:
        known.append(0.0)
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if low == high == 0:
        return 0.0, 1.0
    if low == high:
        air = abs(low) * 0.1 or 1.0
        return (low if include_zero and low == 0 else low - air), high + air
    air = (high - low) * 0.04
    return (low if include_zero and low == 0 else low - air), high + air


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round values between both ends."""
    raw = (high - low) / max(1, wanted)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Short and without an exponent where that is readable."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.3g}"
    if abs(value) >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


def thinned(
    x: Sequence[float], y: Sequence[float | None], most: int = 500
) -> list[tuple[float, float | None]]:
    """At most `most` points; neighbours become their mean."""
    if len(x) <= most:
        return list(zip(x, y, strict=True))
    size = len(x) / most
    points: list[tuple[float, float | None]] = []
    for k in range(most):
        first, last = int(k * size), max(int(k * size) + 1, int((k + 1) * size))
        known = [value for value in y[first:last] if value is not None]
        mean = sum(known) / len(known) if known else None
        points.append((sum(x[first:last]) / (last - first), mean))
    return points


def stacked(layers: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Upper edges of layers put on each other; a gap counts nothing."""
    edges: list[list[float]] = []
    below = [0.0] * (len(layers[0]) if layers else 0)
    for layer in layers:
        below = [under + (value or 0.0) for under, value in zip(below, layer, strict=True)]
        edges.append(below)
    return edges
