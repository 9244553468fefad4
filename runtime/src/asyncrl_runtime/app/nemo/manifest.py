"""A manifest of what was carried over: checked, with what only a person can know left to fill in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.nulls import prune
from asyncrl_api.parse import ManifestInvalid, parse
from asyncrl_api.paths import keys_below
from asyncrl_api.resolve import resolve
from asyncrl_runtime.app.nemo.defaults import differing_defaults
from asyncrl_runtime.app.nemo.state import Import, Remark
from asyncrl_runtime.app.yaml_document import DocumentError, read_value

MAX_NAME_LENGTH = 40
PLACEHOLDER = "__to_be_filled_in__"
WIDTH = 110


@dataclass(frozen=True, slots=True)
class Gap:
    """A field that the reference's file cannot fill."""

    target: str
    """Path below `spec`."""

    text: str
    example: str
    """What could stand there, in one line."""

    stand_in: Any
    """A valid value, so that the rest can be checked."""


SOURCE = Gap(
    "data.source",
    "where the training prompts come from",
    "{jsonl: {path: /data/train.jsonl}}",
    {"jsonl": {"path": "/stand-in"}},
)
VALIDATION = Gap(
    "data.validation",
    "where the validation prompts come from; nothing is validated without it",
    "{jsonl: {path: /data/validation.jsonl}}",
    None,
)
ENVIRONMENT = Gap("environment", "what scores completions", "{math: {}}", {"math": {}})
MODEL = Gap("model.name", "which weights to start from", "example-org/base-8b", "stand-in")
VOLUME = Gap(
    "checkpointing.volume",
    "the volume that holds checkpoints",
    "{claimName: checkpoints}",
    {"claimName": "stand-in"},
)
IMAGE = Gap("image", "an image in which your code is installed", "registry.example.com/team/image:1", None)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that is valid but for its gaps."""

    text: str
    gaps: tuple[Gap, ...]
    differing: tuple[Remark, ...]
    """Settings that the file leaves open, and whose default differs."""


def job_name(stem: str) -> str:
    """A name for the job after that of its file."""
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    name = name if re.match(r"[a-z]", name) else f"job-{name}"
    return name[:MAX_NAME_LENGTH].strip("-")


def build_manifest(job: Import, name: str) -> Manifest | None:
    """The manifest; None, with the reasons among the import's errors, if it is not valid."""
    manifest = prune(_object(name, job.spec), AsyncRLJob)
    gaps = _gaps(manifest["spec"])
    checked = _filled(manifest, gaps)
    try:
        resolved = resolve(parse(checked, cluster=True), cluster=True)
    except ManifestInvalid as invalid:
        for problem in invalid.problems:
            target = re.sub(r"^spec\.?", "", problem.path)
            job.fail(job.origin(target) or "", str(problem))
        return None
    differing = tuple(differing_defaults(job, resolved))
    return Manifest(_write(manifest, gaps, job.reference.file), gaps, differing)


def _object(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "asyncrl.io/v1alpha1",
        "kind": "AsyncRLJob",
        "metadata": {"name": name},
        "spec": dict(spec),
    }


def _gaps(spec: Mapping[str, Any]) -> tuple[Gap, ...]:
    """What is missing in a spec that has been made."""
    saves = spec.get("checkpointing", {}).get("enabled", True) is not False
    own_code = "custom" in spec or spec.get("asyncRL", {}).get("sampler", {}).get("name") == "custom"
    own_code = own_code or "function" in spec.get("environment", {})
    found = [MODEL] if "name" not in spec.get("model", {}) else []
    found += [SOURCE, VALIDATION]
    found += [ENVIRONMENT] if not spec.get("environment") else []
    found += [VOLUME] if saves else []
    return (*found, *([IMAGE] if own_code else []))


def _filled(manifest: dict[str, Any], gaps: tuple[Gap, ...]) -> dict[str, Any]:
    """The manifest with stand-ins in its gaps."""
    fillings = {gap.target: gap.stand_in for gap in gaps if gap.stand_in is not None}
    return {**manifest, "spec": _with(manifest["spec"], fillings)}


def _with(spec: Mapping[str, Any], fillings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a spec with values at dotpaths."""
    result = dict(spec)
    for target, value in fillings.items():
        node = result
        *blocks, key = target.split(".")
        for step in blocks:
            node[step] = dict(node.get(step) or {})
            node = node[step]
        node[key] = value
    return result


class _Dumper(yaml.SafeDumper):
    """Quotes a text that would be read as something else, and repeats rather than refers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    try:
        plain = read_value(value) == value
    except DocumentError:
        plain = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def _write(manifest: dict[str, Any], gaps: tuple[Gap, ...], file: str) -> str:
    """YAML in the order of the resource, with a comment where something is to be filled in."""
    marks = {gap.target: f"{PLACEHOLDER}{index}" for index, gap in enumerate(gaps)}
    spec = _with(manifest["spec"], marks)
    order = keys_below(JobSpec)
    spec = {key: spec[key] for key in sorted(spec, key=order.index)}
    text = yaml.dump(
        {**manifest, "spec": spec}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH
    )
    for gap, mark in zip(gaps, marks.values(), strict=True):
        key = gap.target.rpartition(".")[2]
        note = rf"\g<1># to be filled in by hand: {gap.text}\n\g<1># {key}: {gap.example}\n"
        text = re.sub(rf"^( *){key}: {mark}\n", note, text, count=1, flags=re.MULTILINE)
    return f"# Imported from {file.rpartition('/')[2]!r} by asyncrl import.\n{text}"
