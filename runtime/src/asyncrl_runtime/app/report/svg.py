"""Charts as inline SVG. Colors are CSS variables of the page, so that both color schemes work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from asyncrl_runtime.app.report.charts import PHASES, Chart, Line
from asyncrl_runtime.app.report.scales import span_of, stacked, thinned, tick_text, ticks

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 250, 52, 14, 12, 36
LANE_HEIGHT = 30
GANTT_LEFT = 96
STACK_POINTS = 100
"""Points of a stack: means of neighbours, so that layers can be told apart."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The plot area and its scales."""

    width: int
    height: int
    left: int
    x: tuple[float, float]
    y: tuple[float, float]

    def at_x(self, value: float) -> float:
        """Pixels from the left."""
        return round(self.left + (value - self.x[0]) / (self.x[1] - self.x[0]) * self.plot_width, 1)

    def at_y(self, value: float) -> float:
        """Pixels from the top."""
        share = (value - self.y[0]) / (self.y[1] - self.y[0])
        return round(TOP + (1 - share) * self.plot_height, 1)

    @property
    def plot_width(self) -> float:
        """Pixels between the axes' ends."""
        return self.width - self.left - RIGHT

    @property
    def plot_height(self) -> float:
        """Pixels between the axes' ends."""
        return self.height - TOP - BOTTOM


def svg(chart: Chart) -> str:
    """The chart's drawing, without title and caption."""
    return {"lines": _lines, "stack": _stack, "heat": _heat, "gantt": _gantt}[chart.kind](chart)


