"""Which checkpoints stay, and which is best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as retention sees it."""

    step: int
    metric: float | None = None
    """Value of the metric that ranks checkpoints; None if it had none, or one that is not a number."""

    def __post_init__(self) -> None:
        if self.metric is not None and isnan(self.metric):
            object.__setattr__(self, "metric", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Rules of SC-9.40; a checkpoint stays if any of them keeps it."""

    save_period: int
    keep_top_k: int | None
    by_metric: bool
    higher_is_better: bool
    ft_keep_latest_k: int | None

    def kept(self, history: Iterable[Saved]) -> set[int]:
        """Steps that stay."""
        saved = sorted(history, key=lambda s: s.step)
        if not saved:
            return set()
        if self.keep_top_k is None and self.ft_keep_latest_k is None:
            return {s.step for s in saved}
        aligned = [s for s in saved if s.step % self.save_period == 0]
        best = aligned if self.keep_top_k is None else sorted(aligned, key=self._rank)[-self.keep_top_k :]
        latest = saved[-self.ft_keep_latest_k :] if self.ft_keep_latest_k else []
        return {s.step for s in best} | {s.step for s in latest} | {saved[-1].step}

    def best(self, history: Iterable[Saved]) -> int | None:
        """The best checkpoint's step, among those with a metric; the latest if none has one (SC-9.45)."""
        saved = list(history)
        ranked = [s for s in saved if s.metric is not None] or saved
        return max(ranked, key=self._rank).step if ranked else None

    def _rank(self, saved: Saved) -> tuple[float, int]:
        """Ascending: a missing value is below every value, ties go to the newer step."""
        if not self.by_metric:
            return (0.0, saved.step)
        if saved.metric is None:
            return (float("-inf"), saved.step)
        return (saved.metric if self.higher_is_better else -saved.metric, saved.step)
