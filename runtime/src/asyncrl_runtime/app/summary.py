"""`summary.json`: how a run ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from asyncrl_runtime.adapters.sealed_folder import write_atomically
from asyncrl_runtime.core.ledger import DiscardCause, PromptCounts
from asyncrl_runtime.core.records import GroupMeta

SUMMARY = "summary.json"
Status = Literal["complete", "failed", "stopped"]


@dataclass(slots=True, kw_only=True)
class Tally:
    """What is summed up while a run goes on, over all of its starts.

    A checkpoint carries the sums, so that what a start does again after a rollback counts once.
    """

    generated_tokens: int = 0
    trained_tokens: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    """Rows trained on, by lag."""

    reward_mean: float | None = None
    validation_mean: float | None = None
    seconds_to_first_step: float | None = None

    def staleness(self) -> dict[str, int]:
        """Nearest-rank percentiles over all rows."""
        total = self.lags.total()
        if not total:
            return {"p50": 0, "p95": 0, "max": 0}
        return {"p50": self._rank(0.50), "p95": self._rank(0.95), "max": max(self.lags)}

    def to_json(self, unsettled: Iterable[GroupMeta]) -> dict[str, object]:
        """The sums without the groups that wait for training."""
        waiting = sum(group.generated_tokens for group in unsettled)
        value = {each.name: getattr(self, each.name) for each in fields(self)}
        lags = {str(lag): rows for lag, rows in sorted(self.lags.items())}
        return {**value, "generated_tokens": self.generated_tokens - waiting, "lags": lags}

    def restore(self, saved: Mapping[str, Any], ready: Iterable[GroupMeta]) -> None:
        """Go on from what `to_json` gave, with the groups that came back ready; in place."""
        for each in fields(self):
            if each.name in saved:
                setattr(self, each.name, saved[each.name])
        self.lags = Counter({int(lag): rows for lag, rows in saved.get("lags", {}).items()})
        self.generated_tokens += sum(group.generated_tokens for group in ready)

    def _rank(self, quantile: float) -> int:
        wanted, seen = quantile * self.lags.total(), 0
        for lag in sorted(self.lags):
            seen += self.lags[lag]
            if seen >= wanted:
                return lag
        return max(self.lags)


def write_summary(
    folder: Path,
    *,
    status: Status,
    reason: str,
    steps: int,
    max_steps: int,
    tally: Tally,
    seconds: float,
    prompts: PromptCounts,
    trainer_idle_fraction: float,
    failure: dict[str, object] | None,
) -> None:
    """Write it at once, whole."""
    value = {
        "status": status,
        "reason": reason,
        "steps": steps,
        "max_steps": max_steps,
        "reward_mean": tally.reward_mean,
        "validation_reward_mean": tally.validation_mean,
        "seconds": round(seconds, 3),
        "seconds_to_first_step": tally.seconds_to_first_step,
        "prompts": asdict(prompts),
        "tokens": {"generated": tally.generated_tokens, "trained": tally.trained_tokens},
        "staleness": tally.staleness(),
        "trainer_idle_fraction": round(trainer_idle_fraction, 4),
        "failure": failure,
    }
    write_atomically(folder / SUMMARY, json.dumps(value, indent=2) + "\n")


def write_early_failure(folder: Path, *, failure: dict[str, object], seconds: float) -> None:
    """A start that failed before it went on: what an earlier one left stays, else everything is zero."""
    before = read_summary(folder)
    if before is None:
        none = PromptCounts(0, 0, 0, 0, 0, 0, dict.fromkeys(get_args(DiscardCause), 0))
        write_summary(
            folder,
            status="failed",
            reason=str(failure["message"]),
            steps=0,
            max_steps=0,
            tally=Tally(),
            seconds=seconds,
            prompts=none,
            trainer_idle_fraction=0.0,
            failure=failure,
        )
        return
    told = {"status": "failed", "reason": failure["message"], "failure": failure}
    write_atomically(folder / SUMMARY, json.dumps({**before, **told}, indent=2) + "\n")


def read_summary(folder: Path) -> dict[str, object] | None:
    """What an earlier start left, if anything readable."""
    try:
        value = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
