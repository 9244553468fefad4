"""The rollout pump: keeps the generation fleet busy."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from asyncrl_runtime.core.dataloader import DataCursor
from asyncrl_runtime.core.ledger import LedgerEntry, PromptLedger
from asyncrl_runtime.core.records import GroupId, Prompt
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.restore import entries_in_order
from asyncrl_runtime.core.samplers.base import Sampler
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.prompts import PromptSource
from asyncrl_runtime.pumps.attempts import Attempt, abort
from asyncrl_runtime.pumps.group import Dispatch, GroupRunner
from asyncrl_runtime.pumps.observer import Observer, RolloutCounters
from asyncrl_runtime.pumps.wakeup import Barrier, Wakeup

Owned = tuple[LedgerEntry, Prompt]


@dataclass(slots=True, kw_only=True, eq=False)
class RolloutPump:
    """Keeps the generation fleet busy.

    Takes:      prompts, in dispatch batches
    Gives:      one ready slot per prompt whose rollout succeeds
    Waits for:  the sampler's gate, room in the buffer and in flight
    Woken by:   the train pump and settling groups (`changed`)
    """

    source: PromptSource
    cursor: DataCursor
    ledger: PromptLedger
    buffer: ReplayBuffer
    sampler: Sampler
    versions: Versions
    barrier: Barrier
    changed: Wakeup
    observer: Observer
    groups: GroupRunner
    groups_per_step: int
    max_inflight_prompts: int
    over_sampling_cap: Callable[[], tuple[int, int] | None] = lambda: None
    """(outstanding, cap) under an over-sampling ratio."""

    stamping_known: bool = False
    """The sampler is known to stamp: only then are spares of use (SC-5.54)."""

    data_state: Mapping[str, int] = field(init=False)
    """Loader position as of the last completed reservation; what a cut stores (SC-5.13)."""

    _prompt_work: deque[Owned] = field(default_factory=deque, init=False)
    """Restored prompts that are owned and not admitted (SC-1.81)."""

    _running: set[GroupId] = field(default_factory=set, init=False)
    _data_ended: bool = field(default=False, init=False)
    _dispatched_all: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.data_state = self.cursor.state()

    @property
    def exhausted(self) -> bool:
        """Every prompt is dispatched and settled, and nothing is owed that a spare could serve (SC-1.38)."""
        return self._dispatched_all and not self._running and not self._owed_can_be_served

    @property
    def running(self) -> int:
        """Groups that hold an in-flight permit."""
        return len(self._running)

    @property
    def inflight(self) -> dict[GroupId, Attempt]:
        """Attempts that are registered in flight."""
        return self.groups.inflight

    @property
    def counters(self) -> RolloutCounters:
        """What became of attempts and groups so far."""
        return self.groups.counters

    async def run(self) -> None:
        """Return when every prompt of every epoch is dispatched and settled, and no spare is left."""
        async with asyncio.TaskGroup() as tasks:
            await self._restored(tasks)
            while batch := await self._next_batch():
                await self._admit_and_launch(tasks, batch)
            await self._settled(tasks)
        async with asyncio.TaskGroup() as tasks:
            while batch := await self._drained_batch():
                await self._admit_and_launch(tasks, batch)
                await self._settled(tasks)
        if self.ledger.reserve:
            self.observer.event("prompts_left_over", prompts=len(self.ledger.reserve))
        self._dispatched_all = True
        self.changed.notify()
        while self.ledger.reserve:
            await self.changed.until(lambda: bool(self.ledger.owed))
            async with asyncio.TaskGroup() as tasks:
                await self._settled(tasks)

    # ── taking prompts ──────────────────────────────────────────────────────────────────────────────

    async def _next_batch(self) -> list[Owned]:
        """One step's worth of prompts: restored ones, then new ones; empty when the data has ended."""
        if self._prompt_work:
            return [self._prompt_work.popleft() for _ in range(self.groups_per_step)]
        while not self._data_ended:
            divert = self.groups.drops.replaces and self.stamping_known and self._reserve_is_low
            batch = await self._pull(divert=divert)
            if batch:
                return batch
        return []

    @property
    def _reserve_is_low(self) -> bool:
        return len(self.ledger.reserve) < self.groups.drops.reserve_mark

    async def _pull(self, *, divert: bool) -> list[Owned]:
        """Take a batch from the dataset as one mutation (SC-5.12): own it, or put it into the reserve."""
        async with self.barrier.mutation():
            refs = self.cursor.take()
            prompts = await self.source.fetch(refs) if refs and not divert else []
            if divert:
                self.ledger.divert(refs)
                entries: list[LedgerEntry] = []
            else:
                entries = self.ledger.own(refs)
            self.data_state = self.cursor.state()
        self._data_ended = not refs
        return list(zip(entries, prompts, strict=True))

    async def _drained_batch(self) -> list[Owned]:
        """A step's worth of spares, once all drops have had their claim to them (SC-5.55, 5.56)."""
        async with self.barrier.mutation():
            if len(self.ledger.reserve) < self.groups_per_step:
                return []
            entries = self.ledger.draw(self.groups_per_step)
        return await self._fetched(entries)

    async def _restored(self, tasks: asyncio.TaskGroup) -> None:
        """Unfinished groups of the checkpoint go first, under their stamps, not admitted again (SC-5.11).

        Prompts without an admission follow, a step's worth at a time; a remainder becomes spares (SC-9.62).
        """
        entries = entries_in_order(self.ledger)
        work = [entry for entry in entries if entry.state == "reserved"]
        whole = len(work) - len(work) % self.groups_per_step
        self.ledger.put_back(work[whole:])
        self._prompt_work.extend(await self._fetched(work[:whole]))
        for entry, prompt in await self._fetched([entry for entry in entries if entry.state != "reserved"]):
            await self._launch(tasks, entry, prompt)

    async def _fetched(self, entries: Sequence[LedgerEntry]) -> list[Owned]:
        if not entries:
            return []
        prompts = await self.source.fetch([entry.prompt for entry in entries])
        return list(zip(entries, prompts, strict=True))

    # ── dispatch ────────────────────────────────────────────────────────────────────────────────────

    async def _admit_and_launch(self, tasks: asyncio.TaskGroup, batch: Sequence[Owned]) -> None:
        """Wait for the gate, then launch; meanwhile owed groups are served, if need be by this batch."""
        entries = [entry for entry, _ in batch]
        while True:
            await self.changed.until(
                lambda: bool(self.ledger.owed) or self.sampler.admissible(self.versions.trainer)
            )
            if self.ledger.owed:
                if not self.ledger.reserve and not self._data_ended:
                    await self._pull(divert=True)
                if not self.ledger.reserve:
                    async with self.barrier.mutation():
                        self.ledger.put_back(entries)
                    return
                await self._serve_owed(tasks)
                continue
            async with self.barrier.mutation():
                if self.sampler.admissible(self.versions.trainer):
                    stamp = self.sampler.admit(self.versions.trainer)
                    self.ledger.admit(entries, stamp)
                    self.stamping_known = self.stamping_known or stamp is not None
                    break
        for entry, prompt in batch:
            await self._launch(tasks, entry, prompt)

    @property
    def _owed_can_be_served(self) -> bool:
        """By a spare; or, for a step that no prompt is left for, by closing it with fewer groups."""
        owed = self.ledger.owed
        return bool(owed) and (bool(self.ledger.reserve) or any(step is not None for step in owed))

    async def _serve_owed(self, tasks: asyncio.TaskGroup) -> None:
        """Launch the oldest spare for the oldest owed group, outside the cursor (SC-5.79)."""
        async with self.barrier.mutation():
            entry = self.ledger.draw_spare(self.ledger.settle_owed())
        ((_, prompt),) = await self._fetched([entry])
        await self._launch(tasks, entry, prompt)

    async def _settled(self, tasks: asyncio.TaskGroup) -> None:
        """After the last batch: serve what is owed, until every launched group is settled (SC-5.18)."""
        while True:
            await self.changed.until(lambda: not self._running or self._owed_can_be_served)
            if self.ledger.owed and self.ledger.reserve:
                await self._serve_owed(tasks)
            elif self._owed_can_be_served:
                await self._credit_owed_steps()
            else:
                return

    async def _credit_owed_steps(self) -> None:
        """No prompt is left: stamped groups that are owed become shortfall, others stay owed (SC-5.79)."""
        async with self.barrier.mutation():
            owed, unstamped = list(self.ledger.owed), 0
            self.ledger.strike_owed()
            for step in owed:
                if step is None:
                    self.ledger.owe(None)
                    unstamped += 1
                else:
                    self.groups.accounts.credit_unserved(step)
        self.observer.event("owed_groups_not_served", groups=len(owed) - unstamped)
        self.changed.notify()

    async def _launch(self, tasks: asyncio.TaskGroup, entry: LedgerEntry, prompt: Prompt) -> None:
        await self.changed.until(self._has_room)
        self.buffer.launch(entry.group_id)
        self._running.add(entry.group_id)
        dispatch = Dispatch(entry, prompt)
        task = tasks.create_task(
            self.groups.run(dispatch, substituted=self._substituted), name=f"rollout {entry.group_id}"
        )
        task.add_done_callback(lambda _: self._settle(dispatch.group_id))

    def _has_room(self) -> bool:
        """Over-sampling check, capacity permit, in-flight permit (SC-5.14)."""
        cap = self.over_sampling_cap()
        return (
            (cap is None or cap[0] < cap[1])
            and self.buffer.free > 0
            and len(self._running) < self.max_inflight_prompts
        )

    def _substituted(self, group_id: GroupId, spare: GroupId) -> None:
        """A spare goes on with the permits of a dropped prompt (SC-5.43)."""
        self._running.remove(group_id)
        self._running.add(spare)
        self.changed.notify()

    def _settle(self, group_id: GroupId) -> None:
        """Permits come back however the task ended, also if it never began."""
        self._running.discard(group_id)
        self.buffer.settle(group_id)
        self.changed.notify()

    # ── aborts ──────────────────────────────────────────────────────────────────────────────────────

    async def abort_stale(self, *, grace_seconds: float) -> int:
        """Cancel the rollouts that can never be selected any more, and wait for their end (SC-5.35).

        The sampler is asked once per start weight, of which there are few.
        """
        weights = {attempt.slot.start_weight for attempt in self.inflight.values()}
        version = self.versions.trainer
        over = {weight for weight in weights if self.sampler.should_abort_inflight(weight, version)}
        stale = [a for a in self.inflight.values() if a.slot.start_weight in over] if over else []
        return await self.abort(stale, grace_seconds=grace_seconds)

    async def abort(self, attempts: Sequence[Attempt], *, grace_seconds: float) -> int:
        """Cancel these attempts; how many there were. One that does not end in time is detached."""
        aborted = await abort(attempts, grace_seconds=grace_seconds)
        self.counters.aborted += aborted.attempts
        self.counters.detached += aborted.detached
        return aborted.attempts
