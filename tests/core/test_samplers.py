"""Worked examples of the samplers (EX-3.1 to EX-3.10) and what must hold for all of them."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import GroupMeta, PromptRef
from asyncrl_runtime.core.replay import BufferFault, ReplayBuffer
from asyncrl_runtime.core.samplers.base import BufferedSampler, SamplerUnusable
from asyncrl_runtime.core.samplers.custom import load_custom
from asyncrl_runtime.core.samplers.in_order import InOrder, lookahead
from asyncrl_runtime.core.samplers.ready_first import ReadyFirst
from asyncrl_runtime.core.samplers.weight_fifo import WeightFifo
from asyncrl_runtime.core.samplers.windowed import Windowed


def fill(buffer, slots):
    """Slots as (name, start_weight, ready, target)."""
    for place, (name, weight, ready, target) in enumerate(slots):
        ref = PromptRef(0, place)
        buffer.reserve(name, ref, start_weight=weight, target_step=target, attempt=0)
        if ready:
            buffer.commit(meta(name, ref, weight, target))
    return buffer


def meta(name, ref, weight, target):
    return GroupMeta(name, 0, ref, (f"{name}_a0_g0",), (3,), (weight,), 2, weight, weight, False, target)


def names(batch):
    return " ".join(group.group_id for group in batch.groups) if batch else ""


def sampler_of(text, buffer):
    kind, *knobs = text.split()
    options = dict(knob.split("=") for knob in knobs)
    window = int(options.get("L", options.get("S", 1)))
    if kind == "windowed":
        return Windowed(buffer, window=window, freshest_first="freshest" in options)
    return {"in_order": InOrder, "weight_fifo": WeightFifo, "ready_first": ReadyFirst}[kind](
        buffer, window=window
    )


B1 = [
    ("g1", 0, True, 1),
    ("g2", 0, False, 2),
    ("g3", 0, True, 2),
    ("g4", 1, True, 3),
    ("g5", 1, True, 3),
    ("g6", 2, True, 4),
    ("g7", 2, False, 4),
]
ALL = "g1 g2 g3 g4 g5 g6 g7"


@pytest.mark.parametrize(
    ("case", "sampler", "bounds", "evicted", "selected", "left"),
    [
        ("a", "in_order L=2", (1, 2), "g1", "g3", "g2 g4 g5 g6 g7"),
        ("b", "in_order L=2", (2, 2), "g1", "", "g2 g3 g4 g5 g6 g7"),
        ("c", "weight_fifo S=2", (1, 2), "", "g1 g3", "g2 g4 g5 g6 g7"),
        ("d", "weight_fifo S=2", (3, 8), "", "", ALL),
        ("e", "weight_fifo S=1", (1, 8), "g1 g3", "g4 g5", "g2 g6 g7"),
        ("f", "weight_fifo S=1", (3, 8), "g1 g3", "", "g2 g4 g5 g6 g7"),
        ("g", "ready_first S=2", (1, 2), "", "g1 g3", "g2 g4 g5 g6 g7"),
        ("h", "ready_first S=2", (3, 8), "", "g1 g3 g4 g5 g6", "g2 g7"),
        ("i", "windowed S=2", (1, 2), "", "g1 g3", "g2 g4 g5 g6 g7"),
        ("j", "windowed S=2 freshest=1", (1, 2), "", "g6 g4", "g1 g2 g3 g5 g7"),
        ("k", "windowed S=2 freshest=1", (1, 8), "", "g6 g4 g5 g1 g3", "g2 g7"),
        ("l", "windowed S=1", (1, 2), "g1 g3", "g4 g5", "g2 g6 g7"),
        ("m", "windowed S=1", (3, 8), "g1 g3", "g4 g5 g6", "g2 g7"),
    ],
)
def test_ex_3_3(case, sampler, bounds, evicted, selected, left):
    check_once(B1, sampler, 2, bounds, evicted, selected, left)


@pytest.mark.parametrize(
    ("case", "sampler", "evicted", "selected", "left"),
    [
        ("a", "in_order L=2", "g1 g3", "g4 g5", "g2 g6 g7"),
        ("b", "weight_fifo S=2", "g1 g3", "g4 g5", "g2 g6 g7"),
        ("c", "ready_first S=2", "", "g1 g3 g4 g5", "g2 g6 g7"),
        ("d", "windowed S=2", "g1 g3", "g4 g5 g6", "g2 g7"),
        ("e", "windowed S=2 freshest=1", "g1 g3", "g6 g4 g5", "g2 g7"),
        ("f", "windowed S=1", "g1 g3 g4 g5", "g6", "g2 g7"),
    ],
)
def test_ex_3_4(case, sampler, evicted, selected, left):
    check_once(B1, sampler, 3, (1, 4), evicted, selected, left)


def check_once(slots, sampler, version, bounds, evicted, selected, left):
    buffer = fill(ReplayBuffer(16), slots)
    policy = sampler_of(sampler, buffer)

    assert " ".join(slot.group_id for slot in policy.evict(version)) == evicted
    assert names(policy.select(version, *bounds)) == selected
    assert " ".join(slot.group_id for slot in buffer) == left


@pytest.mark.parametrize(
    ("case", "slots", "samplers", "version", "bounds", "evicted", "selected"),
    [
        ("a", "x3y y2y", "weight_fifo S=2|ready_first S=2|windowed S=2", 2, (1, 4), "", "y"),
        ("b", "x1n y2y z2y", "weight_fifo S=2", 2, (1, 4), "", ""),
        ("c", "x1n y2y z2y", "ready_first S=2|windowed S=2", 2, (1, 4), "", "y z"),
        ("d", "x1y y2y z2y", "weight_fifo S=2", 2, (2, 4), "", ""),
        ("e", "x1y y2y z2y", "weight_fifo S=2", 2, (1, 4), "", "x"),
        ("f", "x0y y1y", "windowed S=4", 1, (1, 4), "", "x y"),
        ("g", "x0n y5y", "windowed S=1", 5, (1, 4), "", "y"),  # SC-14.33, with m
        ("h", "x0y y5y", "windowed S=1", 5, (1, 4), "x", "y"),
        ("i", "g100y5", "in_order L=1", 5, (1, 8), "", "g"),
        ("j", "g5y6", "in_order L=1", 5, (1, 8), "", ""),
        ("k", "g0y2", "in_order L=1", 2, None, "", None),  # SC-14.34
        ("l", "g0y1", "in_order L=1", 3, None, "g", None),
        ("m", "g0n1", "in_order L=1", 5, None, "", None),
        ("n", "c1y a3y b5y", "windowed S=2", 5, (1, 8), "c", "a b"),
    ],
)
def test_ex_3_5(case, slots, samplers, version, bounds, evicted, selected):
    for sampler in samplers.split("|"):
        buffer = fill(ReplayBuffer(16), [parse_slot(text) for text in slots.split()])
        policy = sampler_of(sampler, buffer)
        assert " ".join(slot.group_id for slot in policy.evict(version)) == evicted
        if bounds:
            assert names(policy.select(version, *bounds)) == selected


def parse_slot(text):
    """x3y2: name x, start weight 3, ready, target 2."""
    flag = max(text.find("y", 1), text.find("n", 1))
    return text[0], int(text[1:flag]), text[flag] == "y", int(text[flag + 1 :]) if text[flag + 1 :] else None


@pytest.mark.parametrize(
    ("case", "sampler", "calls"),
    [
        ("a", "in_order L=1", ["0 1 blk", "2 blk", "3 blk"]),
        ("b", "in_order L=0", ["0 blk", "1 blk", "2 blk"]),
        ("c", "weight_fifo S=1", ["- - blk", "- blk", "- blk"]),
        ("d", "ready_first S=1", ["- - blk", "- blk", "- blk"]),
        ("e", "windowed S=1", ["- - - -", "- - -", "- -"]),
        ("f", "weight_fifo S=0", ["- blk", "- blk", "- blk"]),
    ],
)
def test_ex_3_1(case, sampler, calls):
    policy = sampler_of(sampler, ReplayBuffer(16))
    for version, expected in enumerate(calls):
        for outcome in expected.split():
            if outcome == "blk":
                assert not policy.admissible(version)
                with pytest.raises(BufferFault):
                    policy.admit(version)
            else:
                assert policy.admissible(version)
                assert policy.admit(version) == (None if outcome == "-" else int(outcome))
    if case == "e":
        assert policy.dispatch_index == -1


def test_ex_3_2_a_resumed_cursor_stamps_from_the_saved_step():
    policy = InOrder(ReplayBuffer(16), window=2)
    policy.set_dispatch_index(7)
    assert [policy.admit(7) for _ in range(3)] == [7, 8, 9]
    assert not policy.admissible(7)
    assert policy.admit(8) == 10
    assert not policy.admissible(8)
    with pytest.raises(ValueError, match="at least 0"):
        policy.set_dispatch_index(-1)
    with pytest.raises(ValueError, match="at least -1"):
        policy.restore_dispatch_index(-2)


def test_ex_3_6_windowed_aborts_what_the_window_has_passed():
    windowed = Windowed(ReplayBuffer(4), window=2)
    pairs = {(0, 1): False, (0, 2): False, (0, 3): True, (2, 5): True, (3, 5): False}
    assert {pair: windowed.should_abort_inflight(*pair) for pair in pairs} == pairs
    for gated in ("in_order L=0", "weight_fifo S=0", "ready_first S=0"):
        assert not sampler_of(gated, ReplayBuffer(4)).should_abort_inflight(0, 5)


@pytest.mark.parametrize(
    ("sampler", "on_policy", "capacity"),
    [
        ("in_order L=0", True, 4),
        ("in_order L=1", False, 8),
        ("weight_fifo S=0", True, 4),
        ("weight_fifo S=2", False, 12),
        ("ready_first S=0", True, 4),
        ("ready_first S=2", False, 12),
        ("windowed S=0", True, None),
        ("windowed S=2", False, None),
    ],
)
def test_ex_3_7_and_ex_2_1(sampler, on_policy, capacity):
    policy = sampler_of(sampler, ReplayBuffer(64))
    assert policy.is_on_policy is on_policy
    assert policy.required_buffer_capacity(4) == capacity


def test_ex_2_1_f_sc_14_145_capacity_follows_the_peak_window():
    assert InOrder(ReplayBuffer(64), window=1, peak_window=4).required_buffer_capacity(8) == 40


@pytest.mark.parametrize(
    ("sampler", "minimum", "selected"),
    [
        ("in_order L=1", 1, "h0 h2"),
        ("weight_fifo S=2", 1, "h0"),
        ("weight_fifo S=2", 2, ""),
        ("windowed S=2", 1, "h0 h2"),
        ("windowed S=2 freshest=1", 1, "h4 h2"),
        ("ready_first S=2", 1, "h0 h2"),
    ],
)
def test_ex_3_8(sampler, minimum, selected):
    slots = [("h0", 0, 1, 2), ("h1", 0, 0, 2), ("h2", 1, 1, 2), ("h3", 1, 1, 3), ("h4", 2, 1, 3)]
    policy = sampler_of(sampler, fill(ReplayBuffer(16), slots))
    assert names(policy.select(2, minimum, 2)) == selected


@pytest.mark.parametrize(
    ("first_policy_step", "ordinary", "warmup", "expected"),
    [
        (10, 1, 4, {0: 4, 1: 4, 6: 4, 7: 4, 8: 3, 9: 2, 10: 1, 11: 1, 12: 1}),
        (3, 1, 8, {0: 4, 1: 3, 2: 2, 3: 1, 4: 1}),
        (10, 2, None, {0: 2, 9: 2, 10: 2}),
    ],
)
def test_ex_3_9_and_3_10_sc_14_134_lookahead_during_critic_warm_up(
    first_policy_step, ordinary, warmup, expected
):
    found = {
        s: lookahead(s, ordinary=ordinary, warmup=warmup, first_policy_step=first_policy_step)
        for s in expected
    }
    assert found == expected
    furthest = [
        s + lookahead(s, ordinary=ordinary, warmup=warmup, first_policy_step=first_policy_step)
        for s in range(20)
    ]
    assert furthest == sorted(furthest)


def test_ex_3_44_over_sampling_cap_is_exact():
    buffer = ReplayBuffer(1000)
    for ratio, groups, window, expected in ((1.5, 4, 1, 12), (1.25, 8, 2, 30), (1.1, 25, 1, 55)):
        policy = Windowed(buffer, window=window, over_sampling_ratio=ratio)
        assert policy.cap(groups, smallest_chunk=1) == expected
    assert Windowed(ReplayBuffer(10), window=1, over_sampling_ratio=9.0).cap(4, smallest_chunk=1) == 10
    assert Windowed(ReplayBuffer(10), window=0, over_sampling_ratio=1.0).cap(1, smallest_chunk=3) == 3


def test_sc_3_41_aged_out_groups_do_not_count_as_outstanding():
    buffer = fill(ReplayBuffer(16), [("a", 0, True, None), ("b", 3, True, None), ("c", 0, False, None)])
    buffer.launch("d")
    assert Windowed(buffer, window=1).outstanding(4) == 2


def test_sc_3_65_oldest_weight_can_grow():
    buffer = fill(ReplayBuffer(16), [("a", 0, True, None), ("b", 1, True, None)])
    policy = WeightFifo(buffer, window=2)
    assert policy.oldest_can_grow(1, stamp=0)
    assert not policy.oldest_can_grow(1, stamp=1)
    fill(buffer, [("c", 0, False, None)])
    assert policy.oldest_can_grow(1, stamp=1)


@pytest.mark.parametrize("bounds", [(0, 2), (3, 2), (-1, 0)])
def test_sc_3_5_sc_14_4_an_empty_batch_is_never_asked_for(bounds):
    with pytest.raises(ValueError, match="bounds must be at least 1"):
        Windowed(ReplayBuffer(4)).select(0, *bounds)


def test_sc_3_34_sc_14_154_an_occupied_stamp_is_refused():
    buffer = fill(ReplayBuffer(16), [("a", 0, False, 0)])
    with pytest.raises(BufferFault, match="step 0 was admitted while 1 groups own it"):
        InOrder(buffer, window=1).admit(0)


def test_sc_8_52_an_unstamped_slot_under_in_order_is_a_fault():
    with pytest.raises(BufferFault, match="belong to no step"):
        InOrder(fill(ReplayBuffer(4), [("a", 0, True, None)])).evict(0)


class Half:
    def __init__(self, buffer):
        self.buffer = buffer

    def select(self):
        return None


class Inherits(Windowed):
    pass


class Declares(BufferedSampler):
    supports_buffer_checkpoint = True

    def __init__(self, buffer, *, floor):
        super().__init__(buffer)
        self.floor = floor

    admissible = Windowed.admissible
    admit = Windowed.admit
    evict = ReadyFirst.evict
    required_buffer_capacity = Windowed.required_buffer_capacity
    is_on_policy = False


def test_sc_3_2_a_custom_sampler_names_what_it_lacks():
    with pytest.raises(SamplerUnusable, match="lacks admissible, admit, evict"):
        load_custom(f"{__name__}:Half", {}, ReplayBuffer(4))
    with pytest.raises(SamplerUnusable, match="cannot be imported"):
        load_custom("nowhere.to:Be", {}, ReplayBuffer(4))
    with pytest.raises(SamplerUnusable, match="cannot be built"):
        load_custom(f"{__name__}:Declares", {}, ReplayBuffer(4))
    assert issubclass(SamplerUnusable, RunError)


def test_sc_3_3_capabilities_of_a_custom_sampler_count_only_where_it_declares_them():
    sampler = load_custom(f"{__name__}:Declares", {"floor": 2}, ReplayBuffer(4))
    assert (sampler.floor, sampler.supports_buffer_checkpoint, sampler.supports_training_claims) == (
        2,
        True,
        False,
    )
    inherited = load_custom(f"{__name__}:Inherits", {}, ReplayBuffer(4))
    assert not inherited.supports_buffer_checkpoint


@dataclass(slots=True)
class Slotted(Windowed):
    """Its instances have no dictionary."""

    supports_training_claims: ClassVar[bool] = True
    extra: int = 0


@pytest.mark.parametrize(
    ("target", "claims"),
    [(f"{__name__}:Slotted", True), ("asyncrl_runtime.core.samplers.windowed:Windowed", False)],
)
def test_a_custom_sampler_may_be_a_class_with_slots(target, claims):
    sampler = load_custom(target, {"window": 3}, fill(ReplayBuffer(4), [("a", 0, True, None)]))

    assert isinstance(sampler, Windowed)
    assert (sampler.name, sampler.window) == (target, 3)
    assert (sampler.supports_buffer_checkpoint, sampler.supports_training_claims) == (False, claims)
    assert [slot.group_id for slot in sampler.evict(4)] == ["a"]


def not_a_class(buffer):
    return Windowed(buffer)


class Stubborn(Windowed):
    def __init__(self, buffer):
        raise KeyError(buffer)


def test_what_a_custom_sampler_raises_names_the_sampler(tmp_path, monkeypatch):
    (tmp_path / "torn_sampler.py").write_text("class Sampler(:\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SamplerUnusable, match="target torn_sampler:Sampler: cannot be imported: SyntaxError"):
        load_custom("torn_sampler:Sampler", {}, ReplayBuffer(4))
    with pytest.raises(SamplerUnusable, match="is a function: name a class"):
        load_custom(f"{__name__}:not_a_class", {}, ReplayBuffer(4))
    with pytest.raises(SamplerUnusable, match=r"cannot be built with .*: KeyError"):
        load_custom(f"{__name__}:Stubborn", {}, ReplayBuffer(4))
