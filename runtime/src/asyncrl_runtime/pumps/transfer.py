"""One weight transfer until it has landed: membership, bounds, repair of what failed (SC-6.4 to 6.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from asyncrl_runtime.core.errors import (
    DeadlinePassed,
    InfraFailure,
    RefitAborted,
    RefitFailed,
    RefitIncomplete,
    WorkerDied,
)
from asyncrl_runtime.ports.weight_sync import Reconciled, TransferReport, WeightSync
from asyncrl_runtime.pumps.busy import Busy
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.probe import ask

if TYPE_CHECKING:
    from asyncrl_runtime.pumps.observer import Observer

T = TypeVar("T")
_REFUSALS = {
    "unowned": "its transport has no membership that could be built anew",
    "unchanged": "its transport built nothing anew",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """Bounds of a transfer (SC-2.120 to 2.122)."""

    deadline_seconds: float | None
    """The transport's own; None: neither it nor the controller has one."""

    unwind_grace_seconds: float
    max_retries: int
    recompute_kv_cache: bool
    ping_seconds: float
    """Longest answer in the condemn round."""

    @property
    def bound_seconds(self) -> float | None:
        """The controller's own wait (SC-6.41)."""
        return None if self.deadline_seconds is None else self.deadline_seconds + self.unwind_grace_seconds


@dataclass(slots=True, kw_only=True)
class Landed:
    """A transfer that landed."""

    report: TransferReport
    excluded: tuple[int, ...]
    """Shards that were left out."""

    rebuilt: bool
    retries: int
    reconcile_seconds: float
    transfer_seconds: float
    invalidate_seconds: float


@dataclass(slots=True, kw_only=True)
class TransferCounters:
    """Cumulative over the process (SC-12.56)."""

    landed: int = 0
    failures: int = 0
    retries: int = 0
    rebuilds: int = 0
    deadline_fired: int = 0
    excluded_shards: int = 0
    """Of the last one."""