def legend(chart: Chart) -> str:
    """Swatches and names, unless one name says nothing new."""
    entries = [
        (line.label, line.color, "dash" if line.dashed else "dot" if line.dots else "")
        for line in chart.lines
    ]
    entries = [entry for entry, line in zip(entries, chart.lines, strict=True) if not line.faint]
    entries += [(band.label, band.color, "band") for band in chart.bands]
    if chart.kind == "gantt":
        used = {span.color for span in chart.spans}
        entries += [(title, color, "block") for title, color, _ in PHASES if color in used]
    if len(entries) < 2:
        return ""
    items = "".join(
        f'<li><i class="{kind}" style="--c:var(--{color})"></i>{escape(label)}</li>'
        for label, color, kind in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _lines(chart: Chart) -> str:
    values = [v for line in chart.lines for v in line.y] + [
        v for band in chart.bands for v in (*band.low, *band.high)
    ]
    frame = _frame(chart, chart.lines, span_of(values))
    body = []
    for band in chart.bands:
        low, high = thinned(band.x, band.low), thinned(band.x, band.high)
        edge = [(x, y) for x, y in high if y is not None] + [
            (x, y) for x, y in reversed(low) if y is not None
        ]
        body.append(f'<path d="{_path(frame, edge)}Z" fill="var(--{band.color})" opacity=".16"/>')
    body += [_line(frame, line) for line in chart.lines]
    return _wrap(frame, chart, body, _hover(frame, chart.lines))


def _stack(chart: Chart) -> str:
    layers = [line for line in chart.lines if not line.dashed]
    above = [line for line in chart.lines if line.dashed]
    edges = stacked([line.y for line in layers])
    shown = [y for line in above for _, y in thinned(line.x, line.y, STACK_POINTS)]
    if edges:
        shown += [y for _, y in thinned(layers[0].x, edges[-1], STACK_POINTS)]
    frame = _frame(chart, chart.lines, span_of(shown, include_zero=True))
    body, below = [], [0.0] * len(chart.lines[0].x)
    for line, edge in zip(layers, edges, strict=True):
        upper, lower = thinned(line.x, edge, STACK_POINTS), thinned(line.x, below, STACK_POINTS)
        outline = [(x, y or 0.0) for x, y in upper] + [(x, y or 0.0) for x, y in reversed(lower)]
        body.append(f'<path d="{_path(frame, outline)}Z" fill="var(--{line.color})" class="layer"/>')
        below = edge
    body += [_line(frame, line, STACK_POINTS) for line in above]
    return _wrap(frame, chart, body, _hover(frame, chart.lines))


def _heat(chart: Chart) -> str:
    xs = sorted({cell.x for cell in chart.cells})
    ys = sorted({cell.y for cell in chart.cells})
    half = (xs[1] - xs[0]) / 2 if len(xs) > 1 else 0.5
    frame = Frame(
        560, HEIGHT, LEFT, (xs[0] - half, xs[-1] + half), (min(0, ys[0]) - 0.5, max(1, ys[-1]) + 0.5)
    )
    height = frame.plot_height / (frame.y[1] - frame.y[0])
    width = frame.plot_width / len(xs)
    body = [
        f'<rect x="{frame.at_x(cell.x - half)}" y="{round(frame.at_y(cell.y + 0.5) + 1, 1)}" '
        f'width="{width + 0.3:.1f}" height="{height - 2:.1f}" fill="var(--s1)" opacity="{cell.strength:.3f}">'
        f"<title>{escape(cell.note)}</title></rect>"
        for cell in chart.cells
        if cell.strength > 0
    ]
    whole = [float(k) for k in range(int(ys[0]), int(ys[-1]) + 1)]
    return _wrap(frame, chart, body, "", y_ticks=whole[:: max(1, len(whole) // 8)])


def _gantt(chart: Chart) -> str:
    order = ("generation", "trainer", "weight sync", "validation", "checkpoint")
    lanes = [lane for lane in order if any(span.lane == lane for span in chart.spans)]
    height = TOP + BOTTOM + LANE_HEIGHT * len(lanes)
    end = max(span.end for span in chart.spans)
    frame = Frame(1140, height, GANTT_LEFT, (0.0, end), (0.0, 1.0))
    body = []
    for number, lane in enumerate(lanes):
        top = TOP + number * LANE_HEIGHT
        body.append(f'<text class="lane" x="{GANTT_LEFT - 10}" y="{top + LANE_HEIGHT / 2 + 4}">{lane}</text>')
        for span in (span for span in chart.spans if span.lane == lane):
            left, right = frame.at_x(span.begin), frame.at_x(span.end)
            body.append(
                f'<rect x="{left}" y="{top + 4}" width="{max(right - left - 0.6, 0.6):.1f}" '
                f'height="{LANE_HEIGHT - 8}" rx="2" fill="var(--{span.color})" opacity="{span.strength:.2f}">'
                f"<title>{escape(span.note)}</title></rect>"
            )
    return _wrap(frame, chart, body, "", y_ticks=[])


def _frame(chart: Chart, lines: Sequence[Line], y: tuple[float, float]) -> Frame:
    xs = [x for line in lines for x in line.x]
    low, high = min(xs), max(xs)
    return Frame(1140 if chart.wide else 560, HEIGHT, LEFT, (low, high if high > low else low + 1), y)


def _line(frame: Frame, line: Line, most: int = 500) -> str:
    points = thinned(line.x, line.y, most)
    known = [(x, y) for x, y in points if y is not None]
    if line.dots:
        paint = f"var(--{line.color})"
        circles = "".join(
            f'<circle class="mark" cx="{frame.at_x(x)}" cy="{frame.at_y(y)}" r="4" fill="{paint}"/>'
            for x, y in known
        )
        path = f'<path d="{_path(frame, known)}" class="line thin" stroke="var(--{line.color})"/>'
        return path + circles
    kind = "line faint" if line.faint else "line dashed" if line.dashed else "line"
    return f'<path d="{_path(frame, known)}" class="{kind}" stroke="var(--{line.color})"/>'


def _path(frame: Frame, points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{frame.at_x(x)} {frame.at_y(y)}" for x, y in points) if points else "M0 0"


def _hover(frame: Frame, lines: Sequence[Line]) -> str:
    """What the page's script shows at the pointer: values of each line by x."""
    data = {
        "left": frame.left,
        "width": frame.plot_width,
        "x": list(frame.x),
        "lines": [
            {
                "label": line.label,
                "color": line.color,
                "points": [p for p in thinned(line.x, line.y) if p[1] is not None],
            }
            for line in lines
        ],
    }
    text = json.dumps(data, separators=(",", ":"), default=float)
    return escape(text, quote=True)


def _wrap(
    frame: Frame, chart: Chart, body: Sequence[str], hover: str, *, y_ticks: Sequence[float] | None = None
) -> str:
    grid = []
    for value in ticks(*frame.y) if y_ticks is None else y_ticks:
        y = frame.at_y(value)
        grid.append(f'<line class="grid" x1="{frame.left}" x2="{frame.width - RIGHT}" y1="{y}" y2="{y}"/>')
        grid.append(f'<text class="tick y" x="{frame.left - 8}" y="{y + 4}">{tick_text(value)}</text>')
    bottom = frame.height - BOTTOM
    for value in ticks(*frame.x, 10 if frame.width > 600 else 6):
        grid.append(
            f'<text class="tick x" x="{frame.at_x(value)}" y="{bottom + 17}">{tick_text(value)}</text>'
        )
    grid.append(
        f'<line class="axis" x1="{frame.left}" x2="{frame.width - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    )
    middle = frame.left + frame.plot_width / 2
    x_title = f'<text class="tick x" x="{middle}" y="{frame.height - 3}">{chart.x_title}</text>'
    cross = f'<line class="cross" y1="{TOP}" y2="{bottom}" hidden="hidden"/>' if hover else ""
    data = f' data-hover="{hover}"' if hover else ""
    box = f"0 0 {frame.width} {frame.height}"
    return (
        f'<svg viewBox="{box}" role="img" aria-label="{escape(chart.title)}"{data}>'
        f"{''.join(grid)}{''.join(body)}{x_title}{cross}</svg>"
    )
