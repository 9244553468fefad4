"""One RL step while it is open: its groups, its chunks, where its time went."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from asyncrl_runtime.core.metric_names import find
from asyncrl_runtime.core.records import BatchMeta, GroupMeta
from asyncrl_runtime.core.stats import percentile
from asyncrl_runtime.ports.advantage import StageResult
from asyncrl_runtime.ports.trainer import StepReport


@dataclass(slots=True, kw_only=True)
class OpenStep:
    """What the train pump gathers between the first selection and the close."""

    version: int
    """Trainer version, fixed for the whole step."""

    claim: list[BatchMeta] = field(default_factory=list)
    """Selected groups: no longer in the buffer, rows still in the data plane (SC-4.52)."""

    trained: tuple[GroupMeta, ...] = ()
    """Groups of the step once it is closed."""

    opened: bool = False
    """An optimizer step is open in the trainer."""

    chunks: int = 0
    results: list[StageResult] = field(default_factory=list)
    reports: list[StepReport] = field(default_factory=list)
    evicted: int = 0
    inflight: int = 0
    """Most rollouts seen in flight when groups were selected."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Wall time by phase."""

    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def batch(self) -> BatchMeta:
        """All groups of the step, in selection order."""
        return BatchMeta(tuple(group for meta in self.claim for group in meta.groups))

    @property
    def groups(self) -> int:
        """Groups selected so far."""
        return sum(len(meta.groups) for meta in self.claim)

    @property
    def valid_tokens(self) -> float:
        """T over the groups processed so far."""
        return sum(float(result.row_valid_tokens.sum()) for result in self.results)

    def forget_chunks(self) -> None:
        """Start processing anew with the same claim (SC-5.75)."""
        self.opened, self.chunks = False, 0
        self.results.clear()
        self.reports.clear()

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall time of a phase."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            self.seconds[phase] += loop.time() - began

    def rollout_metrics(self) -> dict[str, float]:
        """Staleness, lengths and rollout counts of the groups trained on (SC-12.15, 12.20, 12.30)."""
        groups = self.batch.groups
        rows = sum(len(group.sample_ids) for group in groups)
        lags = [self.version - version for group in groups for version in group.weight_versions]
        totals: Counter[str] = Counter()
        for group in groups:
            totals.update(group.metrics)
        per_row = {
            "train/mean_prompt_length": totals["prompt_tokens"],
            "train/response_length/mean": totals["generated_tokens"],
            "train/rollout/turns_mean": totals["turns"],
            "train/rollout/truncation_rate": totals["truncated"],
            "train/rollout/max_turns_rate": totals["max_turns_reached"],
            "timing/rollout/execution_mean": totals["generation_seconds"] + totals["environment_seconds"],
            "timing/rollout/environment_mean": totals["environment_seconds"],
        }
        return {
            **{name: total / rows for name, total in per_row.items()},
            "train/rollout/natural_termination_rate": 1
            - (totals["truncated"] + totals["max_turns_reached"]) / rows,
            "train/response_length/max": max(group.metrics["generated_tokens_max"] for group in groups),
            "train/response_length/min": min(group.metrics["generated_tokens_min"] for group in groups),
            "train/total_num_tokens": sum(self.batch.lengths),
            "train/groups_trained": len(groups),
            "train/rows_trained": rows,
            "train/chunks": self.chunks,
            "train/masked_rows_env": totals["flagged"],
            "train/evicted_stale_prompt_groups": self.evicted,
            **{f"train/staleness/lag_hist/{lag}": count for lag, count in sorted(Counter(lags).items())},
            "train/staleness/lag_max": max(lags),
            "train/staleness/lag_min": min(lags),
            "train/staleness/lag_mean": sum(lags) / len(lags),
            "train/staleness/lag_p50": percentile(lags, 0.50) or 0,
            "train/staleness/lag_p95": percentile(lags, 0.95) or 0,
            "train/staleness/straddled_groups": sum(group.straddled for group in groups),
            "train/staleness/end_minus_start_mean": sum(g.end_weight - g.start_weight for g in groups)
            / len(groups),
        }


_LEAST, _MOST = re.compile(r"(^|_|/)min(_|$)"), re.compile(r"(^|_|/)max(_|$)")


def over_updates(reports: Sequence[StepReport]) -> dict[str, float]:
    """The trainer's metrics of a step over all of its optimizer steps (SC-12.10, 12.17).

    Counts add up, extremes stay extremes, all else is the mean weighted by valid tokens.
    """
    names = {name: None for report in reports for name in report.metrics}
    return {f"train/{name}": _over_updates(name, reports) for name in names}


def _over_updates(name: str, reports: Sequence[StepReport]) -> float:
    parts = [(report.metrics[name], report.valid_tokens) for report in reports if name in report.metrics]
    values = [value for value, _ in parts]
    if len(values) == 1:
        return values[0]
    if _LEAST.search(name):
        return min(values)
    if _MOST.search(name):
        return max(values)
    series = find(f"train/{name}")
    if series is not None and series.metric.kind == "count":
        return sum(values)
    weight = sum(tokens for _, tokens in parts)
    return sum(value * tokens for value, tokens in parts) / weight if weight else sum(values) / len(values)
