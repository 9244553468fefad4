"""Says in sentences what a manifest's schema errors are, and which rules can still be judged."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from asyncrl_api.base import QUANTITY_PATTERN
from asyncrl_api.docs import field_doc
from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import Problem
from asyncrl_api.paths import all_places, find, keys_below, nearest
from asyncrl_api.renames import new_place, why_gone
from asyncrl_api.rules import RULES
from asyncrl_api.rules.table import Rule, spell

STAND_INS: dict[str, Any] = {
    "spec.model": {"init": {}},
    "spec.data": {"source": {"generated": {}}},
    "spec.environment": {"arithmetic": {}},
    "spec.algorithm": {"grpo": {}},
    "metadata": {"name": "unnamed"},
    "spec": {},
    "apiVersion": "asyncrl.io/v1alpha1",
    "kind": "AsyncRLJob",
}
"""Valid blocks in place of wrong ones, so that rules about other blocks can be judged."""
MAX_REPAIRS = 8
SHOWN_LENGTH = 60
WHOLE, NUMBER, TEXT, SWITCH = "a whole number", "a number", "text", "true or false"
KINDS = {
    "int_type": (WHOLE, "write one without quotes or a fraction"),
    "int_from_float": (WHOLE, "write one without a fraction"),
    "int_parsing_size": (WHOLE, "write a smaller one"),
    "float_type": (NUMBER, "write one without quotes"),
    "finite_number": ("a finite number", "write one"),
    "string_type": (TEXT, "put it in quotes"),
    "bool_type": (SWITCH, "write true or false"),
    "model_type": ("a block of keys", "write keys below it, or {} for its defaults"),
    "dict_type": ("a block of keys", "write keys below it"),
    "tuple_type": ("a list", "write it as [a, b] or with dashes"),
}
BOUNDS = {
    "greater_than_equal": ("ge", "below the minimum", "raise it"),
    "greater_than": ("gt", "not above", "raise it"),
    "less_than_equal": ("le", "above the maximum", "lower it"),
    "less_than": ("lt", "not below", "lower it"),
}

Judge = Callable[[AsyncRLJob], list[Problem]]
Location = tuple[int | str, ...]


def explain_errors(
    raw: Mapping[str, Any], error: ValidationError, judge: Judge
) -> tuple[AsyncRLJob | None, list[Problem]]:
    """Give the schema's problems, then those of the rules that do not rest on what is wrong.

    The job is None: a manifest with schema errors gives none.
    """
    found = [problem for fault in error.errors(include_url=False) for problem in _describe(Fault.of(fault))]
    repaired, bad = _repair(raw, error)
    if repaired is not None:
        found += [problem for problem in judge(repaired) if _can_be_judged(problem, bad)]
    return None, found


@dataclass(frozen=True, slots=True)
class Fault:
    """One schema error."""

    location: Location
    kind: str
    value: Any
    facts: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""

    @classmethod
    def of(cls, error: Mapping[str, Any]) -> "Fault":
        """Read what pydantic found."""
        location = tuple(step for step in error["loc"] if step != "[key]")
        return cls(location, error["type"], error["input"], error.get("ctx") or {}, error["msg"])

    @property
    def path(self) -> str:
        """Dotpath as a user writes it."""
        return dotpath(self.location)


def dotpath(location: Location) -> str:
    """`("spec", "env", 0, "name")` as `spec.env[0].name`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")


