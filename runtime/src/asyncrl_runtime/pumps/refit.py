"""The refit: carrying new weights to the fleet while it generates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.pumps.attempts import Attempt
from asyncrl_runtime.pumps.busy import Busy
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.observer import Observer
from asyncrl_runtime.pumps.rollout import RolloutPump
from asyncrl_runtime.pumps.transfer import Landed, WeightTransfer
from asyncrl_runtime.pumps.wakeup import RolloutGate


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitSettings:
    """How rollouts and weights meet."""

    in_flight: bool
    """False: wait until no rollout is registered in flight (the drain gate)."""

    drain_timeout_seconds: float | None
    drain_timeout_action: Literal["proceed", "abort"]
    abort_grace_seconds: float


@dataclass(slots=True, kw_only=True, eq=False)
class Refit:
    """Brings the fleet to the trainer's version: gate, aborts, drain, transfer, stamp (SC-6.2)."""

    transfer: WeightTransfer
    fleet: Fleet
    rollout: RolloutPump
    versions: Versions
    gate: RolloutGate
    observer: Observer
    settings: RefitSettings
    busy: Busy = field(default_factory=Busy)
    between_updates: Callable[[], bool] = lambda: False
    """Whether the trainer holds exactly the parameters of its version, and goes on holding them for now."""

    drain_timeouts: int = field(default=0, init=False)
    _at_work: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """One refit at a time (SC-6.71)."""

    async def run(self, *, keep_closed: bool = False) -> dict[str, float]:
        """Transfer the trainer's parameters as version V; the gate opens again unless told otherwise.

        On a failing path the gate stays closed: the error ends the run.
        """
        loop = asyncio.get_running_loop()
        self.gate.close()
        began = loop.time()
        aborted = await self.rollout.abort_stale(grace_seconds=self.settings.abort_grace_seconds)
        stale_gone = loop.time()
        await self._drain()
        drained = loop.time()
        version = self.versions.trainer
        for attempt in self.rollout.inflight.values():
            attempt.straddled = attempt.straddled or attempt.slot.start_weight < self.versions.content
        self.versions.arriving = self.versions.content
        try:
            async with self._at_work:
                landed = await self.transfer.land(version)
        finally:
            self.versions.arriving = None
        assert landed is not None
        self.versions.stamp = version
        if not keep_closed:
            self.gate.open()
        seconds = loop.time() - began
        self._tell(landed, seconds=seconds, aborted=aborted, drain_seconds=drained - stale_gone)
        return {
            "timing/train/weight_sync": seconds,
            "timing/train/weight_sync/abort": stale_gone - began,
            "timing/train/weight_sync/drain": drained - stale_gone,
            "timing/train/weight_sync/reconcile": landed.reconcile_seconds,
            "timing/train/weight_sync/transfer": landed.transfer_seconds,
            "timing/train/weight_sync/invalidate": landed.invalidate_seconds,
            "train/aborted_stale_inflight_groups": aborted,
        }

    async def readmit(self) -> None:
        """Transfer the current version once more, to a fleet in which nobody serves.

        Does nothing unless the last refit has landed and the trainer is between updates, before and after.
        """
        version = self.versions.trainer
        if self._at_work.locked() or not self._settled(version):
            return
        async with self._at_work:
            landed = await self.transfer.land(version, still_valid=lambda: self._settled(version))
        if landed is not None:
            self._tell(landed, seconds=landed.reconcile_seconds + landed.transfer_seconds, readmission=True)

    def _settled(self, version: int) -> bool:
        return self.versions.trainer == self.versions.stamp == version and self.between_updates()

    def _tell(self, landed: Landed, *, seconds: float, **facts: object) -> None:
        """What is published of each refit (SC-6.70)."""
        self.observer.event(
            "refit",
            version=landed.report.version,
            seconds=round(seconds, 4),
            bytes=landed.report.bytes,
            participants=list(landed.report.participants),
            excluded=list(landed.excluded),
            rebuilt=landed.rebuilt,
            retries=landed.retries,
            **facts,
        )

    def metrics(self) -> dict[str, float]:
        """Of a watchdog's tick (SC-12.56)."""
        counters = self.transfer.counters
        return {
            "refit/count": counters.landed,
            "refit/failures": counters.failures,
            "refit/retries": counters.retries,
            "refit/rebuilds": counters.rebuilds,
            "refit/excluded_shards": counters.excluded_shards,
            "refit/deadline_fired": counters.deadline_fired,
            "refit/in_recovery": float(self.fleet.recovering),
        }

    async def _drain(self) -> None:
        """Let registered rollouts finish, within the bound (SC-6.20, 6.21).

        While no shard serves, those that wait for one cannot: only the refit lets them go on (SC-6.24).
        """
        if self.settings.in_flight or not self.rollout.inflight:
            return
        self.busy.for_seconds(self.settings.drain_timeout_seconds)
        ended = asyncio.ensure_future(_all_ended(list(self.rollout.inflight.values())))
        silent = asyncio.ensure_future(self.fleet.changed.until(lambda: self.fleet.silent))
        try:
            done, _ = await asyncio.wait(
                [ended, silent],
                timeout=self.settings.drain_timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            silent.cancel()
            ended.cancel()
        if done:
            return
        self.drain_timeouts += 1
        left = list(self.rollout.inflight.values())
        self.observer.event("drain_timeout", left=len(left), action=self.settings.drain_timeout_action)
        if self.settings.drain_timeout_action == "abort":
            await self.rollout.abort(left, grace_seconds=self.settings.abort_grace_seconds)


async def _all_ended(attempts: Sequence[Attempt]) -> None:
    for attempt in attempts:
        await attempt.ended.wait()
