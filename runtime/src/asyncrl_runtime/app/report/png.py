"""Charts as PNG files, drawn by matplotlib without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl_runtime.app.report.charts import Chart, Line
from asyncrl_runtime.app.report.scales import span_of, stacked

COLORS = {
    "s1": "#2a78d6",
    "s2": "#1baf7a",
    "s3": "#eda100",
    "s4": "#008300",
    "s5": "#4a3aa7",
    "s6": "#e34948",
    "s7": "#e87ba4",
    "s8": "#eb6834",
    "idle": "#a9adb5",
}
DOTS_PER_INCH = 144


def write_pngs(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """One file per chart, named for it."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(chart, folder / f"{chart.slug}.png") for chart in charts]


def _write(chart: Chart, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.4 if chart.wide else 7, 3.6), layout="constrained")
    axes = figure.subplots()
    {"lines": _lines, "stack": _stack, "heat": _heat, "gantt": _gantt}[chart.kind](chart, axes)
    axes.set_title(chart.title, loc="left", fontweight="bold", fontsize=11)
    axes.set_xlabel(chart.x_title)
    axes.set_ylabel("" if chart.kind == "gantt" else chart.unit)
    axes.spines[["top", "right"]].set_visible(False)
    if chart.kind != "gantt":
        axes.grid(axis="y", color="#e3e4e6", linewidth=0.8)
        axes.set_axisbelow(True)
    if chart.kind in ("lines", "stack") and len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path


def _lines(chart: Chart, axes: Any) -> None:
    for band in chart.bands:
        low, high = ([float("nan") if v is None else v for v in edge] for edge in (band.low, band.high))
        axes.fill_between(
            band.x, low, high, color=COLORS[band.color], alpha=0.16, linewidth=0, label=band.label
        )
    for line in chart.lines:
        _line(line, axes)


def _line(line: Line, axes: Any) -> None:
    known = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    axes.plot(
        [x for x, _ in known],
        [y for _, y in known],
        color=COLORS[line.color],
        linewidth=0.8 if line.faint else 1.8,
        alpha=0.35 if line.faint else 1.0,
        linestyle="--" if line.dashed else "-",
        marker="o" if line.dots else None,
        markersize=5,
        label=None if line.faint else line.label,
    )


def _stack(chart: Chart, axes: Any) -> None:
    layers = [line for line in chart.lines if not line.dashed]
    below: list[float] | float = 0.0
    for line, edge in zip(layers, stacked([line.y for line in layers]), strict=True):
        axes.fill_between(line.x, below, edge, color=COLORS[line.color], linewidth=0, label=line.label)
        below = edge
    for line in chart.lines:
        if line.dashed:
            _line(line, axes)
    axes.set_ylim(*span_of([v for line in chart.lines for v in line.y] + list(below), include_zero=True))  # type: ignore[arg-type]


def _heat(chart: Chart, axes: Any) -> None:
    xs = sorted({cell.x for cell in chart.cells})
    width = (xs[1] - xs[0]) if len(xs) > 1 else 1.0
    for cell in chart.cells:
        if cell.strength > 0:
            axes.bar(
                cell.x,
                0.9,
                width,
                cell.y - 0.45,
                color=COLORS["s1"],
                alpha=min(1.0, cell.strength),
                linewidth=0,
            )
    axes.yaxis.get_major_locator().set_params(integer=True)


def _gantt(chart: Chart, axes: Any) -> None:
    lanes = [lane for lane in ("generation", "trainer", "weight sync", "validation", "checkpoint")
             if any(span.lane == lane for span in chart.spans)]  # fmt: skip
    for span in chart.spans:
        place = len(lanes) - 1 - lanes.index(span.lane)
        bar = [(span.begin, span.end - span.begin)]
        axes.broken_barh(
            bar, (place - 0.36, 0.72), color=COLORS[span.color], alpha=span.strength, linewidth=0
        )
    axes.set_yticks(range(len(lanes)), lanes[::-1])
