"""From a saved cut to what is kept, generated again, or refused (SC-9.60 to 9.66, 9.76, 9.83)."""

import json
from dataclasses import replace

import pytest
from support.groups import group

from asyncrl_runtime.core.ledger import PromptLedger
from asyncrl_runtime.core.records import PromptRef
from asyncrl_runtime.core.restore import Cut, RestoreRefused, entries_in_order, plan_restore

DATASET = {"name": "d", "length": 100, "fingerprint": "f"}


def cut_of(index, unfinished, *, cursor=7, version=5, sampler="in_order", **changes):
    """`index` and `unfinished` as {target: groups}."""
    ledger, place, ready = PromptLedger(), 0, []
    for target, count in index.items():
        for _ in range(count):
            (entry,) = ledger.own([PromptRef(0, place)])
            ledger.begin_attempt(entry, version)
            ready.append(group(entry.group_id, weight=version, target=target, place=place))
            ledger.commit(entry.group_id)
            place += 1
    for target, count in unfinished.items():
        for _ in range(count):
            (entry,) = ledger.own([PromptRef(0, place)])
            ledger.admit([entry], target)
            if place % 2:
                ledger.begin_attempt(entry, version)
            place += 1
    values = {
        "steps": version,
        "trainer_version": version,
        "content_version": version,
        "consumed_groups": 0,
        "total_valid_tokens": 0,
        "policy_optimizer_steps": version,
        "groups_per_step": 2,
        "generations": 1,
        "sampler": sampler,
        "cursor": cursor,
        "data": {"epoch": 0, "next_batch": 0},
        "dataset": DATASET,
        "ledger": ledger.to_json(),
        "index": tuple(ready),
    }
    return Cut(**{**values, **changes})


def plan(cut, **changes):
    settings = {
        "path": "step_5",
        "sampler": "in_order",
        "stamps": True,
        "capacity": 6,
        "groups_per_step": 2,
        "generations": 1,
        "dataset": DATASET,
    }
    return plan_restore(cut, **{**settings, **changes})


def unfinished_by_step(plan):
    steps = [entry.target_step for entry in plan.ledger.entries.values()]
    return {step: steps.count(step) for step in steps}


def stays_balanced(plan):
    plan.ledger.check(buffered=len(plan.ready), claimed=0)


# ── EX-9.4 ──────────────────────────────────────────────────────────────────────────────────────────


def test_ex_9_4_a_sc_14_152_and_14_179_index_and_ledger_come_back_under_their_stamps():
    plan_a = plan(cut_of({5: 2, 6: 1}, {6: 1, 7: 2}))
    assert [meta.target_step for meta in plan_a.ready] == [5, 5, 6]
    assert unfinished_by_step(plan_a) == {6: 1, 7: 2}
    assert {entry.state for entry in plan_a.ledger.entries.values()} == {"admitted"}
    assert (plan_a.cursor, plan_a.clear) == (7, ())
    stays_balanced(plan_a)


def test_ex_9_4_b_sc_14_178_a_step_that_lost_a_group_closes_without_it():
    cut = cut_of({5: 1, 6: 2}, {7: 2}, accounts={"shortfall": {"5": 1}})
    plan_b = plan(Cut.from_json(json.loads(json.dumps(cut.to_json())), path="p"))
    assert (plan_b.cursor, plan_b.accounts.target_groups(5, 2)) == (7, 1)
    stays_balanced(plan_b)


def test_ex_9_4_c_a_step_that_lacks_a_group_is_refused():
    with pytest.raises(RestoreRefused, match=r"step 5 owns 1 ready and 0 unfinished .* 0 lost, instead of 2"):
        plan(cut_of({5: 1, 6: 2}, {7: 2}))


def test_ex_9_4_d_and_sc_14_153_stamps_above_the_cursor_are_refused():
    with pytest.raises(RestoreRefused, match="groups of step 7 above its cursor 6"):
        plan(cut_of({5: 2, 6: 1}, {6: 1, 7: 2}, cursor=6))


def test_ex_9_4_e_sc_14_152_without_rows_every_prompt_is_prompt_work():
    plan_e = plan(cut_of({}, {6: 1, 7: 2}, has_rollouts=False))
    assert (plan_e.ready, plan_e.cursor) == ((), None)
    assert {(entry.state, entry.target_step) for entry in plan_e.ledger.entries.values()} == {
        ("reserved", None)
    }


def test_ex_9_4_f_under_another_sampler_every_prompt_is_prompt_work():
    cut = cut_of({None: 3}, {None: 2}, cursor=-1, sampler="windowed")
    plan_f = plan(cut)
    assert (plan_f.ready, plan_f.cursor) == ((), None)
    assert len(plan_f.ledger.entries) == 5
    assert {(entry.state, entry.target_step) for entry in plan_f.ledger.entries.values()} == {
        ("reserved", None)
    }
    assert set(plan_f.clear) == {sample for meta in cut.index for sample in meta.sample_ids}
    assert "from windowed to in_order: 5 prompts" in plan_f.notes[0]
    assert [e.prompt.position for e in entries_in_order(plan_f.ledger)] == [0, 1, 2, 3, 4]
    stays_balanced(plan_f)


def test_ex_9_4_g_sc_14_179_incomplete_steps_are_generated_again_where_asked_for():
    cut = cut_of({5: 2, 6: 1}, {6: 1, 7: 2})
    plan_g = plan(cut, drop_incomplete_targets=True)
    assert [meta.target_step for meta in plan_g.ready] == [5, 5]
    assert unfinished_by_step(plan_g) == {6: 2, 7: 2}
    assert plan_g.clear == cut.index[2].sample_ids
    assert plan_g.cursor == 7
    stays_balanced(plan_g)


