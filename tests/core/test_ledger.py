"""The prompt ledger: every prompt in exactly one class."""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.ledger import LedgerUnbalanced, PromptLedger
from asyncrl_runtime.core.records import PromptRef, sample_id, staging_key


def refs(*positions, epoch=0):
    return [PromptRef(epoch, position) for position in positions]


def test_reserved_prompts_are_owned_in_the_order_of_the_data():
    ledger = PromptLedger()
    entries = ledger.own(refs(4, 2)) + ledger.own(refs(4, epoch=1))
    assert [entry.group_id for entry in entries] == ["e0p4", "e0p2", "e1p4"]
    assert [entry.order for entry in entries] == [0, 1, 2]
    assert {entry.state for entry in entries} == {"reserved"}
    with pytest.raises(RunError, match="prompt 2 of epoch 0 was taken twice"):
        ledger.own(refs(2))


def test_an_entry_goes_through_its_states():
    ledger = PromptLedger()
    (entry,) = ledger.own(refs(0))
    ledger.admit([entry], 7)
    assert (entry.state, entry.target_step, entry.attempt) == ("admitted", 7, -1)
    assert [ledger.begin_attempt(entry, version) for version in (3, 4)] == [0, 1]
    assert (entry.state, entry.start_version) == ("generating", 4)
    ledger.relaunch(entry)
    assert (entry.state, entry.relaunched, entry.target_step) == ("admitted", True, 7)
    ledger.commit("e0p0")
    assert not ledger.entries
    assert ledger.committed == 1


def test_sc_9_64_a_reopened_group_goes_on_under_its_id_and_the_next_attempt():
    ledger = PromptLedger()
    (entry, _) = ledger.own(refs(0, 1))
    ledger.begin_attempt(entry, 0)
    ledger.commit("e0p0")
    again = ledger.reopen("e0p0", PromptRef(0, 0), attempt=0, target_step=3)
    assert (again.state, again.target_step) == ("admitted", 3)
    assert ledger.begin_attempt(again, 5) == 1
    assert ledger.committed == 0
    ledger.check(buffered=0, claimed=0)


def test_sc_14_32_no_attempt_has_the_rows_of_another_also_after_a_restart():
    ledger = PromptLedger()
    (entry,) = ledger.own(refs(0))
    attempts = [ledger.begin_attempt(entry, 0)]
    ledger.relaunch(entry)
    attempts.append(ledger.begin_attempt(entry, 1))
    ledger = PromptLedger.from_json(json.loads(json.dumps(ledger.to_json())))
    attempts.append(ledger.begin_attempt(ledger.entries["e0p0"], 1))
    ledger.commit("e0p0")
    reopened = ledger.reopen("e0p0", PromptRef(0, 0), attempt=attempts[-1], target_step=None)
    attempts.append(ledger.begin_attempt(reopened, 2))
    for key in (sample_id, staging_key):
        assert len({key("e0p0", attempt, i) for attempt in attempts for i in range(3)}) == 12
    assert not {sample_id("e0p0", 0, 0)} & {staging_key("e0p0", attempt, 0) for attempt in attempts}


def test_counts_name_where_prompts_went():
    ledger = PromptLedger()
    ledger.own(refs(*range(10)))
    for position in range(6):
        ledger.commit(f"e0p{position}")
    ledger.train(2)
    ledger.discard_committed(1, "evicted")
    ledger.discard("e0p6", "aborted")
    ledger.discard("e0p7", "filtered")
    counts = ledger.counts(buffered=2, claimed=1)
    assert counts.balanced
    assert (counts.admitted, counts.committed, counts.trained, counts.discarded, counts.live) == (
        10,
        6,
        2,
        3,
        5,
    )
    assert counts.discarded_by_cause == {
        "evicted": 1,
        "aborted": 1,
        "truncated": 0,
        "filtered": 1,
        "left_over": 0,
    }
    ended = ledger.counts(buffered=2, claimed=1, ended=True)
    assert ended.balanced
    assert (ended.live, ended.discarded, ended.discarded_by_cause["left_over"]) == (0, 8, 5)