def show(value: object) -> str:
    """Write a value as a manifest would, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


def _describe(fault: Fault) -> list[Problem]:
    if fault.kind == "extra_forbidden":
        return _unknown(fault.path, fault.value)
    if fault.kind == "missing":
        return [Problem(fault.path, "missing", f"{fault.path} is missing: {_what_to_add(fault.path)}")]
    kind, what, way_out = _wrong(fault)
    near = _nearest_choice(fault) if kind == "choice" else None
    hint = f"; did you mean {near}?" if near else ""
    message = f"{fault.path} is {show(fault.value)}, {what}: {way_out}{hint}"
    return [Problem(fault.path, kind, message, fault.value, near)]


def _wrong(fault: Fault) -> tuple[str, str, str]:
    """Give (kind, what is wrong, way out) of a value."""
    facts = fault.facts
    if fault.kind in KINDS:
        wanted, way_out = KINDS[fault.kind]
        return "type", f"not {wanted}", way_out
    if fault.kind in BOUNDS:
        key, words, way_out = BOUNDS[fault.kind]
        return "bound", f"{words} {spell(facts[key])}", way_out
    if fault.kind == "literal_error":
        choices = ", ".join(_choices(fault))
        return "choice", f"not one of {choices}", "use one of these"
    if fault.kind in ("string_too_long", "too_long"):
        unit = "characters" if fault.kind == "string_too_long" else "entries"
        return "length", f"longer than {facts['max_length']} {unit}", "shorten it"
    if fault.kind == "string_pattern_mismatch":
        pattern = facts["pattern"]
        if pattern == QUANTITY_PATTERN:
            return "form", "not a quantity", "write one such as 500m, 4 or 512Gi"
        return "form", f"which does not have the form {pattern}", "write it in that form"
    words = str(facts.get("error", fault.words))
    return "form", f"which is not allowed ({words})", "change it"


def _choices(fault: Fault) -> list[str]:
    return re.findall(r"'([^']*)'", str(fault.facts["expected"]))


def _nearest_choice(fault: Fault) -> str | None:
    return nearest(fault.value, _choices(fault)) if isinstance(fault.value, str) else None


def _what_to_add(path: str) -> str:
    place = find(path)
    if place is None:
        return "add it"
    meaning = field_doc(place.model, place.name).split(". ")[0].rstrip(".")
    return f"add it ({meaning[0].lower()}{meaning[1:]})"


def _unknown(path: str, value: Any) -> list[Problem]:
    """Say where a key lives that is not known here; look into a block that was moved as a whole."""
    moved = new_place(path)
    if isinstance(value, Mapping) and value and (moved is None or find(moved) is not None):
        inner = [_moved(leaf, at) or [_not_known(leaf, at)] for leaf, at in _leaves(path, value)]
        if any(problem.kind == "renamed" for found in inner for problem in found):
            return [problem for found in inner for problem in found]
    return _moved(path, value) or [_not_known(path, value)]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and why_gone(path) is None:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path, value


def _moved(path: str, value: Any) -> list[Problem]:
    """The problem that a key was renamed, moved or dropped; none if it never was a key."""
    gone, moved = why_gone(path), new_place(path)
    if gone is not None:
        return [Problem(path, "renamed", f"{path} is no setting here, since {gone}: remove it", value)]
    if moved is not None and find(moved) is not None and not path.endswith(f".{moved}"):
        message = f"{path} is not a key here: set spec.{moved} instead"
        return [Problem(path, "renamed", message, value, f"spec.{moved}")]
    return []


def _not_known(path: str, value: Any) -> Problem:
    key, known, near = _siblings(path)
    elsewhere = [each for each in all_places() if each.endswith(f".{key}") and each.startswith("spec.")]
    meant = [each.replace("[*]", ".<name>") for each in elsewhere if len(elsewhere) == 1]
    meant += [near] if near else []
    way_out = f"did you mean {' or '.join(meant)}?" if meant else _known_words(known)
    message = f"{path} is not a known key: {way_out}"
    return Problem(path, "unknown", message, value, meant[0] if meant else None)


def _siblings(path: str) -> tuple[str, list[str], str | None]:
    """The last key of a path, the keys known beside it, and the path of the one most like it."""
    holder, _, key = path.rpartition(".")
    place = find(holder) if holder != "spec" else None
    block = place.block if place else None
    known = keys_below(block) if block else _top_keys(holder)
    near = nearest(key, known)
    return key, known, f"{holder}.{near}".removeprefix(".") if near else None


def _known_words(known: list[str]) -> str:
    return f"known here are {', '.join(known)}" if known else "remove it"


def _top_keys(holder: str) -> list[str]:
    if not holder:
        return keys_below(AsyncRLJob)
    from asyncrl_api.paths import ROOTS

    return keys_below(ROOTS[holder]) if holder in ROOTS else []


def _repair(raw: Mapping[str, Any], error: ValidationError) -> tuple[AsyncRLJob | None, set[str]]:
    """Take out what is wrong until the rest can be read. Give that, and the paths that were touched."""
    bad: set[str] = set()
    repaired = _copy(raw)
    for _ in range(MAX_REPAIRS):
        for fault in map(Fault.of, error.errors(include_url=False)):
            bad.add(_take_out(repaired, fault))
            if fault.kind == "extra_forbidden":
                bad.add(_siblings(fault.path)[2] or fault.path)
        try:
            return AsyncRLJob.model_validate(repaired, by_alias=True, by_name=False), bad
        except ValidationError as again:
            error = again
    return None, bad


def _copy(raw: Any) -> Any:
    if isinstance(raw, Mapping):
        return {key: _copy(value) for key, value in raw.items()}
    return [_copy(value) for value in raw] if isinstance(raw, list) else raw


def _take_out(raw: dict[str, Any], fault: Fault) -> str:
    """Remove a wrong value, or the block that lacks a required one; put a stand-in where one is needed."""
    location = fault.location
    while True:
        if dotpath(location) in STAND_INS:
            break
        inside_list = any(isinstance(step, int) for step in location)
        if inside_list:
            location = location[: next(i for i, step in enumerate(location) if isinstance(step, int))]
        elif fault.kind == "missing" and location == fault.location:
            location = location[:-1]
        else:
            break
    path = dotpath(location)
    holder: Any = raw
    for step in location[:-1]:
        holder = holder.get(step) if isinstance(holder, dict) else None
    if isinstance(holder, dict):
        if path in STAND_INS:
            holder[location[-1]] = _copy(STAND_INS[path])
        else:
            holder.pop(location[-1], None)
    return path


def _can_be_judged(problem: Problem, bad: set[str]) -> bool:
    rule = next(rule for rule in RULES if rule.id == problem.kind)
    node = problem.path.removesuffix(rule.field) if rule.field else problem.path
    return not any(_touches(rest, path) for rest in rests_on(rule, node) for path in bad)


def rests_on(rule: Rule, node: str) -> set[str]:
    """Paths that a rule reads, those ending in `?` for their presence only."""
    cel = rule.cel_rule()
    present = {f"{node}{path}?" for path in re.findall(r"has\(self((?:\.\w+)+)\)", cel)}
    read = re.findall(r"self((?:\.\??\w+)+)(\(?)", re.sub(r"has\([^)]*\)", "", cel))
    paths = (path.rpartition(".")[0] if call else path for path, call in read)
    return present | {node + path.replace("?", "") for path in paths}


def _touches(rest: str, bad: str) -> bool:
    if rest.endswith("?"):
        return _is_within(rest[:-1], bad)
    return _is_within(rest, bad) or _is_within(bad, rest)


def _is_within(path: str, holder: str) -> bool:
    return path == holder or path.startswith((f"{holder}.", f"{holder}["))
