"""Dotpaths of the resource: which fields there are, and which one a path means."""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from asyncrl_api.base import Update, keys_of
from asyncrl_api.job import JobSpec
from asyncrl_api.schema import hints_of, unwrap, update_class
from asyncrl_api.status import JobStatus

ROOTS: dict[str, type[BaseModel]] = {"spec": JobSpec, "status": JobStatus}


@dataclass(frozen=True, slots=True)
class Place:
    """A field of the resource."""

    path: str
    """Dotpath; `[]` is a list entry, `[*]` a map entry."""

    model: type[BaseModel]
    name: str
    field: FieldInfo
    hint: Any
    update: Update | None

    @property
    def block(self) -> type[BaseModel] | None:
        """Model of the block that the field holds, directly, in a list or in a map."""
        return block_of(self.hint)[0]


def block_of(hint: Any) -> tuple[type[BaseModel] | None, str]:
    """Model of the block that a type holds, and how: nothing, `[]` or `[*]`."""
    bare, _ = unwrap(hint)
    suffix = {tuple: "[]", dict: "[*]"}.get(get_origin(bare), "")
    if suffix:
        bare, _ = unwrap(get_args(bare)[0 if suffix == "[]" else 1])
    return (bare, suffix) if isinstance(bare, type) and issubclass(bare, BaseModel) else (None, suffix)


def places_in(model: type[BaseModel], path: str, inherited: Update | None) -> Iterator[Place]:
    """Give the fields of one block."""
    hints = hints_of(model)
    for key, name, field in keys_of(model):
        update = update_class(unwrap(hints[name])[1], inherited)
        yield Place(f"{path}.{key}", model, name, field, hints[name], update)


def _walk(model: type[BaseModel], path: str, inherited: Update | None) -> Iterator[Place]:
    for place in places_in(model, path, inherited):
        yield place
        block, suffix = block_of(place.hint)
        if block is not None:
            yield from _walk(block, place.path + suffix, place.update)


@cache
def all_places() -> dict[str, Place]:
    """Every field of `spec` and `status` by its path."""
    return {place.path: place for root, model in ROOTS.items() for place in _walk(model, root, None)}


def find(path: str) -> Place | None:
    """The field that a path means, as users write it: `controller.env[0].name`; `spec` may be left out."""
    steps = re.sub(r"\[[^\]]*\]", "", path).split(".")
    root, steps = (steps[0], steps[1:]) if steps[0] in ROOTS else ("spec", steps)
    block: type[BaseModel] | None = ROOTS[root]
    at, place, in_map = root, None, False
    for step in steps:
        found = all_places().get(f"{at}.{step}") if block else None
        if found is None and in_map:
            in_map = False  # the step is the key of a map's entry
            continue
        if found is None:
            return None
        place = found
        block, suffix = block_of(found.hint)
        at, in_map = found.path + suffix, suffix == "[*]"
    return place


def keys_below(model: type[BaseModel]) -> list[str]:
    """Keys of a block."""
    return [key for key, _, _ in keys_of(model)]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that one most likely meant."""
    by_letters = {each.lower().replace("_", ""): each for each in known}
    letters = word.lower().replace("_", "").replace("-", "")
    if letters in by_letters:
        return by_letters[letters]
    close = difflib.get_close_matches(letters, by_letters, n=1, cutoff=0.6)
    return by_letters[close[0]] if close else None
