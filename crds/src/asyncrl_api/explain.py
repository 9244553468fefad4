"""Field documentation from the models, as `kubectl explain` gives it (CLI-6)."""

import textwrap
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel, StringConstraints
from pydantic_core import PydanticUndefined

from asyncrl_api.base import INT32_MAX, INT64_MAX, DefaultsTo, Format, Preserved
from asyncrl_api.docs import field_doc, model_doc
from asyncrl_api.paths import ROOTS, Place, all_places, block_of, find, nearest, places_in
from asyncrl_api.rules.table import spell
from asyncrl_api.schema import default_of, is_nullable, unwrap

WIDTH = 100
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string"}
BOUNDS = ((Ge, "ge", "at least"), (Gt, "gt", "above"), (Le, "le", "at most"), (Lt, "lt", "below"))
FORMAT_BOUNDS = {INT32_MAX, INT64_MAX, -INT32_MAX - 1, -INT64_MAX - 1}


@dataclass(eq=False)
class UnknownField(ValueError):
    """No field has the path that was asked for."""

    path: str
    nearest: str | None

    def __post_init__(self) -> None:
        super().__init__(str(self))

    def __str__(self) -> str:
        hint = f": the nearest is {self.nearest}" if self.nearest else ""
        return f"there is no field {self.path}{hint}"


def explain(path: str) -> str:
    """Describe a field or a block: type, default, when a change takes effect, meaning, and what is in it.

    Raises:
        UnknownField: there is none with that path.
    """
    if path in ROOTS:
        model = ROOTS[path]
        return _page(path, "Object", model_doc(model), [], model, None)
    place = find(path)
    if place is None:
        raise UnknownField(path, _nearest_path(path))
    block, suffix = block_of(place.hint)
    inner = place.path + suffix if block else ""
    return _page(
        place.path, type_words(place.hint), field_doc(place.model, place.name), _facts(place), block, inner
    )


def _nearest_path(path: str) -> str | None:
    known = [each.replace("[*]", "") for each in all_places()]
    wanted = path if path.startswith("spec") else f"spec.{path}"
    holder, _, key = wanted.rpartition(".")
    siblings = [each.rpartition(".")[2] for each in known if each.rpartition(".")[0] == holder]
    near = nearest(key, siblings)
    return f"{holder}.{near}" if near else nearest(wanted, known)


def _page(
    path: str,
    kind: str,
    meaning: str,
    facts: list[str],
    block: type[BaseModel] | None,
    inner: str | None,
) -> str:
    lines = ["KIND:     AsyncRLJob", "VERSION:  asyncrl.io/v1alpha1", "", f"FIELD: {path} <{kind}>", ""]
    lines += ["DESCRIPTION:", *_wrapped(meaning), *(f"    {fact}" for fact in facts)]
    if block is not None:
        lines += ["", "FIELDS:"]
        parent = find(path) if path not in ROOTS else None
        for place in places_in(block, inner or path, parent.update if parent else None):
            need = " -required-" if place.field.is_required() else ""
            lines += [f"  {place.path.rpartition('.')[2]} <{type_words(place.hint)}>{need}"]
            lines += [*_wrapped(field_doc(place.model, place.name)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")


def _facts(place: Place) -> list[str]:
    _, metadata = unwrap(place.hint)
    facts = []
    if place.field.is_required():
        facts.append("Required.")
    default = default_of(place.field)
    derived = next((mark.words for mark in metadata if isinstance(mark, DefaultsTo)), None)
    if derived is not None:
        facts.append(f"Default: {derived} (worked out when unset)")
    elif default is not PydanticUndefined:
        facts.append(f"Default: {spell_value(default)}")
    bounds = bound_words(metadata)
    if bounds:
        facts.append(f"Bounds: {bounds}")
    if is_nullable(place.field, place.hint):
        facts.append("null is a value: no limit.")
    if place.update is not None:
        facts.append(f"Changes: {place.update}")
    return facts


def spell_value(value: Any) -> str:
    """Write a value as a manifest does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{', '.join(map(spell_value, value))}]"
    if isinstance(value, float):
        return spell(value)
    return "{}" if value == {} else str(value) or '""'


def type_words(hint: Any) -> str:
    """Name a type as `kubectl explain` does."""
    bare, metadata = unwrap(hint)
    origin, arguments = get_origin(bare), get_args(bare)
    if origin is tuple:
        return f"[]{type_words(arguments[0])}"
    if origin is dict:
        free = any(isinstance(mark, Preserved) for mark in metadata)
        return "Object" if free else f"map[string]{type_words(arguments[1])}"
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return "Object"
    quantity = any(isinstance(mark, Format) and mark.name == "quantity" for mark in metadata)
    return "quantity" if quantity else KINDS[bare]


def bound_words(metadata: list[Any]) -> str:
    """Bounds of a type in words; empty if it has none of its own."""
    words = []
    for kind, attribute, phrase in BOUNDS:
        limits = [getattr(mark, attribute) for mark in metadata if isinstance(mark, kind)]
        limits = [limit for limit in limits if limit not in FORMAT_BOUNDS]
        words += [f"{phrase} {spell_value(limit)}" for limit in limits[-1:]]
    words += [f"at most {mark.max_length} long" for mark in metadata if isinstance(mark, MaxLen)][-1:]
    words += [f"like {mark.pattern}" for mark in metadata if isinstance(mark, StringConstraints)][-1:]
    return ", ".join(words)
