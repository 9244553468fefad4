import contextlib
import copy

import pytest
import yaml

from asyncrl_api.base import keys_of
from asyncrl_api.job import AsyncRLJob
from asyncrl_api.nulls import manifest_of
from asyncrl_api.parse import UNSET, ManifestInvalid, parse
from asyncrl_api.paths import find
from asyncrl_api.problems import rests_on
from asyncrl_api.renames import BLOCKS, GONE, MOVED, new_place
from asyncrl_api.rules import RULES


def problems_of(raw):
    with pytest.raises(ManifestInvalid) as refused:
        parse(raw)
    return list(refused.value.problems)


def only_problem(raw):
    (problem,) = problems_of(raw)
    return problem


def test_the_examples_are_valid(example):
    job = parse(example, cluster=True)
    assert job.metadata.name == example["metadata"]["name"]
    assert parse(yaml.safe_load(yaml.safe_dump(manifest_of(job)))) == job


def test_a_null_that_is_a_value_survives_writing_and_reading(manifest):
    job = parse(manifest(algorithm__grpo={"maxNumEpochs": None}))
    written = manifest_of(job)
    assert "maxInflightGenerations" not in written["spec"]["asyncRL"]
    assert parse(written).spec.algorithm.grpo.max_num_epochs is None


@pytest.mark.parametrize(
    ("settings", "path", "kind", "message"),
    [
        (
            {"asyncRL__maxInflightPrompts": 0},
            "spec.asyncRL.maxInflightPrompts",
            "bound",
            "spec.asyncRL.maxInflightPrompts is 0, below the minimum 1: raise it",
        ),
        (
            {"generation__sampling": {"temperature": 0}},
            "spec.generation.sampling.temperature",
            "bound",
            "spec.generation.sampling.temperature is 0, not above 0: raise it",
        ),
        (
            {"training__optimizer": {"beta1": 1}},
            "spec.training.optimizer.beta1",
            "bound",
            "spec.training.optimizer.beta1 is 1, not below 1: lower it",
        ),
        (
            {"algorithm__grpo": {"numPromptsPerStep": 65537}},
            "spec.algorithm.grpo.numPromptsPerStep",
            "bound",
            "spec.algorithm.grpo.numPromptsPerStep is 65537, above the maximum 65536: lower it",
        ),
        (
            {"data__seed": 2**63},
            "spec.data.seed",
            "bound",
            "spec.data.seed is 9223372036854775808, above the maximum 9223372036854775807: lower it",
        ),
        (
            {"suspend": "yes"},
            "spec.suspend",
            "type",
            'spec.suspend is "yes", not true or false: write true or false',
        ),
        (
            {"asyncRL__maxInflightPrompts": "8"},
            "spec.asyncRL.maxInflightPrompts",
            "type",
            'spec.asyncRL.maxInflightPrompts is "8", not a whole number: '
            "write one without quotes or a fraction",
        ),
        (
            {"training__optimizer": {"lr": float("inf")}},
            "spec.training.optimizer.lr",
            "type",
            "spec.training.optimizer.lr is Infinity, not a finite number: write one",
        ),
        (
            {"faultPolicy__rules": {}},
            "spec.faultPolicy.rules",
            "type",
            "spec.faultPolicy.rules is {}, not a list: write it as [a, b] or with dashes",
        ),
        (
            {"asyncRL__sampler": {"name": "window"}},
            "spec.asyncRL.sampler.name",
            "choice",
            'spec.asyncRL.sampler.name is "window", not one of in_order, weight_fifo, ready_first, windowed, '
            "custom: use one of these; did you mean windowed?",
        ),
        (
            {"controller__resources": {"requests": {"cpu": "1.5x"}}},
            "spec.controller.resources.requests.cpu",
            "form",
            'spec.controller.resources.requests.cpu is "1.5x", not a quantity: '
            "write one such as 500m, 4 or 512Gi",
        ),
        (
            {"logging__sampleMaxSize": "0"},
            "spec.logging.sampleMaxSize",
            "form",
            'spec.logging.sampleMaxSize is "0", which is not allowed (must be above 0): change it',
        ),
        (
            {"rayVersion": "2.60"},
            "spec.rayVersion",
            "form",
            'spec.rayVersion is "2.60", which does not have the form ^[0-9]+\\.[0-9]+\\.[0-9]+$: '
            "write it in that form",
        ),
        (
            {"controller__env": [{"value": "x"}]},
            "spec.controller.env[0].name",
            "missing",
            "spec.controller.env[0].name is missing: add it (name of the variable)",
        ),
        (
            {"model__revision": "x" * 129, "model__name": "m", "model__init": None},
            "spec.model.revision",
            "length",
            f'spec.model.revision is "{"x" * 59}…, longer than 128 characters: shorten it',
        ),
    ],
)
def test_a_schema_problem_is_a_sentence(manifest, settings, path, kind, message):
    problem = only_problem(manifest(**settings))
    assert (problem.path, problem.kind, str(problem)) == (path, kind, message)


