"""What an import has read, made and left behind so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl_api.paths import Place, find
from asyncrl_api.schema import is_nullable, unwrap
from asyncrl_runtime.app.nemo.chain import Reference
from asyncrl_runtime.app.nemo.interpolation import typed

UNSET = object()


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to say about a setting of the file."""

    path: str
    """Dotpath in the reference's file, or of a field of ours."""

    text: str


@dataclass(slots=True)
class Import:
    """One import: the file, the manifest's spec as far as it is made, and what is to be told."""

    reference: Reference
    algorithm: str
    """`grpo` or `ppo`, the block that is present."""

    spec: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Path in the file by the path below `spec` that it gave."""

    errors: list[Remark] = field(default_factory=list)
    lost: list[Remark] = field(default_factory=list)
    """Not carried over, and the run is another one without it."""

    left: list[Remark] = field(default_factory=list)
    """Not carried over, and it makes no difference to what is learned."""

    notes: list[Remark] = field(default_factory=list)
    """Carried over in another form."""

    def get(self, path: str, default: Any = None) -> Any:
        """Value at a dotpath of the file; the default where nothing or null is."""
        node: Any = self.reference.value
        for step in path.split("."):
            node = node.get(step) if isinstance(node, Mapping) else None
        return default if node is None else node

    def whole(self, path: str, default: int | None = None) -> int | None:
        """Positive whole number at a dotpath of the file; anything else there is an error."""
        value = self.get(path, default)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            return value
        self.fail(path, f"is {value!r}, not a positive whole number")
        return None

    def put(self, target: str, value: Any, source: str) -> None:
        """Set a field of ours, unless to null where that means unset.

        That another setting gave it another value is an error.
        """
        place = find(target)
        if value is None and place is not None and not is_nullable(place.field, place.hint):
            return
        value = _fitting(place, value)
        steps = target.split(".")
        node = self.spec
        for step in steps[:-1]:
            node = node.setdefault(step, {})
        old = node.get(steps[-1], UNSET)
        if old is not UNSET and old != value:
            other = self.origins[target]
            self.fail(source, f"is {value!r}, and {other} says {old!r}: both mean spec.{target}, keep one")
            return
        node[steps[-1]] = value
        self.origins.setdefault(target, source)

    def made(self, target: str) -> Any:
        """Value of a field of ours so far; None where nothing is."""
        node: Any = self.spec
        for step in target.split("."):
            node = node.get(step) if isinstance(node, dict) else None
        return node

    def origin(self, target: str) -> str | None:
        """The setting that gave a field of ours, a block around it, or something in it."""
        path = target
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return None

    def fail(self, path: str, text: str) -> None:
        """The import cannot be done."""
        self.errors.append(Remark(path, text))

    def lose(self, path: str, text: str) -> None:
        """Something that changes the run is not carried over."""
        self.lost.append(Remark(path, text))

    def leave(self, path: str, text: str) -> None:
        """Something that makes no difference to what is learned is not carried over."""
        self.left.append(Remark(path, text))

    def note(self, path: str, text: str) -> None:
        """Something was carried over in another form."""
        self.notes.append(Remark(path, text))


def _fitting(place: Place | None, value: Any) -> Any:
    """A number that a text spells, where the field wants one, and the other way round."""
    wanted = unwrap(place.hint)[0] if place is not None else None
    if isinstance(value, str) and wanted in (int, float, bool):
        return typed(value)
    if isinstance(value, float) and wanted is int and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and wanted is str:
        return str(value)
    return value
