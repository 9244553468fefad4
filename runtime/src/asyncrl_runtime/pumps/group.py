"""One prompt group on its way: attempts, failures, commit, or what becomes of it instead."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from asyncrl_runtime.core.drops import DropPolicy, FailureBudgets, StepAccounts, drop
from asyncrl_runtime.core.errors import PromptFailed, RunError
from asyncrl_runtime.core.failures import backoff_seconds, is_infra
from asyncrl_runtime.core.ledger import LedgerEntry, PromptLedger
from asyncrl_runtime.core.records import GroupId, GroupRecord, Prompt
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.samplers.base import Sampler, is_gated
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.prompts import PromptSource
from asyncrl_runtime.pumps.attempts import Attempt
from asyncrl_runtime.pumps.commit import Committer
from asyncrl_runtime.pumps.rollouts import RolloutManager
from asyncrl_runtime.pumps.wakeup import Barrier, RolloutGate

Spent = Literal["infrastructure failures", "data failures"]


class Observer(Protocol):
    """Whoever writes down what happens."""

    def event(self, kind: str, **facts: object) -> None:
        """Something happened to a prompt, a shard, a refit or a checkpoint."""
        ...


@dataclass(slots=True, kw_only=True)
class RolloutCounters:
    """Cumulative counts over the process (SC-8.31); those with reasons count per kind of failure."""

    committed: int = 0
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
            except Exception as failure:  # noqa: BLE001 - what nobody knows counts as the prompt's (SC-8.20)
                if not await self._after_failure(dispatch, failure, substituted):
                    return
                continue
            if record is None:
                if await self._relaunched(dispatch.entry):
                    continue
                return
            if await self._push(dispatch.entry, attempt, record, end_weight=self.versions.stamp):
                return

    # ── an attempt ──────────────────────────────────────────────────────────────────────────────────

    async def _begin_attempt(self, dispatch: Dispatch) -> Attempt:
        """Wait at the gate; stamp, reserve and register in one await-free block (SC-5.20)."""
        entry = dispatch.entry
        while True:
            await self.gate.until_open()
            async with self.barrier.mutation():
                if not self.gate.is_open:
                    continue
                number = self.ledger.begin_attempt(entry, self.versions.stamp)
                slot = self.buffer.reserve(
                    entry.group_id,
                    entry.prompt,
                    start_weight=self.versions.stamp,
                    target_step=entry.target_step,
                    attempt=number,
                )
                rollout = self.rollouts.roll_group(
                    dispatch.prompt, group_id=entry.group_id, attempt=number, generations=self.generations
                )
                attempt = Attempt(slot, asyncio.ensure_future(rollout))
                self.inflight[entry.group_id] = attempt
                return attempt

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
            if self.discard_group(record):
                self._discard(entry, record)
                return True
            try:
                meta = await self.committer.commit(
                    token, slot, record, end_weight=end_weight, straddled=attempt.straddled
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
        self.counters.committed += 1
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
            return False

    # ── failures ────────────────────────────────────────────────────────────────────────────────────

    async def _after_failure(
        self, dispatch: Dispatch, failure: Exception, substituted: Callable[[GroupId, GroupId], None]
    ) -> bool:
        """Charge a failed attempt (SC-5.24); whether the dispatch goes on, with its prompt or a spare."""
        if getattr(failure, "uncharged", False):
            return True
        if is_infra(failure):
            dispatch.infra += 1
            if dispatch.infra < self.retry.max_infra_attempts:
                await self._back_off(dispatch, failure)
                return True
            return await self._give_up(dispatch, failure, "infrastructure failures", substituted)
        dispatch.data += 1
        self.counters.data_failed[kind_of(failure)] += 1
        if dispatch.data < self.retry.max_data_attempts:
            self.counters.data_retried[kind_of(failure)] += 1
            self._tell("prompt_retried", dispatch, failure)
            return True
        return await self._give_up(dispatch, failure, "data failures", substituted)

    async def _back_off(self, dispatch: Dispatch, failure: Exception) -> None:
        self.counters.redispatched[kind_of(failure)] += 1
        self._tell("prompt_redispatched", dispatch, failure)
        await asyncio.sleep(
            backoff_seconds(
                dispatch.infra,
                base_seconds=self.retry.backoff_base_seconds,
                max_seconds=self.retry.max_backoff_seconds,
            )
        )

    async def _give_up(
        self,
        dispatch: Dispatch,
        failure: Exception,
        spent: Spent,
        substituted: Callable[[GroupId, GroupId], None],
    ) -> bool:
        """Drop a prompt within the budgets (SC-8.27, 8.28); whether a spare goes on in its slot.

        Raises PromptFailed when the budget is empty.
        """
        entry = dispatch.entry
        infra = spent == "infrastructure failures"
        async with self.barrier.mutation():
            if not (self.budgets.spend_on_infra() if infra else self.budgets.spend_on_data()):
                raise self._failed(dispatch, failure, spent) from failure
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
        (self.counters.infra_dropped if infra else self.counters.data_skipped)[kind_of(failure)] += 1
        self._tell_drop(entry, dispatch.prompt, failure, spare)
        if spare is None:
            return False
        (dispatch.prompt,) = await self.source.fetch([spare.prompt])
        return True

    def _failed(self, dispatch: Dispatch, failure: Exception, spent: Spent) -> PromptFailed:
        section = "spec.asyncRL.rolloutFailure"
        if spent == "infrastructure failures":
            attempts, retries = dispatch.infra, "maxInfraAttemptsPerPrompt"
            budget, bound = "maxConsecutiveDroppedPrompts", self.budgets.max_consecutive
        else:
            attempts, retries = dispatch.data, "maxDataAttemptsPerPrompt"
            budget, bound = "maxSkippedPrompts", self.budgets.max_skipped
        return PromptFailed(
            dispatch.prompt.label,
            attempts,
            spent,
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