def test_a_missing_block_says_what_it_is_for(manifest):
    problem = only_problem(manifest(environment=manifest.deleted))
    assert str(problem).startswith("spec.environment is missing: add it (what answers the model")
    assert problem.value is UNSET


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        ({"asyncRL__maxInflightPrompt": 1}, "spec.asyncRL.maxInflightPrompts"),
        ({"asyncRL__max_inflight_prompts": 1}, "spec.asyncRL.maxInflightPrompts"),
        ({"trainig": {}}, "spec.training"),
        ({"environment": {"byTask": {"add": {"arithmetics": {}}}}}, "spec.environment.byTask.add.arithmetic"),
        ({"asyncRL__stallTimeoutSeconds": 3}, "spec.asyncRL.stallWatchdog.stallTimeoutSeconds"),
        ({"loss__x1y2z3": 1}, None),
    ],
)
def test_sc_14_140_an_unknown_key_names_the_nearest_known_one(manifest, settings, nearest):
    problem = problems_of(manifest(**settings))[0]
    if problem.kind == "renamed":
        assert nearest in str(problem)
        return
    assert (problem.kind, problem.nearest) == ("unknown", nearest)
    assert nearest is None or nearest in str(problem)


def test_an_unknown_key_with_a_null_is_still_unknown(manifest):
    assert only_problem(manifest(asyncRL__foo=None)).kind == "unknown"


def test_null_leaves_a_key_out_except_where_it_is_a_value(manifest):
    raw = manifest(
        loss=None,
        value=None,
        asyncRL__maxInflightPrompts=None,
        validation__batchSize=None,
        algorithm__grpo={"maxNumEpochs": None, "seed": None},
    )
    spec = parse(raw).spec
    assert spec.loss.ratio_clip_min == 0.2
    assert spec.async_rl.max_inflight_prompts == 32
    assert spec.validation.batch_size is None
    assert (spec.algorithm.grpo.max_num_epochs, spec.algorithm.grpo.seed) == (None, 42)


@pytest.mark.parametrize("raw", [None, [], "x", 3])
def test_a_manifest_that_is_no_object(raw):
    assert only_problem(raw).path == ""


def test_all_problems_are_reported_at_once(manifest):
    raw = manifest(
        asyncRL={"maxInflightPrompts": 0, "stallWatchdog": {"intervalSeconds": 700}},
        training__optimizer={"lr": "x"},
        scheduling={"provider": "Kueue"},
        foo=1,
    )
    assert {(problem.path, problem.kind) for problem in problems_of(raw)} == {
        ("spec.asyncRL.maxInflightPrompts", "bound"),
        ("spec.training.optimizer.lr", "type"),
        ("spec.foo", "unknown"),
        ("spec.asyncRL.stallWatchdog.stallTimeoutSeconds", "V-51"),
        ("spec.scheduling.queueName", "V-100"),
    }


def test_a_rule_is_not_judged_on_a_value_that_is_wrong_itself(manifest):
    """With N unreadable, what the buffer must hold is unknown."""
    raw = manifest(
        algorithm__grpo={"numPromptsPerStep": "many"},
        asyncRL={"maxBufferedRollouts": 1, "minGroupsForStreamingTrain": 64},
    )
    assert [problem.path for problem in problems_of(raw)] == ["spec.algorithm.grpo.numPromptsPerStep"]