def test_sc_9_61_a_lost_prompt_is_a_fault_that_says_so():
    ledger = PromptLedger()
    ledger.own(refs(0, 1))
    ledger.commit("e0p0")
    ledger.check(buffered=1, claimed=0)
    with pytest.raises(LedgerUnbalanced, match=r"does not balance.*admitted=2.*live=1"):
        ledger.check(buffered=0, claimed=0)
    with pytest.raises(LedgerUnbalanced):
        ledger.check(buffered=1, claimed=1)


def test_every_change_is_counted():
    ledger = PromptLedger()
    seen = [ledger.mutations]
    (entry,) = ledger.own(refs(0))
    for change in (
        lambda: None,
        lambda: ledger.admit([entry], None),
        lambda: ledger.begin_attempt(entry, 0),
        lambda: ledger.relaunch(entry),
        lambda: ledger.commit("e0p0"),
        lambda: ledger.train(1),
        lambda: ledger.reopen("e0p0", PromptRef(0, 0), attempt=0, target_step=None),
        lambda: ledger.discard("e0p0", "aborted"),
        lambda: ledger.adopt(PromptLedger()),
    ):
        change()
        seen.append(ledger.mutations)
    assert seen == sorted(set(seen))
    ledger.discard_committed(0, "evicted")
    assert ledger.mutations == seen[-1]


def test_adopting_is_seen_by_whoever_holds_the_ledger():
    held, other = PromptLedger(), PromptLedger()
    other.own(refs(3))
    other.discard("e0p3", "evicted")
    other.own(refs(4))
    held.adopt(other)
    assert held.to_json() == other.to_json()


class LedgerMachine(RuleBasedStateMachine):
    """Random histories; each prompt stays in one class, through JSON and back at any point."""

    live, committed = Bundle("live"), Bundle("committed")

    def __init__(self):
        super().__init__()
        self.ledger = PromptLedger()
        self.next, self.buffered, self.claimed = 0, set(), set()

    @rule(target=live)
    def take(self):
        self.next += 1
        (entry,) = self.ledger.own(refs(self.next))
        return entry.group_id

    @rule(group=live, stamp=st.none() | st.integers(0, 5))
    def admit(self, group, stamp):
        if group in self.ledger.entries:
            self.ledger.admit([self.ledger.entries[group]], stamp)

    @rule(group=live, version=st.integers(0, 5))
    def begin(self, group, version):
        if group in self.ledger.entries:
            entry = self.ledger.entries[group]
            before = entry.attempt
            assert self.ledger.begin_attempt(entry, version) == before + 1

    @rule(group=consumes(live), cause=st.sampled_from(["aborted", "filtered"]))
    def discard(self, group, cause):
        self.ledger.discard(group, cause)

    @rule(target=committed, group=consumes(live))
    def commit(self, group):
        self.ledger.commit(group)
        self.buffered.add(group)
        return group

    @rule(group=committed)
    def select(self, group):
        if group in self.buffered:
            self.buffered.remove(group)
            self.claimed.add(group)

    @rule(group=consumes(committed))
    def evict(self, group):
        if group in self.buffered:
            self.buffered.remove(group)
            self.ledger.discard_committed(1, "evicted")

    @rule()
    def close(self):
        self.ledger.train(len(self.claimed))
        self.claimed.clear()

    @rule()
    def restart(self):
        self.ledger = PromptLedger.from_json(json.loads(json.dumps(self.ledger.to_json())))

    @rule(target=live, group=consumes(committed))
    def reopen(self, group):
        if group not in self.buffered:
            return self.take()
        self.buffered.remove(group)
        self.ledger.reopen(group, PromptRef(0, int(group.split("p")[1])), attempt=0, target_step=None)
        return group

    @invariant()
    def balanced(self):
        self.ledger.check(buffered=len(self.buffered), claimed=len(self.claimed))
        assert self.ledger.taken == self.next
        assert not self.buffered & set(self.ledger.entries)


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
