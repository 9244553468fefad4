"""The replay buffer: slots, room, promotion, restore."""

import pytest
from support.groups import group, put_slot

from asyncrl_runtime.core.records import PromptRef
from asyncrl_runtime.core.replay import BufferFault, ReplayBuffer, batch_of

REF = PromptRef(0, 0)


def names(slots):
    return [slot.group_id for slot in slots]


def room_is_exact(buffer):
    """SC-4.44."""
    used = buffer.launched + buffer.ready
    return buffer.free + used - buffer.restore_debt == buffer.capacity


# ── slots ───────────────────────────────────────────────────────────────────────────────────────────


def test_sc_4_2_slots_stay_in_dispatch_order_whatever_is_removed():
    buffer = ReplayBuffer(8)
    for name in "abcde":
        put_slot(buffer, name, ready=name in "bd")
    buffer.remove("c")
    buffer.remove("b")
    put_slot(buffer, "f")
    assert names(buffer) == ["a", "d", "e", "f"]
    assert (len(buffer), buffer.ready, buffer.reserved) == (4, 2, 2)


def test_sc_4_10_a_group_that_is_live_cannot_be_reserved_again():
    buffer = ReplayBuffer(8)
    put_slot(buffer, "a", ready=False)
    with pytest.raises(BufferFault, match="group a already holds a slot"):
        buffer.reserve("a", REF, start_weight=0, target_step=None, attempt=1)
    buffer.remove("a")
    assert buffer.reserve("a", REF, start_weight=1, target_step=None, attempt=1).attempt == 1


@pytest.mark.parametrize(("name", "attempt"), [("b", 0), ("a", 1), ("a", 0)])
def test_sc_4_12_sc_14_27_only_the_open_attempt_may_commit(name, attempt):
    buffer = ReplayBuffer(8)
    put_slot(buffer, "a", attempt=0)
    assert not buffer.expects(name, attempt)
    with pytest.raises(BufferFault, match=f"group {name} has no open slot for attempt {attempt}"):
        buffer.commit(group(name, attempt=attempt))
    assert (buffer.ready, len(buffer)) == (1, 1)


def test_sc_4_31_an_unknown_group_cannot_be_removed():
    with pytest.raises(BufferFault, match="group x holds no slot; this is a defect"):
        ReplayBuffer(1).remove("x")


def test_a_commit_may_make_the_start_weight_older_than_the_reservation_was():
    buffer = ReplayBuffer(4)
    buffer.reserve("a", REF, start_weight=3, target_step=None, attempt=0)
    buffer.commit(group("a", weight=1))
    assert (buffer.weights(), buffer.ready_weights()) == ([1], [1])
    assert not buffer.has_unready(3)
    assert names(buffer.take_by_weight([1, 3], 5)) == ["a"]
    assert buffer.weights() == []


def test_sc_4_32_counts_cover_reserved_and_ready_slots():
    buffer = ReplayBuffer(8)
    for name, target, ready in (("a", 1, True), ("b", 1, False), ("c", 2, True), ("d", None, True)):
        put_slot(buffer, name, target=target, ready=ready)
    assert buffer.targets() == {1: 2, 2: 1}
    assert [buffer.count_for_target_step(step) for step in (0, 1, 2)] == [0, 2, 1]
    assert [buffer.count_ready_for(step) for step in (0, 1, 2)] == [0, 1, 1]
    assert buffer.ready_targets() == [1, 2]
    assert buffer.unstamped == 1


def test_unready_slots_of_a_weight_are_known():
    buffer = ReplayBuffer(8)
    put_slot(buffer, "a", weight=1)
    assert not buffer.has_unready(1)
    put_slot(buffer, "b", weight=1, ready=False)
    assert buffer.has_unready(1)
    assert not buffer.has_unready(2)
    assert buffer.count_ready(weights=[1, 2]) == 1


def test_taking_keeps_buffer_order_over_weights_and_obeys_the_limit():
    buffer = ReplayBuffer(8)
    for name, weight in (("a", 2), ("b", 0), ("c", 1), ("d", 2)):
        put_slot(buffer, name, weight=weight)
    assert names(buffer.take_by_weight([2, 0], 2)) == ["a", "b"]
    assert names(buffer.take_by_weight([2, 1, 7], 9)) == ["c", "d"]
    assert buffer.take_by_weight([2], 9) == []


def test_taken_slots_come_in_the_order_asked_for_and_are_dead():
    buffer = ReplayBuffer(8)
    for name in "abc":
        put_slot(buffer, name)
    taken = buffer.take(["c", "a"])
    assert names(taken) == ["c", "a"]
    assert not any(slot.live for slot in taken)
    assert [meta.group_id for meta in batch_of(taken).groups] == ["c", "a"]


# ── promotion ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("case", "slots", "returned", "after"),
    [
        ("a", [(6, 1), (7, 1)], [7], [6, 5]),
        ("b", [(6, 0)], [None], [6]),
        ("c", [(4, 1), (5, 1)], [None], [4, 5]),
        ("d", [(None, 1)], [None], [None]),
        ("e", [], [None], []),
        ("f", [(6, 1), (6, 1)], [6, 6, None], [5, 5]),
        ("g", [(7, 0), (6, 1)], [6], [7, 5]),
    ],
)
def test_ex_4_1_sc_14_9_and_14_11(case, slots, returned, after):
    buffer = ReplayBuffer(8)
    for place, (target, ready) in enumerate(slots):
        put_slot(buffer, f"g{place}", target=target, ready=bool(ready))
    assert [buffer.promote_ready_group(to_target_step=5) for _ in returned] == returned
    assert [slot.target_step for slot in buffer] == after
    assert [slot.meta.target_step for slot in buffer if slot.ready] == [
        slot.target_step for slot in buffer if slot.ready
    ]


