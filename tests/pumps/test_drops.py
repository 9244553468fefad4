"""Prompts that are given up: shrink, replace, promote, the reserve and its drain, groups that are owed."""

import asyncio
from dataclasses import dataclass, field

import pytest
from support.groups import put_slot
from support.runs import Run, Script, run_script

from asyncrl_runtime.core.drops import DropPolicy
from asyncrl_runtime.core.errors import (
    DataExhausted,
    DataFailure,
    InfraFailure,
    PromptFailed,
    StepBelowFloor,
)
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.samplers.ready_first import ReadyFirst
from asyncrl_runtime.core.samplers.weight_fifo import WeightFifo

pytestmark = pytest.mark.looptime

REPLACE = DropPolicy(replaces=True)


def ordered(window):
    return lambda buffer: InOrder(buffer, window=window)


def position(request):
    return int(request.request_id.split("p")[1].split("_")[0])


@dataclass
class Outcomes:
    """Rollouts that take a second and end as the script says, in the order in which they began."""

    run: Run
    script: str
    rolled: list = field(default_factory=list)

    def __post_init__(self):
        self.inner = self.run.groups.rollouts
        self.run.groups.rollouts = self

    async def roll_group(self, prompt, **rest):
        entry = self.run.ledger.entries[rest["group_id"]]
        outcome = self.script[len(self.rolled)]
        self.rolled.append((prompt.ref.position, entry.target_step))
        record = await self.inner.roll_group(prompt, **rest)
        if outcome == "S":
            raise DataFailure("bad")
        return record


@dataclass(frozen=True)
class Drops:
    """A row of EX-5.2."""

    prompts: int
    outcomes: str
    rolled: list
    shortfall: dict = field(default_factory=dict)
    replaced: dict = field(default_factory=dict)
    promoted: dict = field(default_factory=dict)
    free: int = 0
    policy: DropPolicy = REPLACE
    groups: int = 1
    lender: int | None = None
    lender_ready: bool = True
    version: int = 0
    sampler: object = ordered(1)
    reserve: int = 0
    owed: int = 0
    lender_target: int | None = None


# SC-14.2 j, 14.8 g, 14.9 e and f, 14.12 d and h, 14.13 d and j, 14.15 i, 14.17 a, 14.20 d.
EX_5_2 = {
    "a": Drops(2, "SC", [(0, 0), (1, 0)], replaced={0: 1}, free=3),
    "b": Drops(2, "SS", [(0, 0), (1, 0)], shortfall={0: 1}, free=4),
    "c": Drops(2, "SC", [(0, 0), (1, 1)], shortfall={0: 1}, free=3, policy=DropPolicy()),
    "d": Drops(
        2, "SC", [(0, 0), (1, 1)], replaced={1: 1}, promoted={0: 1}, free=2, lender=1, lender_target=0
    ),
    "d'": Drops(
        2, "SS", [(0, 0), (1, 1)], shortfall={1: 1}, promoted={0: 1}, free=3, lender=1, lender_target=0
    ),
    "e": Drops(
        2, "SC", [(0, 0), (1, 0)], replaced={0: 1}, free=2, lender=1, lender_ready=False, lender_target=1
    ),
    "f": Drops(2, "SC", [(0, 0), (1, 0)], replaced={0: 1}, free=2, lender=9, version=5, lender_target=9),
    "g": Drops(1, "S", [(0, 0)], shortfall={0: 1}, free=3, lender=1, lender_target=1),
    "h": Drops(2, "CC", [(0, 0), (1, 1)], free=2),
    "i": Drops(4, "SCC", [(0, 0), (1, 0), (2, 0)], replaced={0: 1}, free=2, groups=2, reserve=1),
    "j": Drops(2, "SC", [(0, None), (1, None)], free=3, sampler=lambda b: WeightFifo(b, window=1), owed=1),
}