@pytest.mark.parametrize("changes", [{"sampler": "windowed", "stamps": False}, {}])
@pytest.mark.parametrize("has_rollouts", [True, False])
def test_sc_14_151_the_reserve_comes_back_whatever_has_changed(changes, has_rollouts):
    ledger = PromptLedger()
    ledger.divert([PromptRef(0, 3), PromptRef(0, 1)])
    cut = cut_of({}, {}, cursor=4, has_rollouts=has_rollouts, ledger=ledger.to_json())
    again = plan(Cut.from_json(json.loads(json.dumps(cut.to_json())), path="p"), **changes)
    assert list(again.ledger.reserve) == [PromptRef(0, 3), PromptRef(0, 1)]


# ── capacity ────────────────────────────────────────────────────────────────────────────────────────


def unstamped(**changes):
    cut = cut_of({None: 3}, {}, cursor=-1, sampler="windowed", **changes)
    return replace(
        cut, index=tuple(replace(m, start_weight=w) for m, w in zip(cut.index, (1, 3, 2), strict=True))
    )


def test_ex_4_2_unstamped_groups_above_the_capacity_give_way_to_fresher_ones():
    cut = unstamped()
    kept = plan(cut, sampler="windowed", stamps=False, capacity=2)
    assert [meta.start_weight for meta in kept.ready] == [3, 2]
    assert [entry.prompt.position for entry in kept.ledger.entries.values()] == [0]
    assert kept.clear == cut.index[0].sample_ids
    assert kept.cursor == -1
    stays_balanced(kept)


def test_ex_4_2_sc_14_155_groups_that_were_rolled_back_are_kept_above_the_capacity():
    kept = plan(unstamped(rolled_back_groups=1), sampler="windowed", stamps=False, capacity=2)
    assert [meta.start_weight for meta in kept.ready] == [1, 3, 2]


def test_sc_14_155_stamped_groups_above_the_capacity_are_refused_with_the_number():
    with pytest.raises(RestoreRefused, match="maxBufferedRollouts is 5: raise it to 6"):
        plan(cut_of({5: 2, 6: 1}, {6: 1, 7: 2}), capacity=5)
    plan(cut_of({5: 2, 6: 1}, {6: 1, 7: 2}), capacity=6)


def test_sc_4_64_a_stamped_group_is_never_truncated_whatever_the_sampler_says_of_itself():
    with pytest.raises(RestoreRefused, match="raise it to 3"):
        plan(
            cut_of({5: 2, 6: 1}, {}, cursor=5, sampler="my:Sampler"),
            sampler="my:Sampler",
            stamps=False,
            capacity=2,
        )


# ── fit ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"groups_per_step": 3}, "numPromptsPerStep was 2"),
        ({"generations": 4}, "numGenerationsPerPrompt was 1"),
    ],
)
def test_sc_14_156_another_step_shape_is_refused(changes, field):
    with pytest.raises(RestoreRefused, match=f"{field} when it was saved"):
        plan(cut_of({5: 2, 6: 2, 7: 2}, {}), **changes)


@pytest.mark.parametrize("key", ["name", "length", "fingerprint"])
def test_sc_9_65_sc_14_172_changed_data_is_refused_while_its_prompts_are_owned(key):
    changed = {**DATASET, key: "other"}
    for cut in (cut_of({5: 2, 6: 2, 7: 2}, {}), cut_of({}, {5: 2, 6: 2, 7: 2})):
        with pytest.raises(RestoreRefused, match=f"the prompts changed.*{key}.*while 6 of the old ones"):
            plan(cut, dataset=changed)


def test_sc_9_65_changed_data_is_fine_when_nothing_is_owned():
    cut = cut_of({}, {}, cursor=4)
    assert plan(cut, dataset={**DATASET, "length": 7}).ready == ()


def test_sc_14_172_other_prompts_are_taken_from_the_beginning():
    cut = cut_of({}, {}, cursor=4)
    assert plan(cut).data == cut.data
    assert plan(cut, dataset={**DATASET, "fingerprint": "other"}).data is None
    spare = cut_of({}, {}, cursor=4)
    spare.ledger["reserve"].append({"epoch": 0, "position": 3})
    with pytest.raises(RestoreRefused, match="while 1 of the old ones"):
        plan(spare, dataset={**DATASET, "fingerprint": "other"})


def test_sc_14_158_a_refusal_changes_nothing():
    cut = cut_of({5: 1, 6: 2}, {7: 2})
    before = json.dumps(cut.to_json())
    with pytest.raises(RestoreRefused):
        plan(cut)
    assert json.dumps(cut.to_json()) == before


# ── form ────────────────────────────────────────────────────────────────────────────────────────────


def test_sc_14_159_a_cut_survives_json():
    cut = cut_of({5: 2, 6: 1}, {6: 1, 7: 2}, rolled_back_groups=1)
    meta = replace(
        cut.index[0],
        end_weight=9,
        straddled=True,
        metrics={"reward": 1.5},
        reward_components=("format", "answer"),
    )
    cut = replace(cut, index=(meta, *cut.index[1:]))
    again = Cut.from_json(json.loads(json.dumps(cut.to_json())), path="p")
    assert again == cut
    assert (again.index[0].start_weight, again.index[0].end_weight) == (5, 9)


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_another_schema_is_refused(version):
    value = {**cut_of({}, {}, cursor=4).to_json(), "schema_version": version}
    with pytest.raises(RestoreRefused, match=f"schema version is {version}, and this release reads 1"):
        Cut.from_json(value, path="p")
