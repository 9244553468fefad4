"""The CRD on a real kube-apiserver: what it accepts and refuses, what it fills in, what it shows."""

import copy
import json
from pathlib import Path

import pytest
from support.apiserver import apiserver
from support.operator_world import SPEC

from asyncrl_operator.kube import api as kinds

CASES = json.loads((Path(__file__).parents[1] / "api" / "data" / "cases.json").read_text())
NAMESPACE = "d"
STRICT = "?fieldValidation=Strict&dryRun=All"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with apiserver(tmp_path_factory.mktemp("apiserver")) as server:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        assert server.request("POST", "/api/v1/namespaces", body)[0] == 201
        yield server


def made(server, found, *, dry=True):
    body = copy.deepcopy(found)
    body["metadata"]["namespace"] = NAMESPACE
    return server.request("POST", kinds.JOBS.path(NAMESPACE) + (STRICT if dry else ""), body)


def test_every_case_is_accepted_or_refused_as_the_rules_say(server):
    """CEL on the server decides as Python does, case by case."""
    wrong = []
    for case in CASES:
        if "old" in case:
            continue
        status, answer = made(server, case["object"])
        if status != (201 if case["accepted"] else 422):
            wrong.append((case["name"], case["rule"], status, answer.get("message", "")[:300]))
    assert not wrong, json.dumps(wrong, indent=1)


def test_changes_are_accepted_or_refused_as_the_rules_say(server):
    wrong, number = [], 0
    for case in CASES:
        if "old" not in case:
            continue
        number += 1
        old, new = copy.deepcopy(case["old"]), copy.deepcopy(case["object"])
        name = f"change-{number}"
        old["metadata"] = {"name": name}
        status, answer = made(server, old, dry=False)
        assert status == 201, (case["name"], answer)
        if old.get("status"):
            path = kinds.JOBS.path(NAMESPACE, name, "status")
            status, answer = server.request("PUT", path, {**answer, "status": old["status"]})
            assert status == 200, (case["name"], answer)
        new["metadata"] = {"name": name, "namespace": NAMESPACE}
        new["metadata"]["resourceVersion"] = answer["metadata"]["resourceVersion"]
        status, answer = server.request("PUT", kinds.JOBS.path(NAMESPACE, name) + STRICT, new)
        if status != (200 if case["accepted"] else 422):
            wrong.append((case["name"], case["rule"], status, answer.get("message", "")[:300]))
    assert number > 10
    assert not wrong, json.dumps(wrong, indent=1)


def job(name, **blocks):
    return {
        "apiVersion": "asyncrl.io/v1alpha1",
        "kind": "AsyncRLJob",
        "metadata": {"name": name},
        "spec": SPEC | blocks,
    }


def test_unknown_keys_are_refused_with_their_path(server):
    status, answer = made(server, job("unknown", lifecycle={"startupDeadline": 3}))
    assert status == 400
    assert 'unknown field "spec.lifecycle.startupDeadline"' in answer["message"]


def test_defaults_are_filled_in(server):
    _, answer = made(server, job("defaults"))
    assert answer["spec"]["lifecycle"]["startupDeadlineSeconds"] == 1800
    assert answer["spec"]["rayVersion"] == "2.60.0"
    assert answer["spec"]["suspend"] is False


def test_scale_reads_and_writes_the_number_of_shards(server):
    assert made(server, job("scaled"), dry=False)[0] == 201
    path = kinds.JOBS.path(NAMESPACE, "scaled", "scale")
    status, scale = server.request("GET", path)
    assert (status, scale["spec"]["replicas"]) == (200, 2)
    scale["spec"]["replicas"] = 3
    assert server.request("PUT", path, scale)[0] == 200
    _, found = server.request("GET", kinds.JOBS.path(NAMESPACE, "scaled"))
    assert found["spec"]["generation"]["shards"] == 3


def test_kubectl_get_shows_the_columns(server):
    headers = "application/json;as=Table;v=v1;g=meta.k8s.io"
    status, table = server.request("GET", kinds.JOBS.path(NAMESPACE), accept=headers)
    assert status == 200
    plain = [c["name"].upper() for c in table["columnDefinitions"] if c["priority"] == 0]
    expected = ["NAME", "PHASE", "STEP", "REWARD", "LAG", "SERVING", "SHARDS", "RESTARTS", "CKPT", "AGE"]
    assert plain == expected
