"""The comparison as a picture, SVG and PNG: four bars a setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl_runtime.app.report.png import COLORS, DOTS_PER_INCH
from asyncrl_runtime.app.simulate.figures import Figures, Result

PANELS: tuple[tuple[str, str, str, Callable[[Figures], float | None]], ...] = (
    ("Pace", "steps per hour", "s1", lambda f: f.steps_per_hour),
    ("Trainer idle", "% of its time", "idle", lambda f: f.trainer_idle_percent),
    ("Staleness, largest", "versions", "s3", lambda f: f.staleness_max_versions),
    (
        "Work thrown away",
        "% of generation",
        "s6",
        lambda f: None if f.discarded_percent is None else f.discarded_percent + (f.aborted_percent or 0.0),
    ),
)

ROOM_FOR_LABELS = 1.18


def write_charts(results: Sequence[Result], folder: Path) -> list[Path]:
    """`simulate.svg` and `simulate.png`."""
    from matplotlib.figure import Figure

    names = [result.setting.name for result in results]
    figure = Figure(figsize=(14, 1.6 + 0.34 * len(results)), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    places = range(len(results) - 1, -1, -1)
    for axes, (title, unit, color, value) in zip(panels, PANELS, strict=True):
        values = [value(result.figures) for result in results]
        lengths = [each or 0.0 for each in values]
        bars = axes.barh(list(places), lengths, color=COLORS[color], height=0.7)
        labels = ["none" if each is None else f"{each:.4g}" for each in values]
        axes.bar_label(bars, labels=labels, padding=3, fontsize=8)
        axes.set_xlim(0, ROOM_FOR_LABELS * max(1.0, *lengths))
        axes.set_title(title, loc="left", fontweight="bold", fontsize=11)
        axes.set_xlabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(list(places), names)
    paths = [folder / "simulate.svg", folder / "simulate.png"]
    for path in paths:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    return paths
