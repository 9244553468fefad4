"""The replay buffer: prompt groups between dispatch and training, and the room for them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import BatchMeta, GroupId, GroupMeta, PromptRef

_MAX_STALE = 32


@dataclass(eq=False)
class BufferFault(RunError):
    """A caller broke an invariant of the buffer (SC-8.52)."""

    problem: str

    def __str__(self) -> str:
        return f"{self.problem}; this is a defect of the runtime: please report it with the run folder"


@dataclass(slots=True, eq=False)
class Slot:
    """One entry: reserved until its group is committed, ready from then on."""

    group_id: GroupId
    attempt: int
    prompt: PromptRef
    order: int
    """Place in dispatch order."""

    start_weight: int
    target_step: int | None
    meta: GroupMeta | None = None
    live: bool = True

    @property
    def ready(self) -> bool:
        """Its rows are in the data plane."""
        return self.meta is not None


@dataclass(slots=True)
class _Bucket:
    """Ready slots of one key, oldest first.

    Slots that have left stay in the heap until they surface, or outnumber those that have not.
    """

    belongs: Callable[[Slot], bool]
    """Whether a live slot still has the key."""

    heap: list[tuple[int, Slot]] = field(default_factory=list)
    count: int = 0

    def enter(self, slot: Slot) -> None:
        """Add a slot that has the key now."""
        heapq.heappush(self.heap, (slot.order, slot))
        self.count += 1

    def leave(self) -> None:
        """A slot is no longer live, or has another key."""
        self.count -= 1
        if len(self.heap) > 2 * self.count + _MAX_STALE:
            self.heap = [entry for entry in self.heap if entry[1].live and self.belongs(entry[1])]
            heapq.heapify(self.heap)

    def head(self) -> Slot | None:
        """The oldest slot."""
        heap = self.heap
        while heap:
            slot = heap[0][1]
            if slot.live and self.belongs(slot):
                return slot
            heapq.heappop(heap)
        return None


@dataclass(slots=True)
class ReplayBuffer:
    """Prompt groups between admission and training, in dispatch order.

    Free room is counted from what is there (launched groups that have not committed, and ready slots),
    so there is no permit to leak. Every operation costs the same however many groups are outstanding.
    """

    capacity: int
    """Most outstanding groups; a restored buffer may exceed it until enough are trained."""

    _slots: dict[GroupId, Slot] = field(default_factory=dict, init=False)
    _launched: set[GroupId] = field(default_factory=set, init=False)
    _all_ready: _Bucket = field(default_factory=lambda: _Bucket(lambda slot: slot.ready), init=False)
    _next_order: int = field(default=0, init=False)
    _by_weight: dict[int, _Bucket] = field(default_factory=dict, init=False)
    _by_target: dict[int, _Bucket] = field(default_factory=dict, init=False)
    _weights: Counter[int] = field(default_factory=Counter, init=False)
    _targets: Counter[int] = field(default_factory=Counter, init=False)

    # ── room ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def free(self) -> int:
        """Groups that may still be launched."""
        return max(0, self.capacity - len(self._launched) - self._all_ready.count)

    @property
    def restore_debt(self) -> int:
        """Groups above the capacity; that many must leave before one may be launched (SC-4.43)."""
        return max(0, len(self._launched) + self._all_ready.count - self.capacity)

    @property
    def launched(self) -> int:
        """Launched groups that have not committed, between two attempts or waiting at the gate included."""
        return len(self._launched)

    def launch(self, group_id: GroupId) -> None:
        """Take room for a group, ahead of its first attempt."""
        if group_id in self._launched or group_id in self._slots:
            raise BufferFault(f"group {group_id} was launched twice")
        self._launched.add(group_id)

    def settle(self, group_id: GroupId) -> None:
        """Give back the room of a launched group that will not commit. Repeating it changes nothing."""
        self._launched.discard(group_id)

    def hand_over(self, group_id: GroupId, successor: GroupId) -> None:
        """The room of a launched group passes to the one that replaces it (SC-4.42)."""
        self._launched.remove(group_id)
        self._launched.add(successor)

    # ── slots ───────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, group_id: GroupId) -> bool:
        return group_id in self._slots

    def __iter__(self) -> Iterator[Slot]:
        """All slots, in dispatch order."""
        return iter(sorted(self._slots.values(), key=lambda slot: slot.order))

    @property
    def ready(self) -> int:
        """Groups that could be trained on."""
        return self._all_ready.count

    @property
    def reserved(self) -> int:
        """Slots whose group is not committed."""
        return len(self._slots) - self._all_ready.count

    def reserve(
        self,
        group_id: GroupId,
        prompt: PromptRef,
        *,
        start_weight: int,
        target_step: int | None,
        attempt: int,
    ) -> Slot:
        """Append an unready slot (SC-4.10)."""
        if group_id in self._slots:
            raise BufferFault(f"group {group_id} already holds a slot")
        slot = Slot(group_id, attempt, prompt, self._next_order, start_weight, target_step)
        self._next_order += 1
        self._insert(slot)
        return slot

    def expects(self, group_id: GroupId, attempt: int) -> bool:
        """Whether a commit of this attempt would be accepted; ask before writing rows (SC-4.12)."""
        slot = self._slots.get(group_id)
        return slot is not None and not slot.ready and slot.attempt == attempt

    def commit(self, meta: GroupMeta) -> Slot:
        """Flip a slot ready; its room passes from the dispatcher to the buffer."""
        if not self.expects(meta.group_id, meta.attempt):
            raise BufferFault(f"group {meta.group_id} has no open slot for attempt {meta.attempt}")
        slot = self._slots[meta.group_id]
        self._launched.discard(meta.group_id)
        self._make_ready(slot, meta)
        return slot

    def restore(self, meta: GroupMeta) -> Slot:
        """Append a ready slot from a checkpoint, in its saved order."""
        slot = self.reserve(
            meta.group_id,
            meta.prompt,
            start_weight=meta.start_weight,
            target_step=meta.target_step,
            attempt=meta.attempt,
        )
        self._make_ready(slot, meta)
        return slot

    def remove(self, group_id: GroupId) -> Slot:
        """Delete a slot, ready or not. Rows are the caller's to clear."""
        slot = self._slots.pop(group_id, None)
        if slot is None:
            raise BufferFault(f"group {group_id} holds no slot")
        slot.live = False
        self._count_down(self._weights, slot.start_weight)
        if slot.target_step is not None:
            self._count_down(self._targets, slot.target_step)
        if slot.ready:
            self._all_ready.leave()
            self._leave(self._by_weight, slot.start_weight)
            if slot.target_step is not None:
                self._leave(self._by_target, slot.target_step)
        return slot

    def promote_ready_group(self, *, to_target_step: int) -> int | None:
        """Re-stamp the ready group of the latest later step onto this one; returns that step (SC-4.33)."""
        later = [
            target for target, bucket in self._by_target.items() if target > to_target_step and bucket.count
        ]
        if not later:
            return None
        lender = max(later)
        slot = self._by_target[lender].head()
        assert slot is not None
        assert slot.meta is not None
        slot.target_step = to_target_step
        slot.meta = replace(slot.meta, target_step=to_target_step)
        self._leave(self._by_target, lender)
        self._count_down(self._targets, lender)
        self._targets[to_target_step] += 1
        self._of_target(to_target_step).enter(slot)
        return lender

    # ── what samplers ask ───────────────────────────────────────────────────────────────────────────

    def count_for_target_step(self, target_step: int) -> int:
        """Slots of a step, reserved and ready."""
        return self._targets[target_step]

    @property
    def unstamped(self) -> int:
        """Slots without a target step."""
        return len(self._slots) - self._targets.total()

    def targets(self) -> dict[int, int]:
        """Slots per target step, reserved and ready."""
        return {target: count for target, count in sorted(self._targets.items()) if count}

    def weights(self) -> list[int]:
        """Start weights that any slot carries, ascending."""
        return sorted(self._weights)

    def has_unready(self, weight: int) -> bool:
        """Whether a reserved slot carries this start weight."""
        ready = self._by_weight[weight].count if weight in self._by_weight else 0
        return self._weights[weight] > ready

    def ready_weights(self) -> list[int]:
        """Start weights of ready slots, ascending."""
        return sorted(self._by_weight)

    def ready_targets(self) -> list[int]:
        """Target steps of ready slots, ascending."""
        return sorted(self._by_target)

    def count_ready(self, *, weights: Iterable[int]) -> int:
        """Ready slots with one of these start weights."""
        buckets = self._by_weight
        return sum([buckets[w].count for w in weights if w in buckets])

    def count_ready_for(self, target_step: int) -> int:
        """Ready slots of a step."""
        return self._by_target[target_step].count if target_step in self._by_target else 0

    def take_by_weight(self, weights: Iterable[int], limit: int) -> list[Slot]:
        """Remove the oldest ready slots with one of these start weights, at most limit, in buffer order."""
        buckets = [self._by_weight[w] for w in weights if w in self._by_weight]
        if len(buckets) == len(self._by_weight):
            return self._take_heads([self._all_ready], limit)
        return self._take_heads(buckets, limit)

    def take_by_target(self, target_step: int, limit: int) -> list[Slot]:
        """Remove the oldest ready slots of a step, at most limit, in buffer order."""
        bucket = self._by_target.get(target_step)
        return self._take_heads([bucket], limit) if bucket else []

    def take(self, group_ids: Iterable[GroupId]) -> list[Slot]:
        """Remove these slots, in the given order."""
        return [self.remove(group_id) for group_id in group_ids]

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────

    def _take_heads(self, buckets: Sequence[_Bucket], limit: int) -> list[Slot]:
        """Remove the oldest slots over these buckets, which share none."""
        heads = [(slot.order, slot, bucket) for bucket in buckets if (slot := bucket.head()) is not None]
        heapq.heapify(heads)
        taken: list[Slot] = []
        while heads and len(taken) < limit:
            _, slot, bucket = heads[0]
            taken.append(self.remove(slot.group_id))
            following = bucket.head()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following.order, following, bucket))
        return taken

    def _of_weight(self, weight: int) -> _Bucket:
        bucket = self._by_weight.get(weight)
        if bucket is None:
            bucket = self._by_weight[weight] = _Bucket(lambda slot: slot.start_weight == weight)
        return bucket

    def _of_target(self, target: int) -> _Bucket:
        bucket = self._by_target.get(target)
        if bucket is None:
            bucket = self._by_target[target] = _Bucket(lambda slot: slot.target_step == target)
        return bucket

    def _insert(self, slot: Slot) -> None:
        self._slots[slot.group_id] = slot
        self._weights[slot.start_weight] += 1
        if slot.target_step is not None:
            self._targets[slot.target_step] += 1

    def _make_ready(self, slot: Slot, meta: GroupMeta) -> None:
        slot.meta = meta
        self._all_ready.enter(slot)
        if meta.start_weight != slot.start_weight:
            self._count_down(self._weights, slot.start_weight)
            slot.start_weight = meta.start_weight
            self._weights[slot.start_weight] += 1
        self._of_weight(slot.start_weight).enter(slot)
        if slot.target_step is not None:
            self._of_target(slot.target_step).enter(slot)

    @staticmethod
    def _leave(index: dict[int, _Bucket], key: int) -> None:
        bucket = index[key]
        bucket.leave()
        if not bucket.count:
            del index[key]

    @staticmethod
    def _count_down(counter: Counter[int], key: int) -> None:
        if counter[key] == 1:
            del counter[key]
        else:
            counter[key] -= 1


def batch_of(slots: Iterable[Slot]) -> BatchMeta:
    """Metadata of ready slots, in the given order."""
    return BatchMeta(tuple(slot.meta for slot in slots if slot.meta is not None))
