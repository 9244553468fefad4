"""`asyncrl report`: a run, or several side by side, as one HTML file (CLI-4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asyncrl_runtime.adapters.sinks.lines import write_whole
from asyncrl_runtime.app.report.charts import charts_of
from asyncrl_runtime.app.report.load import load_runs
from asyncrl_runtime.app.report.page import page

FILE = "report.html"


def write_report(folders: Sequence[Path], output: Path | None = None, *, png: bool = False) -> list[Path]:
    """Write the report, and return what was written.

    `output` is a file, or a folder for `report.html`; by default it goes into the run folder, and for several
    runs into the working directory. PNG files go into `report/` beside it. Raises `NothingToReport`.
    """
    runs = load_runs(list(folders))
    charts = charts_of(runs)
    path = _place(folders, output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page(runs, charts).encode())
    if not png:
        return [path]
    from asyncrl_runtime.app.report.png import write_pngs

    return [path, *write_pngs(charts, path.parent / path.stem)]


def _place(folders: Sequence[Path], output: Path | None) -> Path:
    if output is None:
        return (folders[0] if len(folders) == 1 else Path.cwd()) / FILE
    return output if output.suffix in (".html", ".htm") else output / FILE
