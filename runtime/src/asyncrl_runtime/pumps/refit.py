"""The refit: carrying new weights to the fleet while it generates."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from asyncrl_runtime.core.errors import RefitAborted, WorkerDied
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.weight_sync import TransferReport, WeightSync
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.rollout import Observer, RolloutPump
from asyncrl_runtime.pumps.wakeup import RolloutGate


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitSettings:
    """How rollouts and weights meet."""

    in_flight: bool
    """False: wait until no rollout is registered in flight (the drain gate)."""

    drain_timeout_seconds: float | None
    drain_timeout_action: Literal["proceed", "abort"]
    abort_grace_seconds: float
    recompute_kv_cache: bool
    deadline_seconds: float | None
    unwind_grace_seconds: float


@dataclass(slots=True, kw_only=True, eq=False)
class Refit:
    """Brings the fleet to the trainer's version: gate, aborts, drain, transfer, stamp (SC-6.2)."""

    sync: WeightSync
    fleet: Fleet
    rollout: RolloutPump
    versions: Versions
    gate: RolloutGate
    observer: Observer
    settings: RefitSettings
    count: int = field(default=0, init=False)
    drain_timeouts: int = field(default=0, init=False)

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
            report = await self._transfer(version)
        finally:
            self.versions.arriving = None
        landed = loop.time()
        if self.settings.recompute_kv_cache:
            await asyncio.gather(*(self._invalidate(i) for i in report.participants))
        self.versions.stamp = version
        self.count += 1
        if not keep_closed:
            self.gate.open()
        end = loop.time()
        self.observer.event(
            "refit",
            version=version,
            seconds=round(end - began, 4),
            bytes=report.bytes,
            participants=list(report.participants),
            aborted=aborted,
        )
        return {
            "timing/train/weight_sync": end - began,
            "timing/train/weight_sync/abort": stale_gone - began,
            "timing/train/weight_sync/drain": drained - stale_gone,
            "timing/train/weight_sync/transfer": landed - drained,
            "timing/train/weight_sync/invalidate": end - landed,
            "train/aborted_stale_inflight_groups": aborted,
        }

    async def _invalidate(self, index: int) -> None:
        """A shard that has ended meanwhile has no cache; its requests fail by themselves."""
        with suppress(WorkerDied):
            await self.fleet.shards[index].invalidate_kv_cache()

    async def _transfer(self, version: int) -> TransferReport:
        """Bounded by deadline and unwind grace, if there is a deadline (SC-6.41)."""
        if self.settings.deadline_seconds is None:
            return await self.sync.sync_weights(version)
        seconds = self.settings.deadline_seconds + self.settings.unwind_grace_seconds
        bound = asyncio.timeout(seconds)
        try:
            async with bound:
                return await self.sync.sync_weights(version)
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise RefitAborted(
                version,
                f"no end within {seconds:g} s (spec.asyncRL.refit.deadlineSeconds plus unwindGraceSeconds)",
            ) from error

    async def _drain(self) -> None:
        """Let registered rollouts finish, within the bound (SC-6.20, 6.21)."""
        if self.settings.in_flight or not self.rollout.inflight:
            return
        running = [attempt.ended.wait() for attempt in self.rollout.inflight.values()]
        try:
            async with asyncio.timeout(self.settings.drain_timeout_seconds):
                await asyncio.gather(*running)
        except TimeoutError:
            self.drain_timeouts += 1
            left = list(self.rollout.inflight.values())
            self.observer.event("drain_timeout", left=len(left), action=self.settings.drain_timeout_action)
            if self.settings.drain_timeout_action == "abort":
                await self.rollout.abort(left, grace_seconds=self.settings.abort_grace_seconds)
