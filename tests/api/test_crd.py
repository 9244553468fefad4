import json
import re

import pytest
import yaml

from asyncrl_api.crd import crd, json_schema
from asyncrl_api.rules import RULES

MAX_BYTES = 200 * 1024


def root(document):
    return document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def blocks(schema, path=""):
    """Give (path, schema) of every node."""
    yield path, schema
    for key, inner in schema.get("properties", {}).items():
        yield from blocks(inner, f"{path}.{key}")
    for kind, suffix in (("items", "[]"), ("additionalProperties", "[*]")):
        if isinstance(schema.get(kind), dict):
            yield from blocks(schema[kind], path + suffix)


def comparable(schema):
    """A node without its children and words: what an API server enforces."""
    left_out = ("properties", "items", "additionalProperties", "description", "x-kubernetes-validations")
    own = {key: value for key, value in schema.items() if key not in left_out}
    own["required"] = sorted(own.get("required", []))
    own["update"] = re.findall(r" \((hot|warm|cold|cold/s)\)$", schema.get("description", ""))
    return own


def rules_of(schema):
    """Rules of a node by id. The plain message counts only where no expression replaces it."""
    found = {}
    for rule in schema.get("x-kubernetes-validations", []):
        rule_id = re.match(r"\[(V-\d+)\]", rule["message"])[1]
        found[rule_id] = {
            key: value for key, value in rule.items() if key != "message" or "messageExpression" not in rule
        }
    return found


def test_the_schema_equals_the_reference(reference_crd):
    ours = dict(blocks(root(crd())["properties"]["spec"]))
    theirs = dict(blocks(root(reference_crd)["properties"]["spec"]))
    assert ours.keys() == theirs.keys()
    different = {path for path in ours if comparable(ours[path]) != comparable(theirs[path])}
    assert different == set()


def test_the_rules_equal_the_reference(reference_crd):
    ours = {path: rules_of(node) for path, node in blocks(root(crd()))}
    theirs = {path: rules_of(node) for path, node in blocks(root(reference_crd))}
    for path in theirs:
        assert ours[path] == theirs[path], path
    assert {rule for found in ours.values() for rule in found} == {rule.id for rule in RULES}


def test_names_and_scale_equal_the_reference(reference_crd):
    ours, theirs = crd(), reference_crd
    assert {key: ours[key] for key in ("apiVersion", "kind", "metadata")} == {
        key: theirs[key] for key in ("apiVersion", "kind", "metadata")
    }
    assert {**ours["spec"], "versions": None} == {**theirs["spec"], "versions": None}
    version = ours["spec"]["versions"][0]
    assert version["subresources"] == theirs["spec"]["versions"][0]["subresources"]


def test_the_crd_is_small_enough_for_a_plain_apply():
    compact = json.dumps(crd(), separators=(",", ":"), ensure_ascii=False).encode()
    assert len(compact) <= MAX_BYTES


def test_the_crd_shares_no_parts():
    """Shared parts would show as anchors in YAML."""
    assert "&id" not in yaml.safe_dump(crd())


def test_every_field_is_described_and_bounded():
    for path, node in blocks(root(crd())):
        if path in (".apiVersion", ".kind", ".metadata"):
            continue
        if path and not path.endswith(("[]", "[*]")):
            assert node.get("description"), path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, path


def test_no_rule_sits_on_a_block_with_an_empty_default():
    for path, node in blocks(root(crd())):
        assert not ("x-kubernetes-validations" in node and node.get("default") == {}), path


def test_printer_columns():
    columns = crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    names = [column["name"].upper() for column in columns if not column.get("priority")]
    wide = [column["name"].upper() for column in columns if column.get("priority")]
    assert names == ["PHASE", "STEP", "REWARD", "LAG", "SERVING", "SHARDS", "RESTARTS", "CKPT", "AGE"]
    assert wide == ["SAMPLER", "REASON", "QUEUE", "CLUSTER", "QUARANTINED"]
    nodes = dict(blocks(root(crd())))
    for column in columns:
        if column["jsonPath"].startswith((".spec", ".status")):
            assert nodes[column["jsonPath"]]["type"] == column["type"], column


def test_conditions_merge_by_type():
    conditions = root(crd())["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


@pytest.fixture(scope="module")
def editors():
    return json_schema()


def test_the_editors_schema_is_closed(editors):
    spec = editors["properties"]["spec"]
    open_objects = {
        path
        for path, node in blocks(spec)
        if node.get("type") == "object" and "additionalProperties" not in node
    }
    preserved = {
        path
        for path, node in blocks(root(crd())["properties"]["spec"])
        if node.get("x-kubernetes-preserve-unknown-fields")
    }
    assert open_objects == preserved


def test_the_editors_schema_uses_no_kubernetes_words(editors):
    text = json.dumps(editors)
    assert "x-kubernetes" not in text
    assert '"nullable"' not in text
    assert '"exclusiveMinimum": true' not in text
    epochs = editors["properties"]["spec"]["properties"]["algorithm"]["properties"]["grpo"]
    assert epochs["properties"]["maxNumEpochs"]["type"] == ["integer", "null"]
    assert epochs["properties"]["maxNumEpochs"]["default"] == 1
