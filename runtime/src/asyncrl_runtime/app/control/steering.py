"""A run of this process, as the control API steers it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import ManifestInvalid, parse
from asyncrl_api.resolve import resolve
from asyncrl_runtime.app.build import Parts
from asyncrl_runtime.app.control.service import Applied, NotNow, Unknown
from asyncrl_runtime.app.hot import Change, compare, fits
from asyncrl_runtime.app.run import JobRun
from asyncrl_runtime.app.state import ShardView
from asyncrl_runtime.app.support import unbuilt_settings
from asyncrl_runtime.core.fleet import FleetRequestRefused


@dataclass(slots=True, eq=False)
class Steering:
    """Carries calls out on the run's own event loop, where its pumps run."""

    run: JobRun
    applied_generation: int = 0
    _wanted: tuple[AsyncRLJob, Change, int] | None = field(default=None, init=False)
    """Changed settings that wait for the end of the open step."""

    @property
    def parts(self) -> Parts:
        """Raises NotNow before they are there."""
        if self.run.parts is None:
            raise NotNow("the run is still starting")
        return self.run.parts

    async def apply(self, job_json: str, generation: int) -> Applied:
        """Sort the differences to the settings in force, and take the hot ones over at the next close."""
        parts, now = self.parts, self.run.job
        try:
            asked = parse(json.loads(job_json))
        except ValueError as error:
            return Applied(refused=[("", f"the job is not JSON: {error}")])
        except ManifestInvalid as error:
            return Applied(refused=[(problem.path, problem.message) for problem in error.problems])
        if asked.metadata.name != now.metadata.name:
            return Applied(
                refused=[("metadata.name", f"this is job {now.metadata.name}, not {asked.metadata.name}")]
            )
        new = resolve(asked)
        change = compare(now, new)
        refused: Sequence[tuple[str, str]] = [
            *change.refused,
            *((problem.path, problem.message) for problem in unbuilt_settings(new)),
        ]
        if refused:
            return Applied(refused=refused)
        if not change.applied:
            self.applied_generation = generation
            return Applied(pending=change.pending)
        self._wanted = (new, change, generation)
        parts.train.on_close = self._take
        if parts.train.step is None or parts.train.step.trained:
            self._take()
        return Applied(change.applied, change.pending)

    def _take(self) -> None:
        """Put the wanted settings in force; without an await, inside the block that closes a step."""
        if self._wanted is None:
            return
        (new, change, generation), parts = self._wanted, self.parts
        if not fits(parts, new.spec):
            parts.outside.observer.event(
                "settings_wait",
                reason="admitted steps need more room than the new spec.asyncRL.maxBufferedRollouts",
            )
            return
        self._wanted = None
        for entry in change.hot:
            entry.apply(parts, new.spec)
        self.run.job, parts.spec, self.applied_generation = new, new.spec, generation
        parts.outside.observer.event("settings_applied", paths=list(change.applied), generation=generation)
        parts.changed.notify()

    async def checkpoint(self) -> tuple[int, str]:
        """Of the last closed step if that is saved, else of the open one when it closes."""
        saver, parts = self.parts.checkpointer, self.parts
        if not saver.settings.enabled:
            raise NotNow("spec.checkpointing.enabled is false")
        if saver.bundle is not None and saver.bundle.step == parts.progress.steps:
            return saver.bundle.step, saver.bundle.path.name
        bundle = await saver.ask()
        return bundle.step, bundle.path.name

    def quiesce(self, reason: str) -> None:
        """As the first SIGTERM, without its deadline: the caller has one."""
        if not self.run.request_stop(f"control API: {reason}" if reason else "control API"):
            raise NotNow("the run is still starting")

    async def quarantine(self, index: int, reason: str) -> ShardView:
        """Take a shard out of service."""
        try:
            self.parts.fleet.quarantine(index, reason or "it was taken out by hand")
        except FleetRequestRefused as refusal:
            raise _as_status(self.parts, index, refusal) from refusal
        return self._shard(index)

    async def release(self, index: int) -> ShardView:
        """Let a dead shard start anew."""
        try:
            self.parts.fleet.release(index)
        except FleetRequestRefused as refusal:
            raise _as_status(self.parts, index, refusal) from refusal
        return self._shard(index)

    async def drain_pod(self, pod: str, timeout_seconds: float) -> tuple[Sequence[int], int]:
        """Every shard of a run on one machine lives in the controller's own pod, which is not drained."""
        pods = {index: getattr(shard, "pod", "") for index, shard in enumerate(self.parts.shards)}
        shards = [index for index, its in pods.items() if its and its == pod]
        if not shards:
            raise Unknown(f"no shard of this run is on pod {pod}")
        for index in shards:
            await self.quarantine(index, f"pod {pod} is drained")
        fleet = self.parts.fleet
        try:
            async with asyncio.timeout(timeout_seconds):
                await fleet.changed.until(lambda: not any(fleet.outstanding[i] for i in shards))
        except TimeoutError:
            pass
        return shards, sum(fleet.outstanding[i] for i in shards)

    def _shard(self, index: int) -> ShardView:
        return self.run.state().shards[index]


def _as_status(parts: Parts, index: int, refusal: FleetRequestRefused) -> Exception:
    if not 0 <= index < len(parts.shards):
        return Unknown(f"there is no shard {index}: the fleet has {len(parts.shards)}")
    return NotNow(str(refusal))
