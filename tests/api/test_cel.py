"""CEL and Python of each rule say the same, in verdict and in words, on the cases and on changed ones."""

import copy
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support import cel

from asyncrl_api.base import Format
from asyncrl_api.derived import Derived
from asyncrl_api.job import AsyncRLJob
from asyncrl_api.nulls import manifest_of
from asyncrl_api.paths import all_places
from asyncrl_api.rules import RULES
from asyncrl_api.rules.table import MACROS, expand, nodes
from asyncrl_api.schema import unwrap

SETTABLE = {
    path: unwrap(place.hint)
    for path, place in all_places().items()
    if path.startswith("spec.") and "[" not in path and place.block is None
}


def read(raw):
    return AsyncRLJob.model_validate(raw, by_alias=True, by_name=False)


def node_of(stored, path):
    for step in path.replace("[", ".").replace("]", "").split("."):
        if step:
            stored = stored[int(step)] if isinstance(stored, list) else stored[step]
    return stored


def check_rules(job):
    stored, derived = manifest_of(job), Derived(job.spec)
    for rule in RULES:
        if rule.update:
            continue
        for path, node in nodes(job, rule.where):
            holds = rule.holds(node, derived)
            found = node_of(stored, path)
            assert cel.evaluate(rule.cel_rule(), self=found) is bool(holds), rule.id
            if not holds and rule.cel_message():
                expected = f"[{rule.id}] {rule.text(node, derived)}"
                assert cel.evaluate(rule.cel_message(), self=found) == expected


def check_changes(job, old):
    for rule in RULES:
        if rule.update:
            before = dict(nodes(old, rule.where))
            for path, node in nodes(job, rule.where):
                if path not in before:
                    continue
                self, old_self = (node_of(manifest_of(each), path) for each in (job, old))
                verdict = cel.evaluate(rule.cel_rule(), self=self, oldSelf=old_self)
                assert verdict is bool(rule.holds(node, before[path])), rule.id


def test_the_cases(case):
    job = read(case["object"])
    check_rules(job)
    if case.get("old"):
        check_changes(job, read(case["old"]))


def values_for(bare, metadata):
    """Values of a type that rules are likely to tell apart."""
    if get_origin(bare) is Literal:
        return st.sampled_from(get_args(bare))
    if bare is bool:
        return st.booleans()
    if any(isinstance(mark, Format) and mark.name == "quantity" for mark in metadata):
        return st.just("2Gi")
    if bare is int:
        return st.sampled_from([0, 1, 2, 3, 4, 16, 32, 33, 64, 128, 1000])
    if bare is float:
        return st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0, 16.0, 30.0, 60.0, 600.0, 2000.0])
    if bare is str:
        return st.sampled_from(["val:accuracy", "pass_k", "nvidia.com/gpu", "a", "a.b:C"])
    return st.just({"x": "sibling"}) if get_origin(bare) is dict else st.just(["x"])


@st.composite
def changes(draw):
    path = draw(st.sampled_from(sorted(SETTABLE)))
    return path, draw(values_for(*SETTABLE[path]))


def changed(raw, settings_):
    raw = copy.deepcopy(raw)
    for path, value in settings_:
        node = raw
        steps = path.split(".")
        for step in steps[:-1]:
            node = node.setdefault(step, {})
        before = node.get(steps[-1], None)
        node[steps[-1]] = value
        try:
            read(raw)
        except ValidationError:
            node[steps[-1]] = before
            if before is None:
                del node[steps[-1]]
    return raw


def readable(raw):
    try:
        return read(raw)
    except ValidationError:
        return None


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_changed_cases(cases, data):
    case = data.draw(st.sampled_from(cases))
    old = read(case["object"])
    job = readable(changed(case["object"], data.draw(st.lists(changes(), min_size=1, max_size=8))))
    if job is not None:
        check_rules(job)
        check_changes(job, old)


@pytest.mark.parametrize("macro", MACROS)
def test_macros(macro, cases):
    for case in cases:
        job = read(case["object"])
        value = cel.evaluate(expand(macro), self=manifest_of(job)["spec"])
        assert value == getattr(Derived(job.spec), MACROS[macro][0])


def test_an_error_gives_way_to_a_decisive_side():
    assert cel.evaluate("self.a.b || true", self={}) is True
    assert cel.evaluate("self.a.b && false", self={}) is False
    with pytest.raises(cel.CelError):
        cel.evaluate("self.a.b && true", self={})