def test_sc_14_147_a_rule_is_judged_beside_a_missing_block(manifest):
    raw = manifest(environment=manifest.deleted, generation__minShards=3)
    assert [problem.kind for problem in problems_of(raw)] == ["missing", "V-91"]


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_what_a_rule_rests_on_are_fields(rule):
    if rule.where == "/":
        return
    node = ("spec." + rule.where).rstrip(".").replace("[*]", ".x").replace("[]", "[0]")
    for group in ("{grpo,ppo}", "{source,validation}", "{controller,generation,training}"):
        node = node.replace(group, group.strip("{}").split(",")[-1])
    rests = rests_on(rule, node)
    assert rests
    assert all(find(path.rstrip("?")) for path in rests)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"policy": {"train_micro_batch_size": 3}}, "set spec.training.microBatchSize instead"),
        ({"grpo": {"val_period": 3}}, "set spec.validation.periodSteps instead"),
        ({"algorithm__grpo": {"val_period": 3}}, "set spec.validation.periodSteps instead"),
        (
            {"grpo": {"async_grpo": {"max_trajectory_age_steps": 3}}},
            "set spec.asyncRL.sampler.maxLookaheadVersions instead",
        ),
        (
            {"asyncRL": {"watchdog": {"interval_s": 3}}},
            "set spec.asyncRL.stallWatchdog.intervalSeconds instead",
        ),
        (
            {"asyncRL": {"rolloutFailure": {"maxAttemptsPerPrompt": 3}}},
            "set spec.asyncRL.rolloutFailure.maxInfraAttemptsPerPrompt instead",
        ),
        ({"policy": {"train_global_batch_size": 3}}, "the batch follows from numPromptsPerStep"),
        ({"loss_fn": {"ratio_clip_min": 0.1}}, "set spec.loss.ratioClipMin instead"),
        ({"asyncRL": {"forceInOrder": True}}, "set spec.asyncRL.sampler.name instead"),
    ],
)
def test_sc_14_140_an_old_name_is_refused_with_its_new_place(manifest, settings, advice):
    """SC-2.2, SC-2.340…351."""
    problem = only_problem(manifest(**settings))
    assert problem.kind == "renamed"
    assert advice in str(problem)


def test_other_keys_of_a_moved_block_are_reported_too(manifest):
    found = problems_of(manifest(policy={"train_micro_batch_size": 3, "what": 1}))
    assert {problem.path for problem in found} == {"spec.policy.train_micro_batch_size", "spec.policy.what"}


@pytest.mark.parametrize("path", [*MOVED.values(), *BLOCKS.values()])
def test_new_places_exist(path):
    assert find(path) is not None


@pytest.mark.parametrize("old", GONE)
def test_what_is_gone_is_not_a_field(old):
    assert find(old) is None or new_place(old) != old


def test_no_value_of_a_wrong_manifest_gives_a_traceback(example):
    """Every scalar in turn is replaced by things that it cannot be."""
    for path in leaves(example):
        for wrong in (None, {}, [], "…", -1, 1e30, {"x": [None]}):
            raw = copy.deepcopy(example)
            node = raw
            for step in path[:-1]:
                node = node[step]
            node[path[-1]] = wrong
            with contextlib.suppress(ManifestInvalid):
                parse(raw)


def leaves(node, path=()):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    elif path:
        yield path


def test_keys_are_camel_case_and_unique():
    keys = [key for key, _, _ in keys_of(AsyncRLJob)]
    assert keys == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert find("spec.asyncRL").name == "async_rl"


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize(
    ("key", "value"), [("maxNumSteps", 0), ("maxNumSteps", -1), ("maxNumEpochs", 0), ("maxNumEpochs", -1)]
)
def test_sc_14_142_a_run_that_would_train_nothing_is_refused(manifest, algorithm, key, value):
    with pytest.raises(ManifestInvalid, match=f"spec.algorithm.{algorithm}.{key} is {value}"):
        parse(manifest(algorithm={algorithm: {key: value}}))