@pytest.mark.parametrize("name", EX_5_2)
async def test_ex_5_2(name):
    case = EX_5_2[name]
    run = Run(
        Script(
            prompts=case.prompts,
            groups_per_step=case.groups,
            sampler=case.sampler,
            capacity=4,
            data_attempts=1,
            max_skipped=10,
            drops=case.policy,
        )
    )
    run.versions.trainer = case.version
    if case.lender is not None:
        put_slot(run.buffer, "lender", target=case.lender, ready=case.lender_ready)
    outcomes = Outcomes(run, case.outcomes)
    run.gate.open()
    pump = asyncio.create_task(run.rollout.run())
    await asyncio.sleep(60)
    assert run.rollout.exhausted
    pump.cancel()
    assert sorted(outcomes.rolled) == sorted(case.rolled)
    accounts = run.accounts.to_json()
    for name in ("shortfall", "replaced", "promoted"):
        assert accounts[name] == {str(step): n for step, n in getattr(case, name).items()}
    assert run.buffer.free == case.free
    assert (len(run.ledger.reserve), len(run.ledger.owed)) == (case.reserve, case.owed)
    if case.lender is not None:
        assert next(s for s in run.buffer if s.group_id == "lender").target_step == case.lender_target
    assert run.ledger.dropped == case.outcomes.count("S")
    assert run.ledger.counts(buffered=case.outcomes.count("C"), claimed=0).balanced


EX_5_6 = {
    "a": (6, {0}, 0.9, [(0, 0), (1, 0), (4, 0), (2, 1), (3, 1)], 2, 1),
    "b": (6, {0, 4}, 0.9, [(0, 0), (1, 0), (4, 0), (5, 0), (2, 1), (3, 1)], 2, 0),
    "c": (2, {0}, 0.5, [(0, 0), (1, 0)], 1, 0),
    "e": (4, {0}, 0.9, [(0, 0), (1, 0), (2, 0)], 1, 1),
}


@pytest.mark.parametrize("name", EX_5_6)
async def test_ex_5_6_a_filtered_group_is_made_up_for_outside_the_cursor(name):
    prompts, filtered, fraction, rolled, steps, reserve = EX_5_6[name]
    run = filtering(prompts, filtered, fraction, sampler=ordered(0))
    outcomes = Outcomes(run, "C" * 9)
    assert await run.go() == "data_exhausted"
    assert outcomes.rolled == rolled
    assert run.progress.steps == steps
    assert run.ledger.discarded == {"filtered": len(filtered)}
    assert len(run.ledger.reserve) == reserve
    assert run.records.steps[0]["train/dropped_prompt_groups"] == (1 if name == "c" else 0)
    assert run.balanced


@pytest.mark.parametrize("sampler", [WeightFifo, ReadyFirst])
async def test_ex_5_6_e_sc_14_24_one_loss_does_not_close_an_unstamped_gate(sampler):
    run = filtering(4, {0}, 0.9, sampler=lambda buffer: sampler(buffer, window=0))
    assert await run.go() == "data_exhausted"
    assert (run.progress.steps, len(run.ledger.reserve)) == (1, 1)
    assert run.trained_prompts() == [1, 2]


@pytest.mark.parametrize("policy", ["train", "discard"])
async def test_ex_5_6_d_below_the_floor_the_rest_is_discarded(policy):
    run = filtering(2, {0}, 0.9, sampler=ordered(0), policy=policy)
    assert await run.go() == "data_exhausted"
    assert run.progress.steps == 0
    assert run.ledger.discarded == {"filtered": 1, "left_over": 1}
    assert run.accounts.to_json()["shortfall"] == {}
    assert await run.plane.keys() == frozenset()
    assert run.balanced


async def test_ex_5_6_d_below_the_floor_the_run_ends_with_an_error():
    run = filtering(2, {0}, 0.9, sampler=ordered(0), policy="error")
    with pytest.raises(DataExhausted, match="step 0 with 0/1 prompt groups and 1 buffered"):
        await run.go()


