"""The comparison on the terminal: a table where there is one, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from shutil import get_terminal_size

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
"""Room for a knob and its value."""

BETWEEN_COLUMNS = 3


def show(results: Sequence[Result], lines: Sequence[str], *, preamble: str) -> None:
    """Print preamble, table and reading."""
    rows = [_row(result) for result in results]
    failed = any(result.figures.failed_percent for result in results)
    heads = HEADS + (("failed",) if failed else ())
    if failed:
        rows = [(*row, _percent(r.figures.failed_percent)) for row, r in zip(rows, results, strict=True)]
    marked = any(result.setting.is_manifest for result in results) and len(results) > 1
    notes = [f"{MARK} the manifest's own"] if marked else []
    if not sys.stdout.isatty():
        sys.stdout.write("\n".join([preamble, *_plain(heads, rows), *notes, *lines]) + "\n")
    elif get_terminal_size().columns < _least_width(heads, rows):
        sys.stdout.write("\n".join([preamble, *_records(heads, rows), *notes, *lines]) + "\n")
    else:
        _rich(heads, rows, [preamble, *notes], lines)


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


def _records(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A paragraph a setting, for narrow terminals."""
    return [
        f"{row[0]}\n  " + ", ".join(f"{head} {cell}" for head, cell in zip(heads[1:], row[1:], strict=True))
        for row in rows
    ]


def _least_width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns of a terminal that hold the table: heads may wrap, cells may not."""
    others = [
        max(*(len(word) for word in head.split()), *(len(row[i]) for row in rows))
        for i, head in enumerate(heads[1:], 1)
    ]
    return NAME_WIDTH + sum(others) + BETWEEN_COLUMNS * len(heads)


def _rich(
    heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], lines: Sequence[str]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(*heads, header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].overflow = "fold"
    table.columns[0].min_width = min(NAME_WIDTH, max(len(row[0]) for row in rows))
    for i, column in enumerate(table.columns[1:], 1):
        column.justify = "right"
        column.min_width = max(len(row[i]) for row in rows)
    for row in rows:
        table.add_row(*row, style="bold" if MARK in row[0] else None)
    console.print(notes[0], markup=False, highlight=False)
    console.print(table)
    for line in [*notes[1:], *lines]:
        console.print(line, markup=False, highlight=False)
