"""The report's HTML: one file, nothing fetched from elsewhere."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from asyncrl_runtime.app import words
from asyncrl_runtime.app.report.charts import Chart
from asyncrl_runtime.app.report.load import RunData
from asyncrl_runtime.app.report.svg import legend, svg
from asyncrl_runtime.app.status import PHASE_OF_STATUS

FAILURE_WORDS = (
    "fail",
    "retried",
    "redispatch",
    "dropped",
    "dead",
    "timeout",
    "evicted",
    "aborted",
    "error",
    "skipped",
)
MAX_FAILURES = 40


def page(runs: Sequence[RunData], charts: Sequence[Chart]) -> str:
    """The whole document."""
    names = " · ".join(run.label for run in runs)
    figures = "".join(map(_figure, charts))
    body = (
        (
            _header(runs[0]) + _tiles(runs[0])
            if len(runs) == 1
            else f"<header><h1>{escape(names)}</h1></header>" + _table(runs)
        )
        + f'<div class="charts">{figures}</div>'
        + "".join(_failures(run, len(runs) > 1) for run in runs)
        + _configs(runs)
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(names)}</title><style>{_asset('page.css')}</style>"
        f"<main>{body}</main><script>{_asset('page.js')}</script></html>\n"
    )


def facts(run: RunData) -> dict[str, str]:
    """What the tiles and the table of runs say."""
    summary = run.summary
    idle, seconds = summary.get("trainer_idle_fraction"), summary.get("seconds")
    stale = summary.get("staleness") or {}
    last = run.column("train/reward_raw", "train/reward")[-1]
    validation = [value for value in run.column("val/accuracy") if value is not None]
    tokens = (summary.get("tokens") or {}).get("generated")
    return {
        "state": PHASE_OF_STATUS.get(str(summary.get("status")), "no summary yet"),
        "steps": str(summary.get("steps", int(run.steps[-1]))),
        "last reward": words.reward(summary.get("reward_mean", last)),
        "last validation": words.reward(validation[-1]) if validation else "none",
        "duration": words.duration(seconds),
        "to the first step": words.duration(summary.get("seconds_to_first_step")),
        "trainer idle": words.percent(idle),
        "tokens generated": words.count(tokens),
        "staleness, p50 / p95 / max": " / ".join(str(stale.get(key, "?")) for key in ("p50", "p95", "max")),
    }


def _header(run: RunData) -> str:
    state = facts(run)["state"]
    start = f'<header><h1>{escape(run.label)}</h1><span class="state {state}">{state}</span>'
    ledger = run.summary.get("prompts")
    text = f'<span class="soft">prompts: {escape(_ledger(ledger))}</span>' if ledger else ""
    return f"{start}{text}</header>" + _failure(run)


def _failure(run: RunData) -> str:
    failure = run.summary.get("failure")
    if not failure:
        return ""
    text = failure.get("message") if isinstance(failure, Mapping) else failure
    return f'<p class="card failure"><b>{escape(run.label)} failed:</b> {escape(str(text))}</p>'


def _ledger(prompts: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{prompts.get(key, 0)} {key}" for key in ("trained", "dropped", "discarded", "live"))
    return f"{prompts.get('admitted', 0)} admitted = {parts}"


def _tiles(run: RunData) -> str:
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in facts(run).items()
        if name != "state"
    )
    return f'<div class="tiles">{tiles}</div>'


def _table(runs: Sequence[RunData]) -> str:
    by_run = [facts(run) for run in runs]
    head = "".join(f"<th>{escape(name)}</th>" for name in by_run[0])
    rows = "".join(
        f"<tr><td><b>{escape(run.label)}</b></td>"
        + "".join(f'<td class="{escape(value)}">{escape(value)}</td>' for value in found.values())
        + "</tr>"
        for run, found in zip(runs, by_run, strict=True)
    )
    notes = "".join(map(_failure, runs))
    table = f"<table><tr><th>run</th>{head}</tr>{rows}</table>"
    return f'{notes}<div class="card gap">{table}</div>'


def _figure(chart: Chart) -> str:
    unit = f" ({escape(chart.unit)})" if chart.unit and chart.kind != "gantt" else ""
    wide = " class=wide" if chart.wide else ""
    return (
        f'<figure id="{escape(chart.slug)}"{wide}><h2>{escape(chart.title)}{unit}</h2>'
        f"<figcaption>{escape(chart.caption)}</figcaption>{legend(chart)}{svg(chart)}</figure>"
    )


def _failures(run: RunData, several: bool) -> str:
    bad = [event for event in run.events if any(word in str(event.get("kind")) for word in FAILURE_WORDS)]
    title = "Failures and losses" + (f" · {escape(run.label)}" if several else "")
    if not bad:
        return f'<h3>{title}</h3><div class="card soft">None.</div>'
    counts = Counter(str(event["kind"]).replace("_", " ") for event in bad)
    tally = ", ".join(f"{number} × {kind}" for kind, number in counts.most_common())
    rows = "".join(f"<tr><td>{escape(words.event_line(event))}</td></tr>" for event in bad[-MAX_FAILURES:])
    note = f"<p class=soft>The last {MAX_FAILURES}:</p>" if len(bad) > MAX_FAILURES else ""
    return f'<h3>{title}</h3><div class="card"><p>{escape(tally)}</p>{note}<table>{rows}</table></div>'


def _configs(runs: Sequence[RunData]) -> str:
    parts = ["<h3>Configuration</h3>"]
    first, *others = runs
    for other in others:
        lines = difflib.unified_diff(
            first.config.splitlines(), other.config.splitlines(), first.label, other.label, lineterm="", n=1
        )
        text = "\n".join(lines) or "no difference"
        parts.append(f'<div class="card gap"><pre>{escape(text)}</pre></div>')
    for run in runs:
        shown = escape(run.config or "config.yaml is absent")
        parts.append(
            f'<details class="card gap"><summary>{escape(run.label)}: config.yaml</summary>'
            f"<pre>{shown}</pre></details>"
        )
    return "".join(parts)


def _asset(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")
