"""The comparison on the terminal: a table where there is one, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from asyncrl_runtime.app import words
from asyncrl_runtime.app.simulate.figures import Figures, Result

HEADS = (
    "setting",
    "steps/h",
    "trainer idle",
    "shard idle",
    "staleness p50/p95/max",
    "discarded",
    "aborted",
    "length bias",
)
MARK = "*"
NAME_WIDTH = 24
"""Room for a knob and its value on a narrow terminal."""


def show(results: Sequence[Result], lines: Sequence[str], *, preamble: str) -> None:
    """Print preamble, table and reading."""
    rows = [_row(result) for result in results]
    failed = any(result.figures.failed_percent for result in results)
    heads = HEADS + (("failed",) if failed else ())
    if failed:
        rows = [(*row, _percent(r.figures.failed_percent)) for row, r in zip(rows, results, strict=True)]
    marked = any(result.setting.is_manifest for result in results) and len(results) > 1
    notes = [f"{MARK} the manifest's own"] if marked else []
    if sys.stdout.isatty():
        _rich(heads, rows, [preamble, *notes], lines)
    else:
        sys.stdout.write("\n".join([preamble, *_plain(heads, rows), *notes, *lines]) + "\n")


def _row(result: Result) -> tuple[str, ...]:
    figures = result.figures
    mark = f" {MARK}" if result.setting.is_manifest else ""
    name = f"{result.setting.name}{mark}"
    if result.outcome != "complete":
        name += f" ({result.outcome} in step {figures.last_step + 1})"
    if not figures.steps:
        return (name, *("-" for _ in HEADS[1:]))
    return (
        name,
        f"{figures.steps_per_hour:.1f}",
        _percent(figures.trainer_idle_percent),
        _percent(figures.shard_idle_percent),
        _staleness(figures),
        _percent(figures.discarded_percent),
        _percent(figures.aborted_percent),
        "-" if figures.length_bias_ratio is None else f"{figures.length_bias_ratio:.2f}",
    )


def _staleness(figures: Figures) -> str:
    most = figures.staleness_max_versions
    if most is None:
        return "-"
    bound = figures.staleness_bound_versions
    word = words.near_bound(most, bound) if bound else ""
    allowed = "no bound" if bound is None else f"of {bound}"
    text = f"{figures.staleness_p50_versions}/{figures.staleness_p95_versions}/{most} {allowed}"
    return f"{text}, {word}" if word == "over bound" else text


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _plain(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [heads, *rows]
    ]


def _rich(
    heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], lines: Sequence[str]
) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(*heads, header_style="bold")
    table.columns[0].overflow = "fold"
    table.columns[0].min_width = min(NAME_WIDTH, max(len(row[0]) for row in rows))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row, style="bold" if MARK in row[0] else None)
    console.print(notes[0], markup=False, highlight=False)
    console.print(table)
    for line in [*notes[1:], *lines]:
        console.print(line, markup=False, highlight=False)
