from collections import Counter
from typing import get_args

import pytest

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import ManifestInvalid, parse, parse_change
from asyncrl_api.rules import RULES, change_violations, violations
from asyncrl_api.rules.table import MACROS, expand, look_up, nodes, spell
from asyncrl_api.spec.async_rl import SamplerSpec

ALSO_BROKEN = {
    "bad:V-20:tiscorr:1": {"V-21"},
    "bad:V-70:snapdp:0": {"V-67"},
    "bad:V-71:snapback:0": {"V-70"},
    "bad:V-101:dlstall:1": {"V-53"},
}
"""Cases that cannot break their rule without breaking another."""


def read(raw):
    return AsyncRLJob.model_validate(raw, by_alias=True, by_name=False)


def broken(case):
    job = read(case["object"])
    found = [each.rule.id for each in violations(job, cluster=True)]
    if case.get("old"):
        found += [each.rule.id for each in change_violations(job, read(case["old"]))]
    return set(found)


def test_each_case_breaks_exactly_its_rule(case):
    expected = set() if case["accepted"] else {case["rule"]} | ALSO_BROKEN.get(case["name"], set())
    assert broken(case) == expected


def test_parsing_agrees_with_the_rules(case):
    def check():
        if case.get("old"):
            parse_change(case["object"], read(case["old"]))
        else:
            parse(case["object"], cluster=True)

    if case["accepted"]:
        check()
        return
    with pytest.raises(ManifestInvalid) as refused:
        check()
    assert case["rule"] in {problem.kind for problem in refused.value.problems}


def test_every_rule_has_a_refused_and_an_accepted_case(cases):
    refused = {case["rule"] for case in cases if not case["accepted"]}
    judged = Counter()
    for case in cases:
        if case["accepted"]:
            job = read(case["object"])
            judged.update(
                rule.id
                for rule in RULES
                if any(True for _ in nodes(job, rule.where)) and rule.update <= ("old" in case)
            )
    ids = {rule.id for rule in RULES}
    assert refused == ids
    assert {rule_id for rule_id, count in judged.items() if count} == ids


def test_the_rules_are_numbered_without_gaps():
    assert [rule.id for rule in RULES] == [f"V-{number}" for number in range(1, 114)]


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_a_message_names_the_way_out_and_is_filled(rule, cases):
    case = next(case for case in cases if case["rule"] == rule.id)
    job = read(case["object"])
    found = list(violations(job, cluster=True))
    if case.get("old"):
        found += change_violations(job, read(case["old"]))
    message = next(each.message for each in found if each.rule is rule)
    assert ": " in message or "; " in message
    assert "None" not in message.replace("provider None", "")
    assert "{" not in message.replace("value: {}", "").replace("valueLoss: {}", "")


def test_a_rule_that_only_a_cluster_asks_for_is_not_asked_elsewhere(manifest):
    raw = manifest(checkpointing={})
    assert parse(raw).spec.checkpointing.enabled
    with pytest.raises(ManifestInvalid) as refused:
        parse(raw, cluster=True)
    assert [problem.kind for problem in refused.value.problems] == ["V-79"]


def test_a_finished_job_may_still_change_its_time_to_live(manifest):
    finished = manifest() | {"status": {"phase": "Succeeded"}}
    parse_change(manifest(lifecycle={"ttlSecondsAfterFinished": 60}), read(finished), cluster=False)
    with pytest.raises(ManifestInvalid) as refused:
        parse_change(manifest(suspend=True), read(finished), cluster=False)
    (problem,) = refused.value.problems
    assert (problem.kind, problem.path) == ("V-112", "spec")
    assert "Succeeded" in problem.message


def test_a_rule_about_list_entries_names_the_entry(manifest):
    env = [{"name": "A", "value": "x"}, {"name": "B", "value": "x", "valueFrom": {}}]
    with pytest.raises(ManifestInvalid) as refused:
        parse(manifest(controller={"env": env}))
    (problem,) = refused.value.problems
    assert problem.path == "spec.controller.env[1]"
    assert "variable B" in problem.message


