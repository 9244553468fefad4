"""How numbers, durations and events read, on the terminal and in status texts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

_BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float | None) -> str:
    """`14 s`, `3 min 20 s`, `2 h 5 min`, `1 d 4 h`; `?` if unknown."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 and seconds != whole else f"{whole} s"
    for unit, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // part
            return f"{whole // unit} {name}" + (f" {rest} {part_name}" if rest else "")
    return f"{whole} s"


def count(number: float | None) -> str:
    """`950`, `12.3 k`, `4.56 M`; `?` if unknown."""
    if number is None:
        return "?"
    for size, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{suffix}"
    return f"{number:.3g}" if number != int(number) else f"{int(number)}"


def percent(fraction: float | None) -> str:
    """`12 %`; `?` if unknown."""
    return "?" if fraction is None else f"{fraction * 100:.0f} %"


def reward(value: float | None) -> str:
    """Three decimals; `?` if unknown."""
    return "?" if value is None else f"{value:.3f}"


def sparkline(values: Sequence[float], width: int) -> str:
    """One character a value or mean of values, lowest to highest."""
    if not values or width < 1:
        return ""
    size = max(1, len(values) / width)
    cells = [
        values[int(i * size) : max(int(i * size) + 1, int((i + 1) * size))]
        for i in range(int(len(values) / size))
    ]
    means = [sum(cell) / len(cell) for cell in cells if cell]
    low, span = min(means), max(means) - min(means)
    if span == 0:
        return _BARS[0] * len(means)
    return "".join(_BARS[min(7, int((mean - low) / span * 8))] for mean in means)


def near_bound(value: float | None, bound: float | None) -> str:
    """A word for a value at, near (from nine tenths on) or over its bound; else nothing."""
    if value is None or bound is None:
        return ""
    if value > bound:
        return "over bound"
    if value == bound:
        return "at bound"
    return "near bound" if value >= 0.9 * bound else ""


def staleness(p50: float | None, p95: float | None, top: float | None, bound: float | None) -> str:
    """`p50 0, p95 1, max 1 of 1 versions`."""
    if top is None:
        return "nothing trained yet"
    allowed = "" if bound is None else f" of {count(bound)}"
    return f"p50 {count(p50)}, p95 {count(p95)}, max {count(top)}{allowed} versions"


def shards_by_state(states: Mapping[str, int]) -> str:
    """`2 HEALTHY, 1 DEAD`."""
    return ", ".join(f"{number} {state}" for state, number in states.items() if number) or "none"


def event_line(event: Mapping[str, object]) -> str:
    """`12:03:04  checkpoint saved  step 20, path step_20`."""
    moment = event.get("time")
    clock = (
        time.strftime("%H:%M:%S", time.localtime(moment)) if isinstance(moment, int | float) else "--:--:--"
    )
    kind = str(event.get("kind", "?")).replace("_", " ")
    facts = ", ".join(_fact(key, value) for key, value in event.items() if key not in ("time", "kind"))
    return f"{clock}  {kind}" + (f"  {facts}" if facts else "")


def _fact(key: str, value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")
    return f"{key.replace('_', ' ')} {text if len(text) <= 200 else text[:199] + '…'}"
