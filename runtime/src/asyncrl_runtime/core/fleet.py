"""Fleet health: the state of each generation shard, and which events change it (SC-7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from asyncrl_runtime.core.errors import FleetExhausted


class ShardHealth(StrEnum):
    """States of a shard (SC-7.2)."""

    HEALTHY = "HEALTHY"
    SUSPECT = "SUSPECT"
    DEAD = "DEAD"
    RESTARTING = "RESTARTING"
    STALE = "STALE"
    RETIRED = "RETIRED"


HEALTHY, SUSPECT, DEAD, RESTARTING, STALE, RETIRED = ShardHealth
SERVING = frozenset({HEALTHY, SUSPECT})
"""States that receive requests."""

ABSENT = frozenset({DEAD, RESTARTING, RETIRED})
"""States that cannot take part in a refit; a stale shard can."""


@dataclass(eq=False)
class ImpossibleTransition(ValueError):
    """The caller told the ledger something that cannot have happened (SC-7.37)."""

    shard: int
    state: ShardHealth
    event: str

    def __str__(self) -> str:
        return f"shard {self.shard} is {self.state}: the event {self.event} cannot happen to it"


@dataclass(eq=False)
class FleetRequestRefused(ValueError):
    """Something was asked of a shard that its state or the job does not allow."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Thresholds of fleet health (SC-2.103 to 2.108, 2.99)."""

    unhealthy_threshold: int = 3
    """Failures in a row, on one of the two streaks, that make a shard DEAD."""

    healthy_threshold: int = 2
    max_restart_attempts: int = 5
    """Per shard, over the whole run."""

    min_healthy_shards: int = 1
    restart_grace_seconds: float = 0.0
    """Longest deferral of exhaustion while shards come back."""

    def __post_init__(self) -> None:
        for name in (
            "unhealthy_threshold",
            "healthy_threshold",
            "max_restart_attempts",
            "min_healthy_shards",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(slots=True, kw_only=True)
class ShardRecord:
    """What the ledger knows of one shard."""

    state: ShardHealth = HEALTHY
    probe_failures: int = 0
    """In a row."""

    probe_successes: int = 0
    """In a row."""

    reported_failures: int = 0
    """Of real requests, since the last one that succeeded; never added to the probes' (SC-7.39)."""

    restart_attempts: int = 0
    weight_version: int = -1
    last_ok: float | None = None
    """Time of the last good probe or promotion."""

    last_error: str = ""
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A shard changed its state."""

    shard: int
    old: ShardHealth
    new: ShardHealth
    reason: str

    @property
    def left_serving(self) -> bool:
        """It no longer receives requests."""
        return self.old in SERVING and self.new not in SERVING


@dataclass(slots=True, kw_only=True, eq=False)
class FleetLedger:
    """The state machine of the fleet: callers probe, restart and transfer, and tell it the outcome.

    The one transition that does not exist leads from out of service back to HEALTHY without a landed
    refit: a restarted engine holds whatever it read from disk (SC-7.5).
    """

    num_shards: int
    settings: FleetSettings = field(default_factory=FleetSettings)
    clock: Callable[[], float]
    """Monotonic, seconds."""

    urls: Sequence[str | None] | None = None
    on_transition: Callable[[Transition], None] = lambda transition: None
    """Told about each change of state, after it."""

    restart_due: Callable[[int], bool] = lambda shard: False
    """Whether somebody is about to start a new engine for a dead shard."""

    shards: list[ShardRecord] = field(init=False)
    epoch: int = field(default=0, init=False)
    """Changes of the serving set (SC-7.45)."""

    landed_version: int = field(default=-1, init=False)
    """Version of the last landed refit."""

    missed_refits: int = field(default=0, init=False)
    """Serving shards that a landed refit had left out: mistakes of the caller (SC-7.44)."""

    last_error: str = field(default="none", init=False)
    """The newest error of any shard."""

    _missing_since: float | None = field(default=None, init=False)
    """When the serving shards became too few."""

    def __post_init__(self) -> None:
        if self.num_shards < 1:
            raise ValueError(f"a fleet has at least one shard, not {self.num_shards}")
        urls = self.urls if self.urls is not None else [None] * self.num_shards
        if len(urls) != self.num_shards:
            raise ValueError(f"{self.num_shards} shards and {len(urls)} addresses: there must be one each")
        self.shards = [ShardRecord(url=url) for url in urls]
        self._watch_minimum()

    # ── what is asked ───────────────────────────────────────────────────────────────────────────────

    @property
    def serving(self) -> tuple[int, ...]:
        """Shards that receive requests."""
        return self._in(SERVING)

    @property
    def absent(self) -> frozenset[int]:
        """Shards that cannot take part in a refit."""
        return frozenset(self._in(ABSENT))

    @property
    def present(self) -> tuple[int, ...]:
        """Shards that can: the participants, at the moment when membership settles (SC-6.34)."""
        return tuple(i for i, shard in enumerate(self.shards) if shard.state not in ABSENT)

    @property
    def counts(self) -> dict[str, int]:
        """Shards by state, every state."""
        found = Counter(shard.state for shard in self.shards)
        return {state.value: found[state] for state in ShardHealth}

    @property
    def stale_serving(self) -> tuple[int, ...]:
        """Serving shards that trail the last landed refit: a defect (SC-7.95)."""
        return tuple(i for i in self.serving if self.shards[i].weight_version != self.landed_version)

    def state(self, shard: int) -> ShardHealth:
        """The state of one shard."""
        return self.shards[shard].state

    def pick(self, outstanding: Sequence[int]) -> int | None:
        """The serving shard with the fewest outstanding requests, ties by lowest index (SC-7.47)."""
        return min(self.serving, key=lambda i: (outstanding[i], i), default=None)

    @property
    def deferred(self) -> bool:
        """Too few serve, and shards that come back would make the number up in time (SC-7.75)."""
        if self._missing_since is None:
            return False
        coming = len(self._in(frozenset({RESTARTING, STALE})))
        due = sum(shard.state is DEAD and self.restart_due(i) for i, shard in enumerate(self.shards))
        enough = len(self.serving) + coming + due >= self.settings.min_healthy_shards
        return enough and self.clock() - self._missing_since < self.settings.restart_grace_seconds

    def exhausted(self) -> FleetExhausted | None:
        """The error that ends the run, if too few serve and nothing defers it (SC-7.74)."""
        if self._missing_since is None or self.deferred:
            return None
        return FleetExhausted(
            self.num_shards,
            self.last_error,
            serving=len(self.serving),
            minimum=self.settings.min_healthy_shards,
            states=self.describe(),
        )

    def describe(self) -> str:
        """`1 HEALTHY, 1 DEAD`."""
        return ", ".join(f"{number} {state}" for state, number in self.counts.items() if number)

    # ── probes and requests ─────────────────────────────────────────────────────────────────────────

    def probe_ok(self, shard: int) -> None:
        """A probe was answered."""
        record = self.shards[shard]
        if record.state not in SERVING:
            return
        record.probe_failures = 0
        record.probe_successes += 1
        record.last_ok = self.clock()
        if record.state is SUSPECT and record.probe_successes >= self.settings.healthy_threshold:
            self._move(shard, HEALTHY, f"{record.probe_successes} good probes in a row")

    def probe_failed(self, shard: int, error: str) -> None:
        """A probe was not answered, or with an error."""
        record = self.shards[shard]
        if record.state not in SERVING:
            return
        record.probe_successes = 0
        record.probe_failures += 1
        self._note(shard, error)
        self._suspect(shard, record.probe_failures, "probes", error)

    def request_ok(self, shard: int) -> None:
        """A generation was completed."""
        if self.shards[shard].state in SERVING or self.shards[shard].state is DEAD:
            self.shards[shard].reported_failures = 0

    def request_failed(self, shard: int, error: str) -> None:
        """A generation failed or timed out on the shard; clean probes do not forgive it (SC-7.40)."""
        record = self.shards[shard]
        if record.state not in SERVING:
            return
        record.reported_failures += 1
        self._note(shard, error)
        self._suspect(shard, record.reported_failures, "requests", error)

    def died(self, shard: int, error: str) -> None:
        """Its process is known to have ended; no threshold applies."""
        if self.shards[shard].state in (HEALTHY, SUSPECT, STALE, RESTARTING):
            self._note(shard, error)
            self._move(shard, DEAD, error)

    def condemn(self, shard: int, error: str) -> None:
        """It did not answer the condemn round, or was taken out by hand."""
        if self.shards[shard].state in (HEALTHY, SUSPECT, STALE):
            self._note(shard, error)
            self._move(shard, DEAD, error)

    # ── restarts ────────────────────────────────────────────────────────────────────────────────────

    def restarting(self, shard: int) -> bool:
        """Begin a restart attempt; False, and RETIRED, when the attempts are used up."""
        record = self.shards[shard]
        if record.state is RETIRED:
            return False
        if record.state is not DEAD:
            raise ImpossibleTransition(shard, record.state, "restarting")
        record.restart_attempts += 1
        if record.restart_attempts > self.settings.max_restart_attempts:
            self._move(
                shard,
                RETIRED,
                f"it was restarted {self.settings.max_restart_attempts} times: {record.last_error}",
            )
            return False
        self._move(shard, RESTARTING, f"restart {record.restart_attempts}: {record.last_error}")
        return True

    def loaded(self, shard: int, url: str | None = None) -> None:
        """Its new engine is up, with weights that nobody knows."""
        record = self.shards[shard]
        if record.state is RETIRED:
            return
        if record.state is not RESTARTING:
            raise ImpossibleTransition(shard, record.state, "loaded")
        record.weight_version = -1
        record.url = url if url is not None else record.url
        self._move(shard, STALE, "a new engine is up and waits for weights")

    def load_failed(self, shard: int, error: str) -> None:
        """Its new engine did not come up."""
        record = self.shards[shard]
        if record.state in (DEAD, RETIRED):
            return
        if record.state is not RESTARTING:
            raise ImpossibleTransition(shard, record.state, "load failed")
        self._note(shard, error)
        self._move(shard, DEAD, error)

    def retire(self, shard: int, reason: str) -> None:
        """Give it up for good."""
        if self.shards[shard].state is not RETIRED:
            self._note(shard, reason)
            self._move(shard, RETIRED, reason)

    # ── refits ──────────────────────────────────────────────────────────────────────────────────────

    def partial(self, shard: int, reason: str) -> None:
        """A refit ended without its acknowledgement: it may hold a mixture of old and new weights."""
        if self.shards[shard].state in SERVING:
            self._move(shard, STALE, reason)

    def landed(self, version: int, participants: Iterable[int]) -> None:
        """A refit landed on `participants`, as they were when its membership settled (SC-6.55 to 6.58)."""
        took_part = frozenset(participants)
        self.landed_version = version
        for index, record in enumerate(self.shards):
            if record.state in ABSENT:
                continue
            if index not in took_part:
                if record.state in SERVING:
                    self.missed_refits += 1
                    self._move(index, STALE, f"the refit to version {version} had left it out")
                continue
            record.weight_version = version
            if record.state is STALE:
                record.probe_failures = record.probe_successes = record.reported_failures = 0
                record.last_ok = self.clock()
                self._move(index, HEALTHY, f"the refit to version {version} landed")

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────

    def counters(self) -> dict[str, list[int]]:
        """What outlives the controller, as JSON values (SC-8.33)."""
        return {"restart_attempts": [shard.restart_attempts for shard in self.shards]}

    def restore_counters(self, counters: Mapping[str, Sequence[int]]) -> None:
        """From what `counters` gave; shards that did not exist then start at 0."""
        for record, attempts in zip(self.shards, counters.get("restart_attempts", ()), strict=False):
            record.restart_attempts = attempts

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────

    def _in(self, states: frozenset[ShardHealth]) -> tuple[int, ...]:
        return tuple(i for i, shard in enumerate(self.shards) if shard.state in states)

    def _note(self, shard: int, error: str) -> None:
        self.shards[shard].last_error = self.last_error = error

    def _suspect(self, shard: int, failures: int, what: str, error: str) -> None:
        if failures >= self.settings.unhealthy_threshold:
            self._move(shard, DEAD, f"{failures} {what} in a row failed: {error}")
        elif self.shards[shard].state is HEALTHY:
            self._move(shard, SUSPECT, error)

    def _move(self, shard: int, new: ShardHealth, reason: str) -> None:
        record = self.shards[shard]
        transition = Transition(shard, record.state, new, reason)
        record.state = new
        if (transition.old in SERVING) != (new in SERVING):
            self.epoch += 1
            self._watch_minimum()
        self.on_transition(transition)

    def _watch_minimum(self) -> None:
        if len(self.serving) >= self.settings.min_healthy_shards:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = self.clock()
