"""What the simulated engines have done, in request-seconds: one request of one shard for one second."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from asyncrl_runtime.core.records import GroupId


@dataclass(slots=True)
class Totals:
    """Sums since the start of a run; a span of it is a difference."""

    clock_seconds: float = 0.0
    steps: int = 0
    idle_seconds: float = 0.0
    """Seconds that the trainer waited for groups."""

    step_seconds: float = 0.0
    busy: float = 0.0
    """Request-seconds served, requests in progress included."""

    trained: float = 0.0
    """Request-seconds of groups that were trained on."""

    discarded: float = 0.0
    """Request-seconds of finished groups that were thrown away."""

    aborted: float = 0.0
    """Request-seconds of attempts that were cancelled."""

    failed: float = 0.0
    """Request-seconds of attempts that failed."""

    dispatched_groups: int = 0
    dispatched_longest: float = 0.0
    """Sum over dispatched groups of the duration of their slowest sibling."""

    trained_groups: int = 0
    trained_longest: float = 0.0
    discarded_groups: int = 0
    dropped_groups: int = 0
    aborted_attempts: int = 0
    failed_attempts: int = 0

    def minus(self, earlier: Totals) -> Totals:
        """What came after an earlier reading."""
        return Totals(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})


@dataclass(slots=True)
class Done:
    """A finished group that is neither trained nor thrown away."""

    spent: float
    longest: float


@dataclass(slots=True)
class Work:
    """Keeps the account of a run."""

    in_progress: Callable[[], Callable[[], float]] = lambda: lambda: 0.0
    """Reads what is being served; gives a function that works out its request-seconds so far."""

    totals: Totals = field(default_factory=Totals)
    lags: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Trained groups by the versions that they lagged behind."""

    _done: dict[GroupId, Done] = field(default_factory=dict)
    _ended: float = 0.0

    def dispatched(self, longest: float) -> None:
        """A group starts its first attempt."""
        if math.isfinite(longest):
            self.totals.dispatched_groups += 1
            self.totals.dispatched_longest += longest

    def finished(self, group_id: GroupId, spent: float, longest: float) -> None:
        """An attempt gave its group."""
        self._ended += spent
        self._done[group_id] = Done(spent, longest)

    def aborted(self, spent: float) -> None:
        """An attempt was cancelled."""
        self._ended += spent
        self.totals.aborted += spent
        self.totals.aborted_attempts += 1

    def failed(self, spent: float) -> None:
        """An attempt failed."""
        self._ended += spent
        self.totals.failed += spent
        self.totals.failed_attempts += 1

    def trained(self, group_id: GroupId, lag: int) -> None:
        """A group was trained on."""
        done = self._done.pop(group_id)
        self.totals.trained += done.spent
        self.totals.trained_longest += done.longest
        self.totals.trained_groups += 1
        self.lags[lag] += 1

    def discarded(self, group_id: GroupId) -> None:
        """A finished group was thrown away."""
        done = self._done.pop(group_id)
        self.totals.discarded += done.spent
        self.totals.discarded_groups += 1

    def reading(self, clock_seconds: float) -> Callable[[], Totals]:
        """Reads the sums of now; gives a function that works them out."""
        totals, ended, in_progress = replace(self.totals), self._ended, self.in_progress()
        return lambda: replace(totals, clock_seconds=clock_seconds, busy=ended + in_progress())
