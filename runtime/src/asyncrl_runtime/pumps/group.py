"""One prompt group on its way: attempts, failures, commit, or what becomes of it instead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from asyncrl_runtime.core.drops import DropPolicy, FailureBudgets, StepAccounts, drop
from asyncrl_runtime.core.errors import DataFailure, PromptFailed, RunError
from asyncrl_runtime.core.failures import backoff_seconds, is_infra
from asyncrl_runtime.core.ledger import LedgerEntry, PromptLedger
from asyncrl_runtime.core.records import GroupId, GroupRecord, Prompt, SampleId
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.samplers.base import Sampler, is_gated
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.prompts import PromptSource
from asyncrl_runtime.pumps.attempts import Attempt
from asyncrl_runtime.pumps.capture import Spent, TokenCapture
from asyncrl_runtime.pumps.commit import Committer
from asyncrl_runtime.pumps.observer import Observer, RolloutCounters
from asyncrl_runtime.pumps.rollouts import RolloutManager
from asyncrl_runtime.pumps.wakeup import Barrier, RolloutGate


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Attempts per prompt (SC-2.70 to 2.73)."""

    max_infra_attempts: int
    max_data_attempts: int
    backoff_base_seconds: float
    max_backoff_seconds: float


@dataclass(slots=True, eq=False)
class Dispatch:
    """A launched prompt; a spare may take its place, with its permits."""

    entry: LedgerEntry
    prompt: Prompt
    infra: int = 0
    data: int = 0

    @property
    def group_id(self) -> GroupId:
        """Of the prompt that holds the permits now."""
        return self.entry.group_id


@dataclass(eq=False)
class TooFewValidRows(DataFailure):
    """A finished group has too little to train on."""

    prompt: str
    valid: int
    rows: int
    fraction: float

    def __str__(self) -> str:
        return (
            f"{self.valid} of {self.rows} completions of prompt {self.prompt} count in the loss, below "
            f"spec.asyncRL.rolloutFailure.minValidRowFraction {self.fraction:g}"
        )


