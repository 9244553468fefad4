"""The CustomResourceDefinition and the editors' JSON schema, generated from models and rules."""

import re
from typing import Any

from asyncrl_api.docs import model_doc
from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.rules import RULES
from asyncrl_api.rules.table import WHOLE_OBJECT, Rule
from asyncrl_api.schema import Schema, block_schema
from asyncrl_api.status import JobStatus

GROUP, VERSION, KIND, PLURAL = "asyncrl.io", "v1alpha1", "AsyncRLJob", "asyncrljobs"
SCALE = {
    "specReplicasPath": ".spec.generation.shards",
    "statusReplicasPath": ".status.generation.shards",
    "labelSelectorPath": ".status.generation.selector",
}
COLUMNS = (
    ("Phase", "string", ".status.phase"),
    ("Step", "integer", ".status.progress.step"),
    ("Reward", "string", ".status.progress.rewardMean"),
    ("Lag", "integer", ".status.sampler.stalenessMax"),
    ("Serving", "integer", ".status.generation.serving"),
    ("Shards", "integer", ".spec.generation.shards"),
    ("Restarts", "integer", ".status.restarts.counted"),
    ("Ckpt", "integer", ".status.checkpoint.lastStep"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
WIDE_COLUMNS = (
    ("Sampler", "string", ".status.sampler.name"),
    ("Reason", "string", ".status.reason"),
    ("Queue", "string", ".spec.scheduling.queueName"),
    ("Cluster", "string", ".status.attempt.rayClusterName"),
    ("Quarantined", "integer", ".status.generation.quarantined"),
)


def crd() -> dict[str, Any]:
    """The CRD of the resource (API-3, API-5, API-13, API-22)."""
    columns = [{"name": name, "type": kind, "jsonPath": path} for name, kind, path in COLUMNS]
    columns += [
        {"name": name, "type": kind, "jsonPath": path, "priority": 1} for name, kind, path in WIDE_COLUMNS
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "plural": PLURAL,
                "singular": KIND.lower(),
                "listKind": f"{KIND}List",
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}, "scale": SCALE},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": _object_schema()},
                }
            ],
        },
    }


def _object_schema() -> Schema:
    schema: Schema = {
        "type": "object",
        "description": model_doc(AsyncRLJob),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": block_schema(JobSpec, "spec", None, _add_rules),
            "status": block_schema(JobStatus, "status", None, _key_conditions),
        },
    }
    schema["properties"]["spec"]["description"] = model_doc(JobSpec)
    schema["properties"]["status"]["description"] = model_doc(JobStatus)
    schema["x-kubernetes-validations"] = [_validation(rule) for rule in RULES if rule.where == WHOLE_OBJECT]
    return schema


def _key_conditions(schema: Schema, _: str) -> None:
    if "conditions" in schema["properties"]:
        schema["properties"]["conditions"] |= {
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        }


def _add_rules(schema: Schema, path: str) -> None:
    below = path.removeprefix("spec").removeprefix(".")
    found = [_validation(rule) for rule in RULES if _sits_on(rule, below)]
    if found:
        schema["x-kubernetes-validations"] = found


def _sits_on(rule: Rule, path: str) -> bool:
    """Whether a rule sits on a node, where `{a,b}` of the rule stands for either."""
    pattern = re.escape(rule.where).replace(r"\{", "(").replace(r"\}", ")").replace(",", "|")
    return rule.where != WHOLE_OBJECT and re.fullmatch(pattern, path) is not None


def _validation(rule: Rule) -> Schema:
    """One CEL rule. Its plain message is what is shown if the expression cannot be worked out."""
    expression = rule.cel_message()
    validation = {"rule": rule.cel_rule()}
    if expression is None:
        validation["message"] = f"[{rule.id}] {rule.message}"
    else:
        validation |= {"message": f"[{rule.id}] {rule.statement}", "messageExpression": expression}
    if rule.field:
        validation["fieldPath"] = rule.field
    return validation


def json_schema() -> dict[str, Any]:
    """A JSON schema for editors (CLI-9): closed, with descriptions and defaults."""
    spec = block_schema(JobSpec, "spec", None, lambda *_: None)
    spec["description"] = model_doc(JobSpec)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://{GROUP}/schemas/{KIND.lower()}-{VERSION}.json",
        "title": KIND,
        "description": model_doc(AsyncRLJob),
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": f"{GROUP}/{VERSION}"},
            "kind": {"const": KIND},
            "metadata": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string", "description": "Name of the job."}},
            },
            "spec": _for_editors(spec),
            "status": {"type": "object", "description": model_doc(JobStatus)},
        },
        "additionalProperties": False,
    }


def _for_editors(schema: Schema) -> Schema:
    """Say in JSON schema what a structural schema says."""
    out = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes")}
    for kind in ("properties", "items", "additionalProperties"):
        if kind in out:
            inner = out[kind]
            out[kind] = (
                {key: _for_editors(value) for key, value in inner.items()}
                if kind == "properties"
                else _for_editors(inner)
            )
    open_keys = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & schema.keys()
    if schema.get("type") == "object" and not open_keys:
        out["additionalProperties"] = False
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if out.pop(exclusive, False):
            out[exclusive] = out.pop(bound)
    if out.pop("nullable", False):
        out["type"] = [out["type"], "null"]
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("anyOf")
        out["type"] = ["integer", "string"]
    return out
