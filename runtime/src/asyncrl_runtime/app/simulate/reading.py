"""What a comparison says, in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl_runtime.app.simulate.figures import Figures, Result

ALIKE = 0.99
"""Settings whose pace is within a hundredth of the best are as fast."""

FAR_POINTS = 10.0
"""Points of idle time above the optimum that are worth a word."""

BIASED = 0.95
CLOSE_TO_OPTIMUM_POINTS = 3.0


def reading(results: Sequence[Result]) -> list[str]:
    """Which setting is best and why, and what to watch."""
    usable = [result for result in results if result.outcome == "complete" and result.figures.steps_per_hour]
    lines = [f"{result.setting.name} {result.outcome}: {result.failure}" for result in results
             if result.failure is not None]  # fmt: skip
    if not usable:
        return lines
    best = _best(usable)
    lines.append(_praise(best, usable))
    lines += [line for result in usable if (line := _in_order(result)) is not None][:1]
    lines += [line for result in usable if (line := _loses(result)) is not None]
    lines += [line for result in usable if (line := _ages(result)) is not None]
    return lines


def _best(usable: Sequence[Result]) -> Result:
    """The fastest; among equals the one that wastes and ages least, and then the manifest's own."""
    fastest = max(_pace(result) for result in usable)
    alike = [result for result in usable if _pace(result) >= ALIKE * fastest]
    return min(alike, key=lambda result: (_wasted(result.figures) > 1, *_costs(result)))


def _costs(result: Result) -> tuple[float, ...]:
    figures = result.figures
    return (
        figures.staleness_max_versions or 0,
        _wasted(figures),
        not result.setting.is_manifest,
        -_pace(result),
    )


def _praise(best: Result, usable: Sequence[Result]) -> str:
    figures = best.figures
    own = next((result for result in usable if result.setting.is_manifest), None)
    idle, optimum = figures.trainer_idle_percent or 0.0, figures.optimum_trainer_idle_percent or 0.0
    text = f"Best: {best.setting.name}, {_pace(best):.4g} steps/h with the trainer {idle:.1f} % idle"
    if idle - optimum <= CLOSE_TO_OPTIMUM_POINTS:
        text += " (" + ("nothing is left to gain" if optimum == 0 else "generation is the bottleneck") + ")"
    elif optimum > 0:
        text += f" (generation alone allows {optimum:.1f} %)"
    if own is not None and own is not best:
        text += f"; {_pace(best) / _pace(own):.2f} times the manifest's {own.setting.name}"
    same = [result.setting.name for result in usable
            if result is not best and _pace(result) >= ALIKE * _pace(best)]  # fmt: skip
    if same:
        text += f"; as fast, but staler or more wasteful or equal: {', '.join(same)}"
    return text + "."


def _in_order(result: Result) -> str | None:
    """in_order under a tail: a step waits for the slowest of its groups."""
    figures = result.figures
    if result.setting.sampler not in ("in_order", "weight_fifo"):
        return None
    over = (figures.trainer_idle_percent or 0.0) - (figures.optimum_trainer_idle_percent or 0.0)
    if over < FAR_POINTS:
        return None
    return (
        f"{result.setting.name} waits for the slowest group of each step: the trainer idles {over:.0f} "
        "points more than generation makes necessary. Widen its window, or use ready_first or windowed."
    )


def _loses(result: Result) -> str | None:
    figures = result.figures
    if (figures.length_bias_ratio or 1.0) >= BIASED:
        return None
    return (
        f"{result.setting.name} throws away {_wasted(figures):.0f} % of the generation work, long answers "
        f"first: what it trains on takes {figures.length_bias_ratio:.2f} of the mean duration."
    )


def _ages(result: Result) -> str | None:
    figures = result.figures
    if figures.staleness_bound_versions is not None or not figures.staleness_max_versions:
        return None
    return (
        f"{result.setting.name} does not bound the lag: it reached {figures.staleness_max_versions} versions "
        f"(p95 {figures.staleness_p95_versions})."
    )


def _pace(result: Result) -> float:
    return result.figures.steps_per_hour or 0.0


def _wasted(figures: Figures) -> float:
    return (figures.discarded_percent or 0.0) + (figures.aborted_percent or 0.0)
