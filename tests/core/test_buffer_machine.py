"""Buffer and samplers against a list that is searched from front to back."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.groups import group

from asyncrl_runtime.core.replay import BufferFault, ReplayBuffer
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.samplers.ready_first import ReadyFirst
from asyncrl_runtime.core.samplers.weight_fifo import WeightFifo
from asyncrl_runtime.core.samplers.windowed import Windowed

GROUPS_PER_STEP = 3


@dataclass
class Entry:
    """A slot of the model."""

    name: str
    weight: int
    target: int | None
    attempt: int
    ready: bool = False


class BufferMachine(RuleBasedStateMachine):
    """Dispatch, commit, retry, select, evict and promote in any order; the model searches a list."""

    make = staticmethod(lambda buffer, window: None)
    stamped = False

    @initialize(window=st.integers(0, 3), spare=st.integers(0, 6))
    def start(self, window, spare):
        self.window = window
        self.buffer = ReplayBuffer(GROUPS_PER_STEP * (window + 1) + spare)
        self.sampler = self.make(self.buffer, window)
        self.version, self.names, self.selected = 0, 0, False
        self.slots, self.waiting, self.pending = [], {}, []
        self.attempts = Counter()

    # ── the generating side ─────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.sampler.admissible(self.version) and not self.pending)
    @rule()
    def admit(self):
        stamp = self.sampler.admit(self.version)
        assert (stamp is not None) == self.stamped
        self.pending = [stamp] * GROUPS_PER_STEP
        self.launch()
        self.reserve([True, True, False])

    @precondition(lambda self: self.pending and self.buffer.free)
    @rule()
    def launch(self):
        for stamp in self.pending[: self.buffer.free]:
            self.names += 1
            self.buffer.launch(f"g{self.names}")
            self.waiting[f"g{self.names}"] = stamp
            self.pending.remove(stamp)

    @precondition(lambda self: self.waiting)
    @rule(picks=st.lists(st.sampled_from([True, True, False]), min_size=4, max_size=8))
    def reserve(self, picks):
        for name, picked in zip(list(self.waiting), picks, strict=False):
            if not picked:
                continue
            target, attempt = self.waiting.pop(name), self.attempts[name]
            self.attempts[name] += 1
            meta = group(name, weight=self.version, target=target, attempt=attempt)
            self.buffer.reserve(
                name, meta.prompt, start_weight=self.version, target_step=target, attempt=attempt
            )
            self.slots.append(Entry(name, self.version, target, attempt))

    @precondition(lambda self: any(not slot.ready for slot in self.slots))
    @rule(
        outcomes=st.lists(
            st.sampled_from(["commits", "commits", "commits", "fails", "runs"]), min_size=3, max_size=6
        )
    )
    def finish(self, outcomes):
        running = [slot for slot in self.slots if not slot.ready]
        for slot, outcome in zip(running, outcomes, strict=False):
            with pytest.raises(BufferFault):
                self.buffer.commit(group(slot.name, attempt=slot.attempt + 1))
            if outcome == "commits":
                self.buffer.commit(
                    group(slot.name, weight=slot.weight, target=slot.target, attempt=slot.attempt)
                )
                slot.ready = True
            elif outcome == "fails":
                self.buffer.remove(slot.name)
                self.slots.remove(slot)
                self.waiting[slot.name] = slot.target

    # ── the training side ───────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.buffer.ready)
    @rule()
    def evict(self):
        expected = [slot for slot in self.slots if slot.ready and self.is_over(slot)]
        assert sorted(s.group_id for s in self.sampler.evict(self.version)) == sorted(
            s.name for s in expected
        )
        self.drop(expected)

    @precondition(lambda self: self.buffer.ready)
    @rule(minimum=st.sampled_from([1, 1, 1, 2, 3]), more=st.integers(0, 4))
    def select(self, minimum, more):
        self.evict()
        eligible = self.eligible()
        batch = self.sampler.select(self.version, minimum, minimum + more)
        if len(eligible) < minimum:
            assert batch is None
            return
        expected = eligible[: minimum + more]
        assert [meta.group_id for meta in batch.groups] == [slot.name for slot in expected]
        for meta in batch.groups:
            self.within_bounds(meta)
        self.drop(expected)
        self.selected = True

    @precondition(lambda self: self.selected or not (self.slots or self.waiting or self.pending))
    @rule()
    def step(self):
        self.version += 1
        self.selected = False

    @precondition(lambda self: self.stamped and self.buffer.ready)
    @rule(ahead=st.integers(0, 3))
    def promote(self, ahead):
        to = self.version + ahead
        later = [slot for slot in self.slots if slot.ready and slot.target is not None and slot.target > to]
        lender = max((slot.target for slot in later), default=None)
        assert self.buffer.promote_ready_group(to_target_step=to) == lender
        if lender is not None:
            next(slot for slot in later if slot.target == lender).target = to

    def drop(self, slots):
        self.slots = [slot for slot in self.slots if slot not in slots]

    # ── what each sampler means ─────────────────────────────────────────────────────────────────────

    def floor(self):
        return max(0, self.version - self.window)

    def is_over(self, slot):
        raise NotImplementedError

    def eligible(self):
        raise NotImplementedError

    def within_bounds(self, meta):
        lag = self.version - meta.start_weight
        assert 0 <= lag <= self.window

    # ── always ──────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def buffer_and_model_agree(self):
        buffer, slots = self.buffer, self.slots
        assert [(s.group_id, s.start_weight, s.target_step, s.ready) for s in buffer] == [
            (s.name, s.weight, s.target, s.ready) for s in slots
        ]
        ready = [slot for slot in slots if slot.ready]
        assert (len(buffer), buffer.ready, buffer.reserved) == (
            len(slots),
            len(ready),
            len(slots) - len(ready),
        )
        assert buffer.weights() == sorted({slot.weight for slot in slots})
        assert buffer.ready_weights() == sorted({slot.weight for slot in ready})
        assert buffer.targets() == dict(
            sorted(Counter(s.target for s in slots if s.target is not None).items())
        )
        assert buffer.ready_targets() == sorted({slot.target for slot in ready} - {None})
        for weight in range(self.version + 1):
            assert buffer.count_ready(weights=[weight]) == sum(slot.weight == weight for slot in ready)
            assert buffer.has_unready(weight) == any(s.weight == weight and not s.ready for s in slots)

    @invariant()
    def sc_4_44_no_room_leaks(self):
        buffer = self.buffer
        launched = len(self.waiting) + sum(not slot.ready for slot in self.slots)
        assert buffer.launched == launched
        assert buffer.free + launched + buffer.ready - buffer.restore_debt == buffer.capacity
        assert buffer.restore_debt == 0


class InOrderMachine(BufferMachine):
    make, stamped = staticmethod(lambda buffer, window: InOrder(buffer, window=window)), True

    def is_over(self, slot):
        return slot.target < self.version

    def eligible(self):
        return [slot for slot in self.slots if slot.ready and slot.target == self.version]

    def within_bounds(self, meta):
        assert meta.target_step == self.version

    @invariant()
    def no_more_than_the_window_is_admitted_ahead(self):
        assert self.sampler.dispatch_index <= self.version + self.window


class WeightFifoMachine(BufferMachine):
    make = staticmethod(lambda buffer, window: WeightFifo(buffer, window=window))

    def is_over(self, slot):
        return slot.weight < self.floor()

    def eligible(self):
        inside = [slot for slot in self.slots if self.floor() <= slot.weight <= self.version]
        oldest = min((slot.weight for slot in inside), default=None)
        return [slot for slot in inside if slot.ready and slot.weight == oldest]


class ReadyFirstMachine(BufferMachine):
    make = staticmethod(lambda buffer, window: ReadyFirst(buffer, window=window))

    def is_over(self, slot):
        return False

    def eligible(self):
        return [slot for slot in self.slots if slot.ready and slot.weight <= self.version]

    def within_bounds(self, meta):
        assert meta.start_weight <= self.version


class WindowedMachine(BufferMachine):
    make = staticmethod(lambda buffer, window: Windowed(buffer, window=window))

    def is_over(self, slot):
        return slot.weight < self.floor()

    def eligible(self):
        return [slot for slot in self.slots if slot.ready and self.floor() <= slot.weight <= self.version]

    @rule()
    def abort(self):
        """What can never be selected is cancelled while it runs, and its prompt is given up."""
        for slot in [slot for slot in self.slots if not slot.ready]:
            over = slot.weight < self.floor()
            assert self.sampler.should_abort_inflight(slot.weight, self.version) is over
            if over:
                self.buffer.remove(slot.name)
                self.buffer.settle(slot.name)
                self.drop([slot])

    @invariant()
    def the_cursor_stays(self):
        assert self.sampler.dispatch_index == -1


class FreshestMachine(WindowedMachine):
    make = staticmethod(lambda buffer, window: Windowed(buffer, window=window, freshest_first=True))

    def eligible(self):
        return sorted(super().eligible(), key=lambda slot: -slot.weight)


SETTINGS = settings(max_examples=120, stateful_step_count=50, deadline=None)
for machine in (InOrderMachine, WeightFifoMachine, ReadyFirstMachine, WindowedMachine, FreshestMachine):
    machine.TestCase.settings = SETTINGS

TestInOrder = InOrderMachine.TestCase
TestWeightFifo = WeightFifoMachine.TestCase
TestReadyFirst = ReadyFirstMachine.TestCase
TestWindowed = WindowedMachine.TestCase
TestFreshest = FreshestMachine.TestCase