@dataclass(slots=True, kw_only=True, eq=False)
class WeightTransfer:
    """Carries the trainer's parameters to every shard that is there.

    A receiver that did not acknowledge leaves service before anything else happens; then every shard is
    asked whether it is there, the transport is built anew without the silent, and the transfer repeated.
    """

    sync: WeightSync
    fleet: Fleet
    observer: Observer
    settings: TransferSettings
    busy: Busy = field(default_factory=Busy)
    counters: TransferCounters = field(default_factory=TransferCounters, init=False)
    _receivers: dict[int, int] = field(default_factory=dict, init=False)
    """Participants and their engines, as they were when membership settled (SC-6.34)."""

    async def land(self, version: int, *, still_valid: Callable[[], bool] = lambda: True) -> Landed | None:
        """Transfer, repairing up to `max_retries` times; None if it landed and was no longer valid then.

        Raises:
            RefitAborted: it did not land; `RefitFailed` with every cause chained, if it was repeated.
            FleetExhausted: there is no shard that could receive.
        """
        failures: list[RefitAborted] = []
        try:
            while True:
                try:
                    return await self._attempt(version, failures, still_valid)
                except RefitFailed:
                    raise
                except RefitAborted as failure:
                    self._after_failure(version, failure, failures)
                await self._condemn()
        finally:
            self.fleet.close_recovery()

    async def _attempt(
        self, version: int, failures: Sequence[RefitAborted], still_valid: Callable[[], bool]
    ) -> Landed | None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.busy.for_seconds(self.settings.bound_seconds)
        absent = await self._settle(failures)
        reconciled: Reconciled = await self._bounded(
            version, self.sync.reconcile(absent, force=bool(failures))
        )
        if failures and reconciled != "rebuilt":
            raise RefitFailed(
                version, f"{failures[-1].problem}, and {_REFUSALS[reconciled]}", len(failures)
            ) from failures[-1]
        self.counters.rebuilds += reconciled == "rebuilt"
        settled = loop.time()
        report = await self._transfer(version)
        landed = loop.time()
        if not still_valid():
            return None
        if self.fleet.ledger is not None:
            self.fleet.ledger.landed(version, self._unchanged_receivers())
            self.fleet.changed.notify()
        if self.settings.recompute_kv_cache:
            await self._bounded(version, self._invalidate(version, report.participants))
        self.counters.landed += 1
        self.counters.excluded_shards = len(absent)
        return Landed(
            report=report,
            excluded=tuple(sorted(absent)),
            rebuilt=reconciled == "rebuilt",
            retries=len(failures),
            reconcile_seconds=settled - began,
            transfer_seconds=landed - settled,
            invalidate_seconds=loop.time() - landed,
        )

    # ── membership ──────────────────────────────────────────────────────────────────────────────────

    async def _settle(self, failures: Sequence[RefitAborted]) -> frozenset[int]:
        """Capture who takes part, once somebody can; the shards that do not."""
        ledger = self.fleet.ledger
        while ledger is not None and not ledger.present:
            error = ledger.exhausted()
            if error is not None:
                raise error from (failures[-1] if failures else None)
            await self.fleet.changed.since(self.fleet.changed.count)
        absent = self.fleet.absent
        self._receivers = {
            index: self.fleet.engine(index) for index in range(len(self.fleet.shards)) if index not in absent
        }
        return absent

    def _unchanged_receivers(self) -> list[int]:
        """Without those whose engine is another one by now, with weights from disk (SC-6.35, 14.65)."""
        return [index for index, engine in self._receivers.items() if self.fleet.engine(index) == engine]

    # ── the transfer ────────────────────────────────────────────────────────────────────────────────

    async def _transfer(self, version: int) -> TransferReport:
        self.fleet.on_death = lambda shard: self.sync.stand_down() if shard in self._receivers else None
        try:
            return await self._bounded(version, self.sync.sync_weights(version))
        except RefitIncomplete as failure:
            # Unwatched shards that end are simply left out: their requests fail by themselves.
            missing = self._receivers.keys() - set(failure.acknowledged)
            if self.fleet.ledger is not None or not failure.acknowledged or missing - set(failure.died):
                raise
            return TransferReport(version, failure.acknowledged, 0, 0.0)
        finally:
            self.fleet.on_death = None

    async def _invalidate(self, version: int, participants: Sequence[int]) -> None:
        """Recompute caches of those that took part; one that cannot is no longer to be trusted (SC-6.61)."""
        calls = (self.fleet.shards[index].invalidate_kv_cache() for index in participants)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        failed = {
            index: answer
            for index, answer in zip(participants, answers, strict=True)
            if isinstance(answer, BaseException)
        }
        if self.fleet.ledger is None:
            failed = {index: error for index, error in failed.items() if not isinstance(error, WorkerDied)}
        if not failed:
            return
        for error in failed.values():
            if not isinstance(error, InfraFailure | RefitAborted):
                raise error
        raise RefitIncomplete(
            version,
            "; ".join(f"the cache of shard {index} was not recomputed: {e}" for index, e in failed.items()),
            acknowledged=tuple(index for index in participants if index not in failed),
            died=tuple(index for index, error in failed.items() if isinstance(error, WorkerDied)),
        ) from next(iter(failed.values()))

    async def _bounded(self, version: int, work: Coroutine[None, None, T]) -> T:
        """Await `work` for deadline and unwind grace; later it is abandoned (SC-6.41).

        It is cancelled and not waited for: whatever it does then, only its own result is lost.
        """
        task = asyncio.ensure_future(work)
        seconds = self.settings.bound_seconds
        try:
            await asyncio.wait([task], timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        task.cancel()
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise RefitAborted(
            version,
            f"no end within {seconds:g} s (spec.asyncRL.refit.deadlineSeconds plus unwindGraceSeconds)",
        ) from TimeoutError()

    # ── repair ──────────────────────────────────────────────────────────────────────────────────────

    def _after_failure(self, version: int, failure: RefitAborted, failures: list[RefitAborted]) -> None:
        """Take out whoever may hold a mixture, at once; raise after the last attempt (SC-6.49, 6.53)."""
        failure.version = version
        failures.append(failure)
        self.counters.failures += 1
        self.counters.deadline_fired += isinstance(failure.__cause__, TimeoutError | DeadlinePassed)
        whole = failure.acknowledged if isinstance(failure, RefitIncomplete) else ()
        ledger = self.fleet.ledger
        if ledger is not None:
            self.fleet.open_recovery()
            for index in failure.died if isinstance(failure, RefitIncomplete) else ():
                self.fleet.died(index, failure.problem, engine=self._receivers[index])
            for index in self._receivers:
                if index not in whole:
                    ledger.partial(index, f"the refit to version {version} failed: {failure.problem}")
        again = ledger is not None and len(failures) <= self.settings.max_retries
        self.observer.event(
            "refit_failed", version=version, reason=failure.problem, acknowledged=list(whole), repeated=again
        )
        if not again:
            raise _chained(version, failures)
        self.counters.retries += 1

    async def _condemn(self) -> None:
        """Ask every process of every shard that is not absent; the silent are dead (SC-7.55)."""
        ledger = self.fleet.ledger
        assert ledger is not None
        seconds = self.settings.ping_seconds
        engines = {index: self.fleet.engine(index) for index in ledger.present}
        answers = await ask(self.fleet, engines, lambda shard: shard.ping(), seconds)
        for index, answer in answers.items():
            if isinstance(answer, WorkerDied):
                self.fleet.died(index, str(answer), engine=engines[index])
            elif isinstance(answer, BaseException) and self.fleet.engine(index) == engines[index]:
                ledger.condemn(index, f"asked after a failed refit: {answer}")


def _chained(version: int, failures: Sequence[RefitAborted]) -> RefitAborted:
    """The last failure's end of the run, with every earlier one as a cause of the next."""
    if len(failures) == 1:
        return failures[0]
    for earlier, later in pairwise(failures):
        link: BaseException = later
        while link.__cause__ is not None and link.__cause__ is not earlier:
            link = link.__cause__
        link.__cause__ = earlier
    error = RefitFailed(version, "; then ".join(f.problem for f in failures), len(failures))
    error.__cause__ = failures[-1]
    return error
