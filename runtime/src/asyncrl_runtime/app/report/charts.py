"""What the report draws: charts as data, for the page and for pictures alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from asyncrl_runtime.app.report.load import RunData

Values = Sequence[float | None]

PHASES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("waiting for data", "idle", ("exposed_generation",)),
    (
        "log-probs and advantages",
        "s2",
        ("logprob_inference_prep", "policy_and_reference_logprobs", "value_inference", "reward_calculation",
         "advantage_calculation"),
    ),
    ("training", "s1", ("training_prep", "value_training_prep", "value_training", "policy_training")),
    ("weight sync", "s3", ("weight_sync",)),
    ("validation", "s5", ("validation",)),
    ("checkpoint", "s7", ("checkpointing",)),
)  # fmt: skip
"""Phases of a step in the order in which they happen: title, color, timings."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series. `color` is s1 to s8, or idle."""

    label: str
    x: Sequence[float]
    y: Values
    color: str
    faint: bool = False
    dots: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """The room between two values per x."""

    label: str
    x: Sequence[float]
    low: Values
    high: Values
    color: str


@dataclass(frozen=True, slots=True)
class Span:
    """A bar of a Gantt chart."""

    lane: str
    begin: float
    end: float
    color: str
    note: str
    strength: float = 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A field of a heat map, 0 to 1 strong."""

    x: float
    y: float
    strength: float
    note: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture. `kind` says which of the lists it draws."""

    slug: str
    title: str
    caption: str
    kind: Literal["lines", "stack", "heat", "gantt"] = "lines"
    unit: str = ""
    x_title: str = "step"
    lines: list[Line] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    wide: bool = False


def charts_of(runs: Sequence[RunData]) -> list[Chart]:
    """All charts that these runs have data for."""
    found = [_reward(runs), _lengths(runs)]
    for draw in (_gantt, _phases, _staleness, _buffer):
        found += [draw(run, runs) for run in runs]
    found += [_gap(runs), _kl(runs), _clips(runs), _entropy(runs), _throughput(runs), _losses(runs)]
    return [chart for chart in found if chart is not None]


def smoothed(values: Values, weight: float = 0.9) -> list[float | None]:
    """Exponential mean, without the bias towards the first value."""
    mean, mass, out = 0.0, 0.0, []
    for value in values:
        if value is None:
            out.append(None)
            continue
        mean, mass = weight * mean + (1 - weight) * value, weight * mass + (1 - weight)
        out.append(mean / mass)
    return out


def _color(index: int) -> str:
    return f"s{index % 8 + 1}"


def _of_runs(runs: Sequence[RunData], draw: Callable[[RunData, str, str], list[Line]]) -> list[Line]:
    """Lines of every run; a run keeps its color, and is named where there are several."""
    lines = []
    for index, run in enumerate(runs):
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        lines += draw(run, _color(index), prefix)
    return [line for line in lines if any(value is not None for value in line.y)]


def _several(
    runs: Sequence[RunData],
    slug: str,
    title: str,
    caption: str,
    unit: str,
    *series: tuple[str, tuple[str, ...]],
) -> Chart | None:
    """A chart of some metrics: one color each for one run; one color a run, dashes by metric, for several."""
    lines = []
    for index, run in enumerate(runs):
        for number, (label, names) in enumerate(series):
            values = run.column(*names)
            if all(value is None for value in values):
                continue
            several = len(runs) > 1
            name = f"{run.label}: {label}" if several else label
            color = _color(index if several else number)
            lines.append(Line(name, run.steps, values, color, dashed=several and number > 0))
    return Chart(slug, title, caption, unit=unit, lines=lines) if lines else None


def _reward(runs: Sequence[RunData]) -> Chart:
    def draw(run: RunData, color: str, prefix: str) -> list[Line]:
        raw = run.column("train/reward_raw", "train/reward")
        validation = run.column("val/accuracy")
        other = color if len(runs) > 1 else "s2"
        return [
            Line(f"{prefix}each step", run.steps, raw, color, faint=True),
            Line(f"{prefix}reward, smoothed", run.steps, smoothed(raw), color),
            Line(f"{prefix}validation", run.steps, validation, other, dots=True),
        ]

    caption = "Mean reward of the rows trained on, and of the validation prompts."
    return Chart("reward", "Reward and validation", caption, lines=_of_runs(runs, draw))


