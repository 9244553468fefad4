"""The rollout pump: keeps the generation fleet busy."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from asyncrl_runtime.core.dataloader import DataCursor
from asyncrl_runtime.core.errors import PromptFailed, RolloutFailure
from asyncrl_runtime.core.failures import backoff_seconds, is_infra
from asyncrl_runtime.core.ledger import LedgerEntry, PromptLedger
from asyncrl_runtime.core.records import GroupMeta, GroupRecord, Prompt
from asyncrl_runtime.core.replay import ReplayBuffer, Slot
from asyncrl_runtime.core.restore import entries_in_order
from asyncrl_runtime.core.samplers.base import Sampler
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.prompts import PromptSource
from asyncrl_runtime.pumps.commit import Committer
from asyncrl_runtime.pumps.rollouts import RolloutManager, describe
from asyncrl_runtime.pumps.wakeup import Barrier, RolloutGate, Wakeup


class Observer(Protocol):
    """Whoever writes down what happens."""

    def event(self, kind: str, **facts: object) -> None:
        """Something happened to a prompt, a shard, a refit or a checkpoint."""
        ...


@dataclass(slots=True, eq=False)
class Attempt:
    """A rollout that is registered in flight."""

    slot: Slot
    task: asyncio.Task[GroupRecord]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the task is done, or given up on."""

    aborted: bool = False
    straddled: bool = False

    def __post_init__(self) -> None:
        self.task.add_done_callback(lambda _: self.ended.set())