def test_macros_are_written_out_completely():
    for macro in MACROS:
        cel = expand(macro)
        assert not any(word in cel.replace("'", " ").split() for word in MACROS)


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (False, "false"), (30.0, "30"), (0.5, "0.5"), (1e-7, "0.0000001"), (7, "7"), ("x", "x")],
)
def test_values_are_spelt_as_cel_spells_them(value, text):
    assert spell(value) == text


def test_a_path_of_a_message_falls_back_to_its_default(manifest):
    spec = read(manifest()).spec
    assert look_up(spec, ".asyncRL.?maxInflightGenerations.orValue(0)") == "0"
    assert look_up(spec, ".asyncRL.maxInflightPrompts") == 32


NEVER_STAMPING = set(get_args(SamplerSpec.model_fields["name"].annotation)) - {"in_order", "custom"}

BUDGETS = ({"maxSkippedPrompts": 1}, {"maxConsecutiveDroppedPrompts": 1})

TRAPS = [
    *(
        (
            "SC-14.3",
            "V-39",
            {"sampler": {"name": name}, "rolloutFailure": {**budget, "onDroppedPrompt": reaction}},
        )
        for name in sorted(NEVER_STAMPING)
        for budget in BUDGETS
        for reaction in ("shrink", "replace")
    ),
    ("SC-14.49", "V-52", {"rolloutFailure": {"native": {"generationTimeoutSeconds": 1e5}}}),
    ("SC-14.49", "V-52", {"rolloutFailure": {"native": {"envTimeoutSeconds": 1e5}}}),
    ("SC-14.49", "V-53", {"refit": {"deadlineSeconds": 1e5}}),
    ("SC-14.141", "V-50", {"rolloutFailure": {"nemoGym": {"rolloutTimeoutSeconds": 60}}}),
    ("SC-14.141", "V-50", {"rolloutFailure": {"nemoGym": {"maxRowAttempts": 5}}}),
    (
        "SC-14.143",
        "V-48",
        {"rolloutFailure": {"onDroppedPrompt": "replace", "maxReplacementAttempts": 0}},
    ),
    (
        "SC-14.143",
        "V-48",
        {"rolloutFailure": {"onDroppedPrompt": "replace", "replacementReservePrompts": 0}},
    ),
    (
        "SC-14.145",
        "V-41",
        {"sampler": {"name": "in_order", "maxLookaheadVersions": 3}, "maxBufferedRollouts": 1},
    ),
]


@pytest.mark.parametrize(("trap", "rule", "settings"), TRAPS)
def test_settings_that_spring_a_trap_are_refused_by_their_rule(manifest, trap, rule, settings):
    job = read(manifest(asyncRL=settings))
    assert rule in {each.rule.id for each in violations(job, cluster=False)}


@pytest.mark.parametrize("estimator", ["gdpo", "reinforce_plus_plus"])
def test_sc_14_121_statistics_over_the_batch_need_the_whole_step(manifest, estimator):
    grpo = {"numPromptsPerStep": 8, "advEstimator": {"name": estimator}}
    for chunk, refused in ((4, True), (8, False)):
        job = read(manifest(algorithm={"grpo": grpo}, asyncRL={"minGroupsForStreamingTrain": chunk}))
        assert ("V-6" in {each.rule.id for each in violations(job, cluster=False)}) is refused


def test_sc_14_145_the_buffer_is_measured_by_the_widest_window_of_the_run(manifest):
    case = {"algorithm": {"ppo": {"numPromptsPerStep": 4, "policyTrainingStartStep": 9}}}
    for room, refused in ((4 * 5 - 1, True), (4 * 5, False)):
        sampler = {"name": "in_order", "maxLookaheadVersions": 1, "warmupLookaheadVersions": 4}
        job = read(manifest(**case, asyncRL={"sampler": sampler, "maxBufferedRollouts": room}))
        assert ("V-41" in {each.rule.id for each in violations(job, cluster=False)}) is refused