def _lengths(runs: Sequence[RunData]) -> Chart | None:
    bands = []
    for index, run in enumerate(runs):
        low, high = run.column("train/response_length/min"), run.column("train/response_length/max")
        if len(runs) == 1 and run.has("train/response_length/min"):
            bands.append(Band("shortest to longest", run.steps, low, high, _color(index)))

    def draw(run: RunData, color: str, prefix: str) -> list[Line]:
        return [Line(f"{prefix}mean length", run.steps, run.column("train/response_length/mean"), color)]

    lines = _of_runs(runs, draw)
    caption = "Generated tokens per completion."
    if not lines:
        return None
    return Chart("response-length", "Response length", caption, unit="tokens", lines=lines, bands=bands)


def _staleness(run: RunData, runs: Sequence[RunData]) -> Chart | None:
    title = "Staleness over time" + _of(run, runs)
    slug = "staleness" + _slug(run, runs)
    prefix = "train/staleness/lag_hist/"
    lags = sorted({int(key[len(prefix) :]) for row in run.rows for key in row if key.startswith(prefix)})
    if not lags:
        return _several([run], slug, title, "Versions that trained rows lag behind.", "versions",
                         ("max", ("train/staleness/lag_max",)), ("p95", ("train/staleness/lag_p95",)),
                         ("p50", ("train/staleness/lag_p50",)))  # fmt: skip
    cells = []
    for bucket in _buckets(run.rows, 120):
        counts = Counter({lag: sum(row.get(f"{prefix}{lag}") or 0 for row in bucket) for lag in lags})
        total = counts.total()
        step = sum(row["step"] for row in bucket) / len(bucket)
        for lag in lags:
            share = counts[lag] / total if total else 0.0
            note = f"step {step:.0f}: {share:.0%} of rows lag {lag} versions"
            cells.append(Cell(step, lag, share, note))
    caption = "Share of the trained rows by how many trainer versions they lag behind; darker is more."
    return Chart(slug, title, caption, kind="heat", unit="versions", cells=cells)


def _buffer(run: RunData, runs: Sequence[RunData]) -> Chart | None:
    ready, reserved, free = (run.column(f"buffer/{name}") for name in ("ready", "reserved", "free_permits"))
    if all(value is None for value in ready):
        return None
    lines = [Line("ready", run.steps, ready, "s1"), Line("in flight", run.steps, reserved, "s3")]
    if any(value is not None for value in free):
        sums = [sum(value or 0 for value in held) for held in zip(ready, reserved, free, strict=True)]
        capacity = [max(sums)] * len(sums)
        lines.append(Line("capacity", run.steps, capacity, "idle", dashed=True))
    caption = "Prompt groups held: ready to train, and still generating, under the capacity."
    title = "Buffer occupancy" + _of(run, runs)
    return Chart("buffer" + _slug(run, runs), title, caption, kind="stack", unit="groups", lines=lines)


def _phases(run: RunData, runs: Sequence[RunData]) -> Chart | None:
    if not run.has("timing/train/total_step_time"):
        return None
    lines = []
    for label, color, names in PHASES:
        sums = [_sum(row, names) for row in run.rows]
        if any(sums):
            lines.append(Line(label, run.steps, sums, color))
    caption = "Wall time of each step by phase. What is left above is time between the phases."
    total = Line("whole step", run.steps, run.column("timing/train/total_step_time"), "idle", dashed=True)
    title = "Where the time of a step goes" + _of(run, runs)
    return Chart(
        "phases" + _slug(run, runs), title, caption, kind="stack", unit="seconds", lines=[*lines, total]
    )