@dataclass(slots=True, kw_only=True)
class RolloutCounters:
    """Cumulative counts over the process (SC-8.31)."""

    committed: int = 0
    redispatched: int = 0
    data_retries: int = 0
    aborted: int = 0
    relaunched: int = 0
    detached: int = 0
    filtered: int = 0
    wasted_tokens: dict[str, int] = field(default_factory=dict)

    def copy(self) -> RolloutCounters:
        """The counts of now, to compare later ones with."""
        return replace(self, wasted_tokens=dict(self.wasted_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Attempts per prompt (SC-2.70 to 2.73)."""

    max_infra_attempts: int
    max_data_attempts: int
    backoff_base_seconds: float
    max_backoff_seconds: float


@dataclass(slots=True, kw_only=True, eq=False)
class RolloutPump:
    """Keeps the generation fleet busy.

    Takes:      prompts, in dispatch batches
    Gives:      one ready slot per prompt whose rollout succeeds
    Waits for:  the sampler's gate, room in the buffer and in flight, the rollout gate
    Woken by:   the train pump (`changed`), a refit (`gate`)
    """

    source: PromptSource
    cursor: DataCursor
    ledger: PromptLedger
    buffer: ReplayBuffer
    sampler: Sampler
    versions: Versions
    rollouts: RolloutManager
    committer: Committer
    gate: RolloutGate
    barrier: Barrier
    changed: Wakeup
    observer: Observer
    retry: RetryPolicy
    groups_per_step: int
    generations: int
    max_inflight_prompts: int
    requeue_aborted: bool
    discard_group: Callable[[GroupRecord], bool] = lambda record: False
    """Dynamic sampling: whether a finished group teaches nothing and is discarded before commit."""

    over_sampling_cap: Callable[[], tuple[int, int] | None] = lambda: None
    """(outstanding, cap) under an over-sampling ratio."""

    inflight: dict[str, Attempt] = field(default_factory=dict, init=False)
    counters: RolloutCounters = field(default_factory=RolloutCounters, init=False)
    data_state: Mapping[str, int] = field(init=False)
    """Loader position as of the last completed reservation; what a cut stores (SC-5.13)."""

    _backlog: deque[tuple[LedgerEntry, Prompt]] = field(default_factory=deque, init=False)
    """Prompts that are owned and not admitted."""

    _running: set[str] = field(default_factory=set, init=False)
    _dispatched_all: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.data_state = self.cursor.state()

    @property
    def exhausted(self) -> bool:
        """Every prompt is dispatched and settled (SC-1.38)."""
        return self._dispatched_all and not self._running

    @property
    def running(self) -> int:
        """Groups that hold an in-flight permit."""
        return len(self._running)

    async def run(self) -> None:
        """Return when every prompt of every epoch is dispatched and settled."""
        async with asyncio.TaskGroup() as tasks:
            await self._restored(tasks)
            while batch := await self._next_batch():
                await self._admit_and_launch(tasks, batch)
            self._dispatched_all = True
            self.changed.notify()

    # ── dispatch ────────────────────────────────────────────────────────────────────────────────────

    async def _next_batch(self) -> list[tuple[LedgerEntry, Prompt]]:
        """One step's worth of prompts; those that were taken and not admitted come first (SC-9.62)."""
        while len(self._backlog) < self.groups_per_step and await self._pull():
            pass
        if len(self._backlog) < self.groups_per_step:
            if self._backlog:
                self.observer.event("prompts_left_over", prompts=len(self._backlog))
            return []
        return [self._backlog.popleft() for _ in range(self.groups_per_step)]

    async def _pull(self) -> bool:
        """Take a batch from the dataset and own its prompts, as one mutation; False at the end (SC-5.12)."""
        async with self.barrier.mutation():
            refs = self.cursor.take()
            prompts = await self.source.fetch(refs) if refs else []
            self._backlog.extend(zip(self.ledger.reserve(refs), prompts, strict=True))
            self.data_state = self.cursor.state()
        return bool(refs)

    async def _restored(self, tasks: asyncio.TaskGroup) -> None:
        """Unfinished groups of the checkpoint go first, under their stamps, not admitted again (SC-5.11)."""
        entries = entries_in_order(self.ledger)
        prompts = await self.source.fetch([entry.prompt for entry in entries]) if entries else []
        owned = list(zip(entries, prompts, strict=True))
        self._backlog.extend(pair for pair in owned if pair[0].state == "reserved")
        for entry, prompt in owned:
            if entry.state != "reserved":
                await self._launch(tasks, entry, prompt)

    async def _admit_and_launch(
        self, tasks: asyncio.TaskGroup, batch: Sequence[tuple[LedgerEntry, Prompt]]
    ) -> None:
        admitted = False
        while not admitted:
            await self.changed.until(lambda: self.sampler.admissible(self.versions.trainer))
            async with self.barrier.mutation():
                if self.sampler.admissible(self.versions.trainer):
                    stamp = self.sampler.admit(self.versions.trainer)
                    self.ledger.admit([entry for entry, _ in batch], stamp)
                    admitted = True
        for entry, prompt in batch:
            await self._launch(tasks, entry, prompt)

    async def _launch(self, tasks: asyncio.TaskGroup, entry: LedgerEntry, prompt: Prompt) -> None:
        await self.changed.until(self._has_room)
        self.buffer.launch(entry.group_id)
        self._running.add(entry.group_id)
        task = tasks.create_task(self._generate_and_push(entry, prompt), name=f"rollout {entry.group_id}")
        task.add_done_callback(lambda _: self._settle(entry.group_id))

    def _has_room(self) -> bool:
        """Over-sampling check, capacity permit, in-flight permit (SC-5.14)."""
        cap = self.over_sampling_cap()
        return (
            (cap is None or cap[0] < cap[1])
            and self.buffer.free > 0
            and len(self._running) < self.max_inflight_prompts
        )

    def _settle(self, group_id: str) -> None:
        """Permits come back however the task ended, also if it never began."""
        self._running.discard(group_id)
        self.buffer.settle(group_id)
        self.changed.notify()

    # ── one group ───────────────────────────────────────────────────────────────────────────────────

    async def _generate_and_push(self, entry: LedgerEntry, prompt: Prompt) -> None:
        infra = data = 0
        while True:
            attempt = await self._begin_attempt(entry, prompt)
            try:
                record = await self._finish_rollout(attempt)
            except RolloutFailure as failure:
                if is_infra(failure):
                    infra += 1
                    await self._after_infra(entry, prompt, failure, infra)
                else:
                    data += 1
                    self._after_data(entry, prompt, failure, data)
                continue
            if record is None:
                if await self._relaunched(entry):
                    continue
                return
            if await self._push(entry, attempt, record, end_weight=self.versions.stamp):
                return

    async def _begin_attempt(self, entry: LedgerEntry, prompt: Prompt) -> Attempt:
        """Wait at the gate; stamp, reserve and register in one await-free block (SC-5.20)."""
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
                    prompt, group_id=entry.group_id, attempt=number, generations=self.generations
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
        """Commit a finished group, or discard one that teaches nothing."""
        slot = attempt.slot
        async with self.barrier.mutation() as token:
            if self.discard_group(record):
                self.buffer.remove(slot.group_id)
                self.ledger.discard(entry.group_id, "filtered")
                self.counters.filtered += 1
                self.waste("filtered", sum(c.generated_tokens for c in record.completions))
                self.observer.event("prompt_filtered", prompt=describe(record.prompt), group=entry.group_id)
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
        self.counters.committed += 1
        self._committed(meta, record)
        return True

    def _committed(self, meta: GroupMeta, record: GroupRecord) -> None:
        self.observer.event("group_committed", group=meta.group_id, record=record, meta=meta)

    def waste(self, cause: str, tokens: int) -> None:
        """Count generated tokens that nobody trains on."""
        self.counters.wasted_tokens[cause] = self.counters.wasted_tokens.get(cause, 0) + tokens

    async def _relaunched(self, entry: LedgerEntry) -> bool:
        """What becomes of an aborted prompt (SC-5.39): on under its stamp, or discarded."""
        gated = entry.target_step is not None or self.sampler.dispatch_index >= 0
        async with self.barrier.mutation():
            if gated or (self.requeue_aborted and not entry.relaunched):
                self.ledger.relaunch(entry)
                self.counters.relaunched += 1
                return True
            self.ledger.discard(entry.group_id, "aborted")
            return False

    async def _after_infra(
        self, entry: LedgerEntry, prompt: Prompt, failure: Exception, attempts: int
    ) -> None:
        setting = "spec.asyncRL.rolloutFailure.maxInfraAttemptsPerPrompt"
        if attempts >= self.retry.max_infra_attempts:
            raise PromptFailed(
                describe(prompt), attempts, "infrastructure failures", setting, str(failure)
            ) from failure
        self.counters.redispatched += 1
        self.observer.event(
            "prompt_redispatched", prompt=describe(prompt), group=entry.group_id, reason=str(failure)
        )
        await asyncio.sleep(
            backoff_seconds(
                attempts,
                base_seconds=self.retry.backoff_base_seconds,
                max_seconds=self.retry.max_backoff_seconds,
            )
        )

    def _after_data(self, entry: LedgerEntry, prompt: Prompt, failure: Exception, attempts: int) -> None:
        setting = "spec.asyncRL.rolloutFailure.maxDataAttemptsPerPrompt"
        if attempts >= self.retry.max_data_attempts:
            raise PromptFailed(
                describe(prompt), attempts, "data failures", setting, str(failure)
            ) from failure
        self.counters.data_retries += 1
        self.observer.event(
            "prompt_retried", prompt=describe(prompt), group=entry.group_id, reason=str(failure)
        )

    # ── aborts ──────────────────────────────────────────────────────────────────────────────────────

    async def abort_stale(self, *, grace_seconds: float) -> int:
        """Cancel the rollouts that can never be selected any more, and wait for their end (SC-5.35)."""
        return await self.abort(
            [
                attempt
                for attempt in self.inflight.values()
                if self.sampler.should_abort_inflight(attempt.slot.start_weight, self.versions.trainer)
            ],
            grace_seconds=grace_seconds,
        )

    async def abort(self, attempts: Sequence[Attempt], *, grace_seconds: float) -> int:
        """Cancel these attempts. One that does not end in time is detached: its late result is nobody's."""
        if not attempts:
            return 0
        for attempt in attempts:
            attempt.aborted = True
            attempt.task.cancel()
        _, stuck = await asyncio.wait([attempt.task for attempt in attempts], timeout=grace_seconds)
        self.counters.aborted += len(attempts)
        self.counters.detached += len(stuck)
        for attempt in attempts:
            attempt.ended.set()
        errors = [
            error
            for attempt in attempts
            if attempt.task.done()
            and not attempt.task.cancelled()
            and isinstance(error := attempt.task.exception(), Exception)
            and not isinstance(error, RolloutFailure)
        ]
        if errors:
            raise ExceptionGroup("rollouts failed while they were aborted", errors)
        await asyncio.sleep(0)
        return len(attempts)