def test_sc_14_10_two_promotions_move_two_groups_and_leave_the_lender_consistent():
    buffer = ReplayBuffer(8)
    for name, target in (("a", 5), ("b", 6), ("c", 7), ("d", 7)):
        put_slot(buffer, name, target=target)
    assert [buffer.promote_ready_group(to_target_step=5) for _ in range(2)] == [7, 7]
    assert buffer.ready_targets() == [5, 6]
    batch = batch_of(buffer.take_by_target(5, 9))
    assert [meta.group_id for meta in batch.groups] == ["a", "c", "d"]
    assert {meta.target_step for meta in batch.groups} == {5}
    assert buffer.take_by_target(7, 9) == []
    assert names(buffer) == ["b"]


def test_a_promoted_group_keeps_its_place_in_its_new_step():
    buffer = ReplayBuffer(8)
    put_slot(buffer, "a", target=7)
    put_slot(buffer, "b", target=5)
    buffer.promote_ready_group(to_target_step=5)
    assert names(buffer.take_by_target(5, 2)) == ["a", "b"]


# ── room ────────────────────────────────────────────────────────────────────────────────────────────


def test_sc_4_40_and_4_41_room_is_taken_at_launch_and_given_back_once():
    buffer = ReplayBuffer(3)
    for name in "abc":
        put_slot(buffer, name, ready=name == "a")
    assert (buffer.free, buffer.launched, buffer.ready) == (0, 2, 1)
    buffer.settle("a")
    assert buffer.free == 0
    buffer.remove("a")
    assert buffer.free == 1
    buffer.remove("b")
    assert buffer.free == 1
    buffer.settle("b")
    buffer.settle("b")
    assert buffer.free == 2
    assert room_is_exact(buffer)


def test_sc_14_25_a_group_that_never_reserved_gives_its_room_back():
    buffer = ReplayBuffer(1)
    buffer.launch("a")
    assert buffer.free == 0
    with pytest.raises(BufferFault, match="group a was launched twice"):
        buffer.launch("a")
    buffer.settle("a")
    assert buffer.free == 1


def test_sc_14_25_a_retry_holds_its_room_between_two_attempts():
    buffer = ReplayBuffer(1)
    put_slot(buffer, "a", ready=False)
    buffer.remove("a")
    assert buffer.free == 0
    buffer.reserve("a", REF, start_weight=1, target_step=None, attempt=1)
    buffer.commit(group("a", weight=1, attempt=1))
    assert (buffer.free, buffer.launched) == (0, 0)
    assert names(buffer.take_by_weight([1], 1)) == ["a"]
    assert buffer.free == 1


def test_sc_4_43_sc_14_155_and_14_157_restored_groups_above_the_capacity_are_a_debt():
    buffer = ReplayBuffer(2)
    for name in "abcd":
        buffer.restore(group(name))
    assert (buffer.free, buffer.restore_debt, buffer.ready) == (0, 2, 4)
    buffer.remove("a")
    assert (buffer.free, buffer.restore_debt) == (0, 1)
    buffer.remove("b")
    assert (buffer.free, buffer.restore_debt) == (0, 0)
    buffer.remove("c")
    assert (buffer.free, buffer.restore_debt) == (1, 0)
    assert room_is_exact(buffer)


def test_sc_14_159_a_restored_slot_is_what_was_saved():
    buffer = ReplayBuffer(4)
    saved = group("a", weight=3, target=7, attempt=2, end_weight=5)
    slot = buffer.restore(saved)
    assert (slot.start_weight, slot.target_step, slot.attempt, slot.meta) == (3, 7, 2, saved)
    assert slot.meta.end_weight == 5
    assert buffer.ready_targets() == [7]
    assert buffer.ready_weights() == [3]


# ── cost ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("by_target", [True, False])
def test_slots_that_have_left_do_not_pile_up_in_the_indices(by_target):
    buffer = ReplayBuffer(64)
    put_slot(buffer, "old", weight=0, target=10_000)
    for number in range(3000):
        put_slot(buffer, f"g{number}", weight=0, target=number)
        if by_target:
            assert names(buffer.take_by_target(number, 1)) == [f"g{number}"]
        else:
            buffer.promote_ready_group(to_target_step=20_000)
            buffer.take([f"g{number}"])
    buckets = [buffer._all_ready, *buffer._by_weight.values(), *buffer._by_target.values()]
    assert sum(len(bucket.heap) for bucket in buckets) < 3 * 50
    assert buffer.weights() == [0]
    assert buffer.targets() == {10_000: 1}
    assert names(buffer.take_by_weight([0], 9)) == ["old"]


def test_slots_removed_out_of_order_leave_the_heap_when_they_surface():
    buffer = ReplayBuffer(1000)
    put_slot(buffer, "first", weight=4)
    for number in range(500):
        put_slot(buffer, f"g{number}", weight=4)
    put_slot(buffer, "last", weight=4)
    buffer.take([f"g{number}" for number in range(500)])
    assert names(buffer.take_by_weight([4], 9)) == ["first", "last"]
    assert buffer.ready_weights() == []
    assert not buffer._by_weight
