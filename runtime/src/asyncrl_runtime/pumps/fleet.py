"""The generation fleet: which shard takes the next request, and what its outcome says about the shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from asyncrl_runtime.core.errors import (
    FleetExhausted,
    InfraFailure,
    NoServingShard,
    RunError,
    ShardUnavailable,
    WorkerDied,
)
from asyncrl_runtime.core.fleet import DEAD, FleetLedger, FleetRequestRefused, Transition
from asyncrl_runtime.ports.generator import GenerationRequest, GenerationResult, Generator
from asyncrl_runtime.pumps.wakeup import Wakeup, deadline

if TYPE_CHECKING:
    from asyncrl_runtime.pumps.observer import Observer

GENERATION_TIMEOUT = "spec.asyncRL.rolloutFailure.native.generationTimeoutSeconds"
OnDeadShard = Literal["fail_fast", "quarantine", "restart"]


@dataclass(slots=True, eq=False)
class _Call:
    """A request that a shard works on."""

    task: asyncio.Future[GenerationResult]
    evicted: str | None = None
    """Why the shard left the serving set under it."""

    uncharged: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Fleet:
    """Hands requests to shards and counts what they have outstanding.

    With a ledger: to the serving shard with the fewest, and each outcome is told to the ledger (SC-7.47 to
    7.62). Without one: to the shards that live, in turn (SC-7.49).
    """

    shards: Sequence[Generator]
    ledger: FleetLedger | None = None
    observer: Observer | None = None
    on_dead_shard: OnDeadShard = "fail_fast"
    changed: Wakeup = field(default_factory=Wakeup)
    """A shard changed its state, a recovery window closed, or a round of probes ended."""

    on_death: Callable[[int], None] | None = field(default=None, init=False)
    """Told of each death that is known for certain, while somebody wants to hear of it."""

    outstanding: list[int] = field(init=False)
    recovering: bool = field(default=False, init=False)
    """The serving set may be empty on purpose: a failed refit is being repaired (SC-1.49)."""

    _calls: list[dict[_Call, None]] = field(init=False)
    """By shard, oldest first."""

    _held: set[int] = field(default_factory=set, init=False)
    """Shards that were taken out by hand: only a release brings them back."""

    _released: set[int] = field(default_factory=set, init=False)
    _next: int = field(default=0, init=False)
    _last_death: str = field(default="nothing was asked of them", init=False)

    def __post_init__(self) -> None:
        self.outstanding = [0] * len(self.shards)
        self._calls = [{} for _ in self.shards]
        if self.ledger is not None:
            if self.ledger.num_shards != len(self.shards):
                raise ValueError(
                    f"the health ledger has {self.ledger.num_shards} shards, the fleet {len(self.shards)}"
                )
            self.ledger.on_transition = self._moved
            self.ledger.restart_due = self.restart_due

    # ── requests ────────────────────────────────────────────────────────────────────────────────────

    async def generate(
        self, request: GenerationRequest, *, timeout_seconds: float | None = None
    ) -> GenerationResult:
        """Sample one completion on one shard, within `timeout_seconds` of work there.

        Waits while no shard serves and some are about to; that time is not counted.

        Raises:
            ShardUnavailable, NoServingShard: with a ledger; worth another attempt.
            InfraFailure: what the shard raised, without a ledger.
            FleetExhausted: without a ledger, when no shard lives.
        """
        if self.ledger is None:
            return await self._in_turn(request, timeout_seconds)
        index = await self._serving(self.ledger)
        return await self._on_shard(self.ledger, index, request, timeout_seconds)

    async def _serving(self, ledger: FleetLedger) -> int:
        while (index := ledger.pick(self.outstanding)) is None:
            if not (self.recovering or ledger.deferred):
                raise NoServingShard(ledger.describe(), ledger.last_error)
            await self.changed.since(self.changed.count)
        return index

    async def _on_shard(
        self, ledger: FleetLedger, index: int, request: GenerationRequest, timeout_seconds: float | None
    ) -> GenerationResult:
        engine = self.engine(index)
        call = _Call(asyncio.ensure_future(self.shards[index].generate(request)))
        self._calls[index][call] = None
        self.outstanding[index] += 1
        try:
            async with deadline(f"generation {request.request_id}", timeout_seconds, GENERATION_TIMEOUT):
                result = await call.task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if call.evicted is None or (current is not None and current.cancelling()):
                raise
            raise ShardUnavailable(index, ledger.state(index), call.evicted, call.uncharged) from None
        except InfraFailure as failure:
            if isinstance(failure, WorkerDied):
                self.died(index, str(failure), engine=engine)
            elif call.evicted is None:
                ledger.request_failed(index, str(failure))
            uncharged = call.uncharged or self.recovering
            raise ShardUnavailable(index, ledger.state(index), str(failure), uncharged) from failure
        finally:
            del self._calls[index][call]
            self.outstanding[index] -= 1
        if call.evicted is not None:  # it ended in the very moment: its tokens are not to be trusted
            raise ShardUnavailable(index, ledger.state(index), call.evicted, call.uncharged)
        ledger.request_ok(index)
        return result

    async def _in_turn(self, request: GenerationRequest, timeout_seconds: float | None) -> GenerationResult:
        index = self._turn()
        self.outstanding[index] += 1
        try:
            async with deadline(f"generation {request.request_id}", timeout_seconds, GENERATION_TIMEOUT):
                return await self.shards[index].generate(request)
        except WorkerDied as death:
            self._last_death = str(death)
            raise
        finally:
            self.outstanding[index] -= 1

    def _turn(self) -> int:
        for offset in range(len(self.shards)):
            index = (self._next + offset) % len(self.shards)
            if self.shards[index].alive:
                self._next = (index + 1) % len(self.shards)
                return index
        raise FleetExhausted(len(self.shards), self._last_death)

    def _moved(self, transition: Transition) -> None:
        """A shard that no longer serves loses its running requests; they are not its failures (SC-7.9).

        A dead one's engine is ended, so that a frozen one can neither come back nor hold anyone up.
        """
        assert self.ledger is not None
        if self.observer is not None:
            self.observer.event(
                "shard_state",
                shard=transition.shard,
                old=transition.old.value,
                new=transition.new.value,
                reason=transition.reason,
                membership_epoch=self.ledger.epoch,
            )
        if transition.left_serving:
            for call in self._calls[transition.shard]:
                call.evicted, call.uncharged = transition.reason, self.recovering
                call.task.cancel()
        if transition.new is DEAD:
            self.shards[transition.shard].kill()
        self.changed.notify()

    def engine(self, index: int) -> int:
        """Which of the shard's engines, one after the other, is the present one."""
        return 0 if self.ledger is None else self.ledger.shards[index].restart_attempts

    def died(self, index: int, error: str, *, engine: int) -> None:
        """An engine of a shard is known to have ended; of an earlier one that is no news."""
        assert self.ledger is not None
        if engine != self.engine(index):
            return
        before = self.ledger.state(index)
        self.ledger.died(index, error)
        if self.on_death is not None and self.ledger.state(index) is not before:
            self.on_death(index)

    async def restart(self, index: int) -> str | None:
        """Start a new engine; the error if it does not come up."""
        try:
            await self.shards[index].start()
        except (InfraFailure, RunError) as error:
            return str(error)
        return None

    # ── membership ──────────────────────────────────────────────────────────────────────────────────

    @property
    def absent(self) -> frozenset[int]:
        """Shards that a refit leaves out."""
        if self.ledger is not None:
            return self.ledger.absent
        return frozenset(index for index, shard in enumerate(self.shards) if not shard.alive)

    @property
    def silent(self) -> bool:
        """No shard serves, so nothing that runs can go on."""
        return self.ledger is not None and not self.ledger.serving

    def open_recovery(self) -> None:
        """A refit failed: requests wait, and exhaustion is not judged."""
        self.recovering = True

    def close_recovery(self) -> None:
        """The repair has ended, one way or the other."""
        if self.recovering:
            self.recovering = False
            self.changed.notify()

    def check_exhausted(self) -> None:
        """For a watchdog's tick. Raises FleetExhausted when too few shards serve (SC-7.74)."""
        error = None if self.ledger is None or self.recovering else self.ledger.exhausted()
        if error is not None:
            raise error

    # ── by hand ─────────────────────────────────────────────────────────────────────────────────────

    def quarantine(self, index: int, reason: str = "it was taken out by hand") -> None:
        """Take a shard out of service until it is released. Raises FleetRequestRefused."""
        ledger = self._watched(index)
        if index in ledger.absent and not (ledger.state(index) is DEAD and self.on_dead_shard == "restart"):
            raise FleetRequestRefused(f"shard {index} is {ledger.state(index)} already")
        self._held.add(index)
        ledger.condemn(index, reason)

    def release(self, index: int) -> None:
        """Start a dead shard anew, once (SC-7.71). Raises FleetRequestRefused."""
        ledger = self._watched(index)
        if self.on_dead_shard == "fail_fast":
            raise FleetRequestRefused(
                "spec.asyncRL.generationFleetHealth.onDeadShard is fail_fast: a dead shard stays dead; "
                "use quarantine or restart"
            )
        if ledger.state(index) is not DEAD:
            raise FleetRequestRefused(
                f"shard {index} is {ledger.state(index)}: only a dead one can be released"
            )
        self._held.discard(index)
        self._released.add(index)
        self.changed.notify()

    def _watched(self, index: int) -> FleetLedger:
        if self.ledger is None:
            raise FleetRequestRefused(
                "shards are not watched: set spec.asyncRL.generationFleetHealth.enabled to true"
            )
        if not 0 <= index < len(self.shards):
            raise FleetRequestRefused(f"there is no shard {index}: the fleet has {len(self.shards)}")
        return self.ledger

    def restart_due(self, index: int) -> bool:
        """Whether a dead shard is to be started anew."""
        if self.ledger is None or self.ledger.state(index) is not DEAD:
            return False
        return index in self._released or (self.on_dead_shard == "restart" and index not in self._held)

    def begin_restart(self, index: int) -> bool:
        """Use an attempt up; False when there is none left, which retires the shard."""
        assert self.ledger is not None
        self._released.discard(index)
        return self.ledger.restarting(index)

    def counters(self) -> dict[str, list[int]]:
        """What a checkpoint keeps."""
        return {} if self.ledger is None else self.ledger.counters()

    # ── numbers ─────────────────────────────────────────────────────────────────────────────────────

    def metrics(self) -> dict[str, float]:
        """Of a watchdog's tick (SC-12.53); empty without a ledger."""
        ledger = self.ledger
        if ledger is None:
            return {}
        versions = [ledger.shards[index].weight_version for index in ledger.serving]
        values: dict[str, float] = {f"gen_fleet/shards/{state}": n for state, n in ledger.counts.items()}
        values["gen_fleet/serving_shards"] = len(ledger.serving)
        values["gen_fleet/membership_epoch"] = ledger.epoch
        values["gen_fleet/version_spread"] = max(versions) - min(versions) if versions else 0
        values["gen_fleet/stale_serving_shards"] = len(ledger.stale_serving)
        for index, shard in enumerate(ledger.shards):
            values[f"gen_fleet/restart_attempts/{index}"] = shard.restart_attempts
            values[f"gen_fleet/shard_weight_version/{index}"] = shard.weight_version
            values[f"gen_fleet/shard_outstanding/{index}"] = self.outstanding[index]
        return values
