"""The snapshot pump: saves the rollout side between trainer checkpoints."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from asyncrl_runtime.ports.checkpoints import CheckpointFailed, SnapshotStore
from asyncrl_runtime.pumps.checkpoint import Checkpointer
from asyncrl_runtime.pumps.observer import Observer
from asyncrl_runtime.pumps.wakeup import BarrierTimeout

Reason = Literal[
    "saved",
    "no_mutation",
    "anchor_not_durable",
    "trainer_checkpoint_in_progress",
    "disabled_for_sampler",
    "barrier_timeout",
    "save_failed",
]


@dataclass(slots=True, kw_only=True, eq=False)
class SnapshotPump:
    """Attempts a snapshot per interval; every attempt is told with its reason, and none ends the run.

    Takes:      the controller's state and the rows, in the same cut as a trainer checkpoint
    Gives:      a snapshot on top of the newest trainer checkpoint, or of the bootstrap before the first
    Waits for:  its interval; never for a trainer checkpoint
    """

    store: SnapshotStore
    checkpointer: Checkpointer
    observer: Observer
    interval_seconds: float | None
    """None: only where one is asked for."""

    keep_latest: int
    attempts: Counter[str] = field(default_factory=Counter, init=False)
    """By reason."""

    _saved_at: float | None = field(default=None, init=False)
    _saved_mutation: tuple[Path, int] | None = field(default=None, init=False)
    """Anchor and mutation version of the last committed snapshot."""

    async def run(self) -> None:
        """Attempt until cancelled; an interval is a cadence of attempts, not a promise (SC-9.50)."""
        if self.interval_seconds is None:
            return
        while True:
            await asyncio.sleep(self.interval_seconds)
            await self.attempt()

    async def attempt(self, *, force: bool = False) -> Reason:
        """Try once. With `force` also where nothing has changed since the last one."""
        began = asyncio.get_running_loop().time()
        facts: dict[str, object] = {}
        reason, problem = await self._attempt(facts, force=force)
        seconds = asyncio.get_running_loop().time() - began
        self.attempts[reason] += 1
        if problem:
            facts["problem"] = problem
        self.observer.event("snapshot_attempt", reason=reason, seconds=round(seconds, 4), **facts)
        return reason

    def gauges(self) -> dict[str, float]:
        """Numbers of the watchdog's tick."""
        values: dict[str, float] = {
            f"checkpoint/snapshot_attempts_total/{reason}": count for reason, count in self.attempts.items()
        }
        durable = [t for t in (self._saved_at, self.checkpointer.saved_at) if t is not None]
        if durable:
            now = asyncio.get_running_loop().time()
            values["checkpoint/seconds_since_last_durable_snapshot"] = now - max(durable)
        return values

    async def _attempt(self, facts: dict[str, object], *, force: bool) -> tuple[Reason, str]:
        saver = self.checkpointer
        if not saver.recovers_rollouts or not saver.sampler.supports_training_claims:
            return "disabled_for_sampler", ""
        if saver.lock.locked():
            return "trainer_checkpoint_in_progress", ""
        async with saver.lock:
            anchor = self._anchor()
            if anchor is None:
                return "anchor_not_durable", ""
            if not force and self._saved_mutation == (anchor, saver.barrier.version):
                return "no_mutation", ""
            try:
                async with asyncio.timeout(saver.settings.timeout_seconds):
                    await self._save(anchor, facts)
            except BarrierTimeout as error:
                return "barrier_timeout", str(error)
            except TimeoutError:
                return "save_failed", f"no end within {saver.settings.timeout_seconds:g} s"
            except (CheckpointFailed, OSError) as error:
                return "save_failed", str(error)
        return "saved", ""

    def _anchor(self) -> Path | None:
        """What a snapshot of now belongs to, if that is durable (SC-9.51)."""
        saver = self.checkpointer
        if saver.progress.steps == 0:
            return self.store.anchor_of(None)
        if saver.bundle is None or saver.bundle.step != saver.progress.steps:
            return None
        return self.store.anchor_of(saver.bundle)

    async def _save(self, anchor: Path, facts: dict[str, object]) -> None:
        saver, loop = self.checkpointer, asyncio.get_running_loop()
        staged = await asyncio.to_thread(self.store.stage, anchor)
        async with saver.barrier.cut(timeout_seconds=saver.settings.barrier_timeout_seconds) as token:
            paused = loop.time()
            cut, finish = await saver.cut(token, staged)
            mutation = saver.barrier.version
            held = loop.time() - paused
        native = loop.time()
        rows = await finish() if finish is not None else {}
        facts.update(
            mutation_version=mutation,
            ledger_groups=len(cut.ledger["entries"]),  # type: ignore[arg-type]
            replay_rows=sum(len(group.sample_ids) for group in cut.index),
            staging_rows=saver.staging_rows,
            unreferenced_staging_rows=saver.unreferenced_staging_rows,
            rolled_back_groups=cut.rolled_back_groups,
            native_save_seconds=round(loop.time() - native, 4),
            barrier_hold_seconds=round(held, 4),
            bytes=rows.get("bytes", 0),
        )
        stored = dict(facts)
        await asyncio.to_thread(saver.write_cut, staged, cut, {})
        published = await asyncio.to_thread(self.store.publish, anchor, staged, stored)
        self._saved_mutation, self._saved_at = (anchor, mutation), loop.time()
        facts["path"] = f"{anchor.name}/{published.path.name}"
        bootstrap = self.store.anchor_of(None)
        if anchor != bootstrap:
            await asyncio.to_thread(self.store.prune, anchor, self.keep_latest)
            await asyncio.to_thread(self.store.prune, bootstrap, 0)
