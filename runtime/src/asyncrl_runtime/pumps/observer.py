"""Who is told what happens to rollouts, and what is counted of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Protocol


class Observer(Protocol):
    """Whoever writes down what happens."""

    def event(self, kind: str, **facts: object) -> None:
        """Something happened to a prompt, a shard, a refit or a checkpoint."""
        ...


@dataclass(slots=True, kw_only=True)
class RolloutCounters:
    """Cumulative counts over the process (SC-8.31); those with reasons count per kind of failure."""

    committed: int = 0
    committed_tokens: int = 0
    """Generated tokens of committed groups."""

    aborted: int = 0
    relaunched: int = 0
    detached: int = 0
    filtered: int = 0
    redispatched: Counter[str] = field(default_factory=Counter)
    """Infra retries."""

    data_retried: Counter[str] = field(default_factory=Counter)
    data_failed: Counter[str] = field(default_factory=Counter)
    """Attempts that failed for the prompt's own fault, the last one of a prompt included."""

    infra_dropped: Counter[str] = field(default_factory=Counter)
    data_skipped: Counter[str] = field(default_factory=Counter)
    wasted_tokens: Counter[str] = field(default_factory=Counter)

    def copy(self) -> RolloutCounters:
        """The counts of now, to compare later ones with."""
        counts = {name: getattr(self, name) for name in self.__slots__}
        return replace(
            self, **{name: Counter(value) for name, value in counts.items() if isinstance(value, Counter)}
        )