@dataclass(slots=True, kw_only=True, eq=False)
class GroupRunner:
    """Carries one launched prompt to its end.

    Every attempt waits for the gate, stamps and registers without an await after it, rolls out, and then
    commits. A failed attempt leaves no slot. A prompt whose attempts are spent is dropped within the
    budgets, and a spare may go on in its slot; beyond them its failure ends the run.
    """

    source: PromptSource
    ledger: PromptLedger
    buffer: ReplayBuffer
    sampler: Sampler
    versions: Versions
    rollouts: RolloutManager
    committer: Committer
    gate: RolloutGate
    barrier: Barrier
    observer: Observer
    retry: RetryPolicy
    accounts: StepAccounts
    budgets: FailureBudgets
    drops: DropPolicy
    generations: int
    requeue_aborted: bool
    capture: TokenCapture | None = None
    """Finishes siblings one by one and keeps what is finished; None: a group succeeds or fails as a whole."""

    min_valid_row_fraction: float = 0.0
    """With token capture: a group with a smaller share of rows for the loss is given up (SC-5.34)."""

    discard_group: Callable[[GroupRecord], bool] = lambda record: False
    """Dynamic sampling: whether a finished group teaches nothing and is discarded before commit."""

    inflight: dict[GroupId, Attempt] = field(default_factory=dict, init=False)
    counters: RolloutCounters = field(default_factory=RolloutCounters, init=False)

    async def run(self, dispatch: Dispatch, *, substituted: Callable[[GroupId, GroupId], None]) -> None:
        """Return when the group is committed, discarded or dropped.

        `substituted` hears, in the block that does it, that a spare took over the permits of a group.
        """
        while True:
            attempt = await self._begin_attempt(dispatch)
            try:
                record = await self._finish_rollout(attempt)
            except RunError:
                raise
            except Spent as spent:
                if not await self._give_up(dispatch, spent.failure, substituted):
                    return
                continue
            except Exception as failure:  # noqa: BLE001 - what nobody knows counts as the prompt's (SC-8.20)
                if not await self._after_failure(dispatch, failure, substituted):
                    return
                continue
            if record is None:
                if await self._relaunched(dispatch.entry):
                    continue
                return
            too_few = self._too_few_valid_rows(dispatch.prompt, record)
            if too_few is not None:
                self.buffer.remove(dispatch.group_id)
                self.counters.data_failed[kind_of(too_few)] += 1
                if not await self._give_up(dispatch, too_few, substituted):
                    return
                continue
            if await self._push(dispatch.entry, attempt, record, end_weight=self.versions.stamp):
                return

    # ── an attempt ──────────────────────────────────────────────────────────────────────────────────

    async def _begin_attempt(self, dispatch: Dispatch) -> Attempt:
        """Wait at the gate; stamp, reserve and register in one await-free block (SC-5.20)."""
        entry, capture = dispatch.entry, self.capture
        while True:
            await self.gate.until_open()
            async with self.barrier.mutation():
                if capture is not None and capture.must_start_over(entry):
                    await capture.discard(entry)
                if not self.gate.is_open:
                    continue
                if capture is not None:
                    capture.prepare(entry, dispatch.prompt)
                stamp, oldest = self.versions.stamp, entry.oldest_sealed
                number = self.ledger.begin_attempt(entry, stamp)
                slot = self.buffer.reserve(
                    entry.group_id,
                    entry.prompt,
                    start_weight=stamp if oldest is None else min(stamp, oldest),
                    target_step=entry.target_step,
                    attempt=number,
                )
                attempt = Attempt(slot, asyncio.ensure_future(self._rollout(dispatch, number)))
                self.inflight[entry.group_id] = attempt
                return attempt

    def _rollout(self, dispatch: Dispatch, attempt: int) -> Awaitable[GroupRecord]:
        if self.capture is not None:
            return self.capture.roll(
                self.rollouts,
                dispatch.entry,
                dispatch.prompt,
                attempt,
                lambda failure: self._charge(dispatch, failure),
            )
        return self.rollouts.roll_group(
            dispatch.prompt, group_id=dispatch.group_id, attempt=attempt, generations=self.generations
        )

    def _too_few_valid_rows(self, prompt: Prompt, record: GroupRecord) -> TooFewValidRows | None:
        valid, bound = self.committer.valid_rows(record), self.min_valid_row_fraction
        if valid >= bound * self.generations:
            return None
        return TooFewValidRows(prompt.label, valid, self.generations, bound)

    async def _finish_rollout(self, attempt: Attempt) -> GroupRecord | None:
        """Await the rollout; None if it was aborted. Unregistered, and without a slot unless it succeeded."""
        group_id = attempt.slot.group_id
        finished = False
        try:
            await attempt.ended.wait()
            if attempt.aborted:
                return None
            record = attempt.task.result()
            finished = True
            return record
        except asyncio.CancelledError:
            attempt.task.cancel()
            await asyncio.gather(attempt.task, return_exceptions=True)
            raise
        finally:
            self.inflight.pop(group_id, None)
            if not finished and attempt.slot.live:
                self.buffer.remove(group_id)

    async def _push(
        self, entry: LedgerEntry, attempt: Attempt, record: GroupRecord, *, end_weight: int
    ) -> bool:
        """Commit a finished group, or discard one that teaches nothing; False if the slot was another's."""
        slot = attempt.slot
        async with self.barrier.mutation() as token:
            staging = entry.staging
            if self.discard_group(record):
                self._discard(entry, record)
                await self._clear(staging)
                return True
            try:
                meta = await self.committer.commit(
                    token,
                    slot,
                    record,
                    end_weight=end_weight,
                    straddled=attempt.straddled,
                    start_weights=tuple(done.start_version for _, done in sorted(entry.sealed.items())),
                )
            except BaseException:
                if slot.live:
                    self.buffer.remove(slot.group_id)
                raise
            if meta is None:
                return False
            self.ledger.commit(entry.group_id)
            self.budgets.committed()
            if entry.replacements and meta.target_step is not None:
                self.accounts.replaced[meta.target_step] += 1
            await self._clear(staging)
        self.counters.committed += 1
        self.counters.committed_tokens += meta.generated_tokens
        self.observer.event("group_committed", group=meta.group_id, record=record, meta=meta)
        return True

    def _discard(self, entry: LedgerEntry, record: GroupRecord) -> None:
        """A group without spread is lost; a gated sampler is owed another one (SC-5.49)."""
        self.buffer.remove(entry.group_id)
        self.ledger.discard(entry.group_id, "filtered")
        if is_gated(self.sampler):
            self.ledger.owe(entry.target_step)
        self.counters.filtered += 1
        self.counters.wasted_tokens["filtered"] += sum(c.generated_tokens for c in record.completions)
        self.observer.event("prompt_filtered", prompt=record.prompt.label, group=entry.group_id)

    async def _relaunched(self, entry: LedgerEntry) -> bool:
        """What becomes of an aborted prompt (SC-5.39): on under its stamp, or discarded."""
        gated = entry.target_step is not None or is_gated(self.sampler)
        async with self.barrier.mutation():
            if gated or (self.requeue_aborted and not entry.relaunched):
                self.ledger.relaunch(entry)
                self.counters.relaunched += 1
                return True
            self.ledger.discard(entry.group_id, "aborted")
            await self._clear(entry.staging)
            return False

    async def _clear(self, staging: list[SampleId]) -> None:
        """Forget staging rows of a group that is over. The caller holds the barrier's shared side."""
        if staging and self.capture is not None:
            await self.capture.clear(staging)
        elif staging:
            await self.committer.plane.clear(staging)

    # ── failures ────────────────────────────────────────────────────────────────────────────────────

    async def _after_failure(
        self, dispatch: Dispatch, failure: Exception, substituted: Callable[[GroupId, GroupId], None]
    ) -> bool:
        """Charge a failed attempt (SC-5.24); whether the dispatch goes on, with its prompt or a spare."""
        if getattr(failure, "uncharged", False):
            return True
        delay = self._charge(dispatch, failure)
        if delay is None:
            return await self._give_up(dispatch, failure, substituted)
        await asyncio.sleep(delay)
        return True

    def _charge(self, dispatch: Dispatch, failure: Exception) -> float | None:
        """Count a failure against its prompt's attempts; seconds to back off, None when they are spent."""
        kind = kind_of(failure)
        if is_infra(failure):
            dispatch.infra += 1
            if dispatch.infra >= self.retry.max_infra_attempts:
                return None
            self.counters.redispatched[kind] += 1
            self._tell("prompt_redispatched", dispatch, failure)
            return backoff_seconds(
                dispatch.infra,
                base_seconds=self.retry.backoff_base_seconds,
                max_seconds=self.retry.max_backoff_seconds,
            )
        dispatch.data += 1
        self.counters.data_failed[kind] += 1
        if dispatch.data >= self.retry.max_data_attempts:
            return None
        self.counters.data_retried[kind] += 1
        self._tell("prompt_retried", dispatch, failure)
        return 0.0

    async def _give_up(
        self,
        dispatch: Dispatch,
        failure: Exception,
        substituted: Callable[[GroupId, GroupId], None],
    ) -> bool:
        """Drop a prompt within the budgets (SC-8.27, 8.28); whether a spare goes on in its slot.

        Raises PromptFailed when the budget is empty.
        """
        entry = dispatch.entry
        infra = is_infra(failure)
        async with self.barrier.mutation():
            if not (self.budgets.spend_on_infra() if infra else self.budgets.spend_on_data()):
                raise self._failed(dispatch, failure) from failure
            spare = drop(
                entry,
                ledger=self.ledger,
                buffer=self.buffer,
                accounts=self.accounts,
                policy=self.drops,
                trainer_version=self.versions.trainer,
                gated=is_gated(self.sampler),
            )
            if spare is not None:
                self.buffer.hand_over(entry.group_id, spare.group_id)
                substituted(entry.group_id, spare.group_id)
                dispatch.entry, dispatch.infra, dispatch.data = spare, 0, 0
            await self._clear(entry.staging)
        (self.counters.infra_dropped if infra else self.counters.data_skipped)[kind_of(failure)] += 1
        self._tell_drop(entry, dispatch.prompt, failure, spare)
        if spare is None:
            return False
        (dispatch.prompt,) = await self.source.fetch([spare.prompt])
        return True

    def _failed(self, dispatch: Dispatch, failure: Exception) -> PromptFailed:
        section = "spec.asyncRL.rolloutFailure"
        if is_infra(failure):
            attempts, kind, retries = dispatch.infra, "infrastructure failures", "maxInfraAttemptsPerPrompt"
            budget, bound = "maxConsecutiveDroppedPrompts", self.budgets.max_consecutive
        else:
            attempts, kind, retries = dispatch.data, "data failures", "maxDataAttemptsPerPrompt"
            budget, bound = "maxSkippedPrompts", self.budgets.max_skipped
        return PromptFailed(
            dispatch.prompt.label,
            attempts,
            kind,
            f"{section}.{retries}",
            f"{section}.{budget}",
            bound,
            _text(failure),
        )

    def _tell(self, event: str, dispatch: Dispatch, failure: Exception) -> None:
        self.observer.event(
            event,
            prompt=dispatch.prompt.label,
            group=dispatch.group_id,
            reason=_text(failure),
            kind_of_failure=kind_of(failure),
        )

    def _tell_drop(
        self, entry: LedgerEntry, prompt: Prompt, failure: Exception, spare: LedgerEntry | None
    ) -> None:
        passed = entry.target_step is not None and entry.target_step < self.versions.trainer
        self.observer.event(
            "prompt_dropped",
            prompt=prompt.label,
            group=entry.group_id,
            reason=_text(failure),
            kind_of_failure=kind_of(failure),
            target_step=entry.target_step,
            replaced_by=spare.group_id if spare else None,
            replacement_step=spare.target_step if spare else None,
            **({"invariant_violation": "its step was already closed"} if passed else {}),
        )


def kind_of(failure: Exception) -> str:
    """The reason under which failures are counted: the class of the error, a bounded set of words."""
    return type(failure).__name__


def _text(failure: Exception) -> str:
    return str(failure) or type(failure).__name__