def filtering(prompts, filtered, fraction, *, sampler, policy="error"):
    return Run(
        Script(
            prompts=prompts,
            groups_per_step=2,
            sampler=sampler,
            fraction=fraction,
            final_partial_step=policy,
            discard_group=lambda record: record.prompt.ref.position in filtered,
        )
    )


# ── budgets and the floor ───────────────────────────────────────────────────────────────────────────────


def failing_at(positions, error):
    return lambda request: error("bad") if position(request) in positions else None


async def test_sc_14_1_and_14_6_a_dropped_prompt_shrinks_its_step_and_no_other():
    run = await run_script(
        prompts=8,
        groups_per_step=4,
        fraction=0.5,
        data_attempts=2,
        max_skipped=1,
        failing=failing_at({5}, DataFailure),
    )
    assert run.outcome == "data_exhausted"
    assert [step["train/dropped_prompt_groups"] for step in run.records.steps] == [0, 1]
    assert [step["train/groups_trained"] for step in run.records.steps] == [4, 3]
    assert run.records.steps[1]["rollout/skipped_total/DataFailure"] == 1
    assert run.records.steps[1]["rollout/data_failures_total"] == 2
    assert run.records.steps[1]["rollout/redispatch_total"] == 0
    assert run.balanced


async def test_sc_14_20_a_replaced_prompt_leaves_no_gap_and_repays_what_it_borrowed():
    run = await run_script(
        prompts=12,
        groups_per_step=4,
        data_attempts=1,
        max_skipped=1,
        drops=REPLACE,
        failing=failing_at({1}, DataFailure),
    )
    assert [step["train/promoted_prompt_groups"] for step in run.records.steps] == [1, 0]
    assert [step["train/replaced_prompt_groups"] for step in run.records.steps] == [0, 1]
    assert [step["train/groups_trained"] for step in run.records.steps] == [4, 4]
    assert len(run.ledger.reserve) == 3
    (dropped,) = run.events.of("prompt_dropped")
    assert (dropped["target_step"], dropped["replaced_by"], dropped["replacement_step"]) == (0, "e0p4", 1)


async def test_sc_14_14_a_clean_run_trains_as_much_with_a_reserve_as_without():
    plain = await run_script(prompts=12, groups_per_step=4)
    spare = await run_script(prompts=12, groups_per_step=4, drops=REPLACE, max_skipped=1)
    assert spare.progress.steps == plain.progress.steps == 3
    assert sorted(spare.trained_prompts()) == sorted(plain.trained_prompts())


async def test_ex_8_3_a_commit_forgives_drops_in_a_row():
    # One prompt at a time: drop, drop, commit, drop, drop, drop.
    run = Run(
        Script(
            prompts=6,
            groups_per_step=6,
            max_inflight=1,
            infra_attempts=1,
            max_consecutive=2,
            fraction=0.01,
            failing=failing_at({0, 1, 3, 4, 5}, InfraFailure),
        )
    )
    with pytest.raises(PromptFailed, match=r"prompt 5 .*maxConsecutiveDroppedPrompts \(now 2, spent\)"):
        await run.go()
    assert run.ledger.dropped == 4
    assert run.budgets.most_consecutive == 2


async def test_ex_8_4_the_third_skipped_prompt_ends_the_run():
    run = Run(
        Script(
            prompts=6,
            groups_per_step=6,
            max_inflight=1,
            data_attempts=1,
            max_skipped=2,
            fraction=0.01,
            failing=failing_at({0, 2, 4}, DataFailure),
        )
    )
    with pytest.raises(PromptFailed, match=r"prompt 4 .*maxSkippedPrompts \(now 2, spent\)"):
        await run.go()
    assert run.budgets.skipped == 2