def _gantt(run: RunData, runs: Sequence[RunData], num_steps: int = 12) -> Chart | None:
    if not run.has("timing/train/total_step_time") or "time" not in run.rows[0]:
        return None
    middle = max(0, len(run.rows) // 2 - num_steps // 2)
    window = run.rows[middle : middle + num_steps]
    began = window[0]["time"] - (window[0].get("timing/train/total_step_time") or 0)
    busiest = max((row.get("rollout/inflight") or 0 for row in run.rows), default=0)
    spans = []
    for row in window:
        end = row["time"] - began
        moment = begin = end - (row.get("timing/train/total_step_time") or 0)
        for label, color, names in PHASES:
            seconds = _sum(row, names)
            if seconds > 0:
                note = f"step {row['step']}: {label} {seconds:.3g} s"
                lane = label if label in ("weight sync", "validation", "checkpoint") else "trainer"
                spans.append(Span(lane, moment, min(end, moment + seconds), color, note))
                moment += seconds
        if busiest:
            inflight = row.get("rollout/inflight") or 0
            note = f"step {row['step']}: {inflight:.0f} groups in flight at its end"
            spans.append(Span("generation", begin, end, "s4", note, 0.15 + 0.85 * inflight / busiest))
    caption = (
        f"Steps {window[0]['step']} to {window[-1]['step']}. Generation is as strong as it has groups "
        "in flight; grey in the trainer's lane is time in which it waits for data."
    )
    title = "Generation, training, weight sync and idle time" + _of(run, runs)
    return Chart(
        "gantt" + _slug(run, runs),
        title,
        caption,
        kind="gantt",
        unit="seconds",
        x_title="seconds from the first of these steps",
        spans=spans,
        wide=True,
    )


def _gap(runs: Sequence[RunData]) -> Chart | None:
    return _several(
        runs, "logprob-gap", "Log-prob gap between generation and trainer",
        "Mean factor between the probabilities that engines and trainer give the same tokens; 1 is none.", "",
        ("probability error", ("train/token_mult_prob_error",)),
        ("largest sequence", ("train/max_seq_mult_prob_error",)),
    )  # fmt: skip


def _kl(runs: Sequence[RunData]) -> Chart | None:
    return _several(
        runs, "kl", "KL divergence", "Per token: from the reference, and generation to trainer.", "nats",
        ("from the reference", ("train/kl_penalty",)), ("generation to trainer", ("train/gen_kl_error",)),
    )  # fmt: skip


def _clips(runs: Sequence[RunData]) -> Chart | None:
    return _several(
        runs, "clipping", "Clipped and masked tokens", "Share of tokens whose ratio was clipped, whose "
        "importance weight was out of bounds, or that masks kept out of the loss.", "share",
        ("clipped", ("train/clip_fraction",)), ("weight out of bounds", ("train/is_oob_ratio",)),
        ("masked", ("train/masked_token_fraction",)),
    )  # fmt: skip


def _entropy(runs: Sequence[RunData]) -> Chart | None:
    return _several(
        runs, "entropy", "Entropy", "Estimated entropy of the policy per token.", "nats",
        ("entropy", ("train/approx_entropy",)),
    )  # fmt: skip


def _losses(runs: Sequence[RunData]) -> Chart | None:
    return _several(
        runs, "gradient", "Gradient norm", "Before clipping.", "", ("gradient norm", ("train/grad_norm",))
    )


def _throughput(runs: Sequence[RunData]) -> Chart | None:
    def draw(run: RunData, color: str, prefix: str) -> list[Line]:
        tokens, seconds = run.column("train/total_num_tokens"), run.column("timing/train/total_step_time")
        trained = [t / s if t is not None and s else None for t, s in zip(tokens, seconds, strict=True)]
        generated = run.column("generation/tokens_per_second")
        other = color if len(runs) > 1 else "s2"
        return [
            Line(f"{prefix}trained", run.steps, smoothed(trained, 0.8), color),
            Line(f"{prefix}generated", run.steps, smoothed(generated, 0.8), other, dashed=len(runs) > 1),
        ]

    lines = _of_runs(runs, draw)
    caption = "Tokens per second, smoothed."
    return Chart("throughput", "Throughput", caption, unit="tokens/s", lines=lines) if lines else None


def _sum(row: dict, names: Sequence[str]) -> float:
    return sum(row.get(f"timing/train/{name}") or 0.0 for name in names)


def _buckets(rows: Sequence[dict], most: int) -> list[Sequence[dict]]:
    size = -(-len(rows) // most)
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _of(run: RunData, runs: Sequence[RunData]) -> str:
    return f" · {run.label}" if len(runs) > 1 else ""


def _slug(run: RunData, runs: Sequence[RunData]) -> str:
    return "-" + re.sub(r"\W+", "-", run.label) if len(runs) > 1 else ""
