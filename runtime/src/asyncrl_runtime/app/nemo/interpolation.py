"""Resolves `${…}`: references to other settings, and `oc.env`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl_runtime.app.yaml_document import DocumentError, read_value

INNERMOST = re.compile(r"\$\{([^${}]*)\}")
REFERENCE = re.compile(r"\.*[A-Za-z_][\w-]*(\.[\w-]+|\[\d+\])*")
ENVIRONMENT = re.compile(r"oc\.env:\s*([A-Za-z_]\w*)\s*(?:,(.*))?", re.DOTALL)
RESOLVER = re.compile(r"[\w.]+:")
MISSING = "???"
MAX_VALUES = 100_000
MAX_CHARACTERS = 100_000
MAX_DEPTH = 100


@dataclass(eq=False)
class Unresolved(Exception):
    """A value cannot be worked out."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(slots=True)
class _Resolver:
    root: Mapping[str, Any]
    environment: Mapping[str, str]
    problems: list[tuple[str, str]] = field(default_factory=list)
    _values: int = 0

    def value(self, raw: Any, path: str, open_: tuple[str, ...]) -> Any:
        """A value with everything in it resolved; `open_` holds the references that are being followed."""
        self._values += 1
        if self._values > MAX_VALUES or len(open_) > MAX_DEPTH:
            raise Unresolved(f"its references lead to more than {MAX_VALUES} values: write them out")
        if isinstance(raw, dict):
            return {key: self._inside(entry, _below(path, key), open_) for key, entry in raw.items()}
        if isinstance(raw, list):
            return [self._inside(entry, f"{path}[{index}]", open_) for index, entry in enumerate(raw)]
        return self.text(raw, path, open_) if isinstance(raw, str) else raw

    def _inside(self, raw: Any, path: str, open_: tuple[str, ...]) -> Any:
        """An entry of a block; at the top its problem is noted and the others are looked at too."""
        if open_:
            return self.value(raw, path, open_)
        try:
            return self.value(raw, path, open_)
        except Unresolved as unresolved:
            self.problems.append((path, str(unresolved)))
            return None

    def text(self, text: str, path: str, open_: tuple[str, ...]) -> Any:
        """A text with what it refers to put in; the thing itself where the text is nothing else."""
        if text == MISSING:
            raise Unresolved(f"is {MISSING}, which is to be given: write the value")
        while (match := INNERMOST.search(text)) is not None:
            found = self._expression(match[1].strip(), path, open_)
            if match[0] == text:
                return found
            if isinstance(found, dict | list):
                raise Unresolved(f"{match[0]} is a block in the middle of a text: refer to a single value")
            text = f"{text[: match.start()]}{_spelt(found)}{text[match.end() :]}"
            if len(text) > MAX_CHARACTERS:
                raise Unresolved(f"its references make a text of more than {MAX_CHARACTERS} characters")
        if "${" in text:
            raise Unresolved(f"{text} holds a ${{ that is not closed, or an expression that is not read here")
        return text

    def _expression(self, words: str, path: str, open_: tuple[str, ...]) -> Any:
        environment = ENVIRONMENT.fullmatch(words)
        if environment is not None:
            return self._variable(environment[1], environment[2])
        if REFERENCE.fullmatch(words):
            return self._refer(words, path, open_)
        if RESOLVER.match(words):
            raise Unresolved(f"${{{words}}} is a resolver that is not carried out here: write the value")
        raise Unresolved(f"${{{words}}} is no reference to a setting: write the value")

    def _variable(self, name: str, default: str | None) -> Any:
        if name in self.environment:
            return typed(self.environment[name])
        if default is None:
            raise Unresolved(f"the environment variable {name} is not set: set it, or give a default")
        return typed(default.strip().strip("'\""))

    def _refer(self, words: str, path: str, open_: tuple[str, ...]) -> Any:
        target = _absolute(words, path)
        if target in open_ or target == path:
            loop = " → ".join((*open_, target))
            raise Unresolved(f"${{{words}}} leads back to itself ({loop}): write one of them out")
        node: Any = self.root
        for step in re.findall(r"[^.\[\]]+", target):
            try:
                node = node[int(step)] if isinstance(node, list) else node[step]
            except (KeyError, IndexError, TypeError, ValueError):
                raise Unresolved(f"${{{words}}} refers to {target}, which is not set: set it") from None
        return self.value(node, target, (*(open_ or (path,)), target))


def resolve_all(root: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[Any, list[tuple[str, str]]]:
    """A tree with every `${…}` resolved, and (path, problem) of each that could not be."""
    resolver = _Resolver(root, environment)
    return resolver.value(root, "", ()), resolver.problems


def typed(text: str) -> Any:
    """A number or switch where the text spells one exactly, else the text."""
    try:
        value = read_value(text)
    except DocumentError:
        return text
    plain = value is None or isinstance(value, bool | int | float)
    return value if plain and _spelt(value) == text else text


def _spelt(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _absolute(words: str, path: str) -> str:
    """`.name` is beside the key that holds it, `..name` beside its block."""
    dots = len(words) - len(words.lstrip("."))
    if not dots:
        return words
    holder = re.findall(r"[^.\[\]]+", path)[:-dots]
    return ".".join((*holder, words[dots:]))


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
