"""YAML as the API server's tools read it, with the line and column of every key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

MERGE = "tag:yaml.org,2002:merge"
MAX_VALUES = 100_000
"""Values of a document, with what aliases repeat."""

MAX_DIGITS = 4000
"""Of a whole number; Python reads no longer ones."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text, counted from 1."""

    line: int
    column: int

    @classmethod
    def of(cls, mark: yaml.Mark) -> Mark:
        """Read a place of the YAML library."""
        return cls(mark.line + 1, mark.column + 1)


@dataclass(eq=False)
class DocumentError(Exception):
    """A text is not YAML that a manifest may be written in."""

    problem: str
    mark: Mark | None

    def __str__(self) -> str:
        return self.problem


@dataclass(slots=True)
class Document:
    """One YAML document: its value, and where each dotpath of it stands."""

    value: Any
    marks: dict[str, Mark] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """Dates stay text, 1e-6 is a number, and there are no numbers in base 60."""


_Loader.yaml_implicit_resolvers = {
    letter: [pair for pair in pairs if not pair[0].endswith((":timestamp", ":float", ":int"))]
    for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(0|[1-9][0-9_]*)$|^0x[0-9a-fA-F]+$|^0o?[0-7]+$"),
    list("-+0123456789"),
)
for _letter in "-+0123456789":
    _Loader.yaml_implicit_resolvers[_letter].reverse()  # a whole number is tried before a fraction


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    if text.startswith("0x"):
        return int(text, 16)
    if len(text) > MAX_DIGITS:
        raise DocumentError(f"a number of {len(text)} digits is too long", Mark.of(node.start_mark))
    octal = re.fullmatch(r"0o?([0-7]+)", text)
    return int(octal[1], 8) if octal and text != "0" else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def read_documents(text: str) -> list[Document]:
    """Read every document of a text that is not empty.

    Raises:
        DocumentError: it is not YAML, repeats a key, refers to itself, or is far too large.
    """
    try:
        return list(_documents(text))
    except yaml.MarkedYAMLError as error:
        found = error.problem_mark or error.context_mark
        mark = Mark.of(found) if found is not None else None
        raise DocumentError(f"not YAML: {error.problem}", mark) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark = Mark(before.count("\n") + 1, error.position - before.rfind("\n"))
        raise DocumentError(f"not YAML: character {error.character:#04x} is not allowed", mark) from error
    except yaml.YAMLError as error:
        raise DocumentError(f"not YAML: {error}", None) from error
    except RecursionError as error:
        raise DocumentError("blocks are nested too deeply", None) from error


def _documents(text: str) -> Iterator[Document]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # check_node has seen it
            document = Document(None)
            document.value = _Reader(loader, document.marks).read(node, "")
            if document.value is not None:
                yield document
    finally:
        loader.dispose()


def read_value(text: str) -> Any:
    """Read one value, as it would stand behind a key.

    Raises:
        DocumentError: it is not YAML.
    """
    documents = read_documents(text)
    return documents[0].value if documents else None


@dataclass(slots=True)
class _Reader:
    """Turns nodes into values, noting where they stand."""

    loader: _Loader
    marks: dict[str, Mark]
    _open: list[int] = field(default_factory=list)
    _values: int = 0

    def read(self, node: yaml.Node, path: str) -> Any:
        """Value of a node that stands at a dotpath."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise DocumentError(f"it holds more than {MAX_VALUES} values", Mark.of(node.start_mark))
        self.marks.setdefault(path, Mark.of(node.start_mark))
        if isinstance(node, yaml.ScalarNode):
            return self.loader.construct_object(node)
        if id(node) in self._open:
            raise DocumentError(f"{path} refers to a block that holds it", Mark.of(node.start_mark))
        self._open.append(id(node))
        value = (
            self._sequence(node, path)
            if isinstance(node, yaml.SequenceNode)
            else self._mapping(cast(yaml.MappingNode, node), path)
        )
        self._open.pop()
        return value

    def _sequence(self, node: yaml.SequenceNode, path: str) -> list[Any]:
        return [self.read(entry, f"{path}[{index}]") for index, entry in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        self._refuse_repeats(node, path)
        self.loader.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key, entry in node.value:
            below = _below(path, _key(key))
            self.marks[below] = Mark.of(key.start_mark)
            found[_key(key)] = self.read(entry, below)
        return found

    def _refuse_repeats(self, node: yaml.MappingNode, path: str) -> None:
        seen: dict[str, Mark] = {}
        for key in _own_keys(node):
            mark = Mark.of(key.start_mark)
            if _key(key) in seen:
                first = seen[_key(key)]
                problem = f"{_below(path, _key(key))} is set twice, first in line {first.line}: keep one"
                raise DocumentError(problem, mark)
            seen[_key(key)] = mark


def _own_keys(node: yaml.MappingNode) -> Iterator[yaml.Node]:
    return (key for key, _ in node.value if key.tag != MERGE)


def _key(node: yaml.Node) -> str:
    """Key as text, which is all that JSON knows."""
    if not isinstance(node, yaml.ScalarNode):
        raise DocumentError("a key must be text", Mark.of(node.start_mark))
    return node.value


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