async def test_ex_8_2_sc_14_46_both_budgets_of_a_prompt_count_by_themselves():
    kinds = iter([DataFailure, InfraFailure, InfraFailure, InfraFailure, InfraFailure, DataFailure])
    run = Run(
        Script(prompts=1, groups_per_step=1, generations=1, failing=lambda request: next(kinds)("once more"))
    )
    with pytest.raises(PromptFailed, match="after 2 attempts \\(data failures\\)"):
        await run.go()
    assert run.rollout.counters.redispatched == {"InfraFailure": 4}
    assert run.rollout.counters.data_failed == {"DataFailure": 2}


async def test_sc_14_19_the_floor_holds_although_both_budgets_do():
    run = Run(
        Script(
            prompts=8,
            groups_per_step=4,
            data_attempts=1,
            max_skipped=10,
            fraction=0.5,
            failing=failing_at({4, 5, 6}, DataFailure),
        )
    )
    with pytest.raises(StepBelowFloor, match=r"step 1 lost 3 prompt groups, leaving 1, .* fewer than 2"):
        await run.go()
    assert run.balanced


async def test_ex_5_4_sc_14_4_a_drop_in_mid_step_closes_the_step_on_what_is_there():
    # One group is trained on at 1 s; the other prompt is given up at 5 s.
    run = await run_script(
        prompts=2,
        groups_per_step=2,
        smallest_chunk=1,
        fraction=0.5,
        data_attempts=1,
        max_skipped=1,
        generation_seconds=lambda request: 1.0 + 4.0 * position(request),
        failing=failing_at({1}, DataFailure),
    )
    assert run.progress.steps == run.versions.trainer == 1
    assert run.records.steps[0]["train/groups_trained"] == 1
    assert run.records.steps[0]["train/dropped_prompt_groups"] == 1


async def test_sc_8_20_sc_14_40_what_nobody_knows_is_the_prompts_own_failure():
    run = await run_script(
        prompts=2,
        groups_per_step=2,
        fraction=0.5,
        max_skipped=1,
        failing=failing_at({1}, lambda text: KeyError(text)),
    )
    assert run.rollout.counters.data_skipped == {"KeyError": 1}
    assert run.rollout.counters.redispatched == {}


# ── the reserve ─────────────────────────────────────────────────────────────────────────────────────


async def test_sc_14_20_a_slot_that_used_two_spares_counts_as_replaced_once():
    run = Run(
        Script(
            prompts=3,
            groups_per_step=1,
            data_attempts=1,
            max_skipped=9,
            drops=DropPolicy(replaces=True, max_replacements=2, reserve_mark=2),
        )
    )
    run.rollout.stamping_known = True
    run.ledger.divert(run.rollout.cursor.take())
    run.ledger.divert(run.rollout.cursor.take())
    outcomes = Outcomes(run, "SSC")
    assert await run.go() == "data_exhausted"
    assert outcomes.rolled == [(2, 0), (0, 0), (1, 0)]
    assert [step["train/replaced_prompt_groups"] for step in run.records.steps] == [1]
    assert run.ledger.dropped == 2


async def test_sc_14_16_spares_that_a_drop_took_meanwhile_are_not_drained():
    run = Run(Script(prompts=4, groups_per_step=2))
    run.ledger.divert(run.rollout.cursor.take())
    async with run.barrier.cut(timeout_seconds=1):
        draining = asyncio.create_task(run.rollout._drained_batch())
        await asyncio.sleep(1)
        run.ledger.draw_spare(0)
    assert await draining == []
    assert len(run.ledger.reserve) == 1


async def test_sc_14_151_a_restored_reserve_is_trained_on_although_drops_shrink_now():
    run = Run(Script(prompts=4, groups_per_step=2))
    run.ledger.divert(run.rollout.cursor.take())
    assert await run.go() == "data_exhausted"
    assert sorted(run.trained_prompts()) == [0, 1, 2, 3]
    assert run.balanced
