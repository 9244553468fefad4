"""Reads a file of the reference with its `defaults:` chain, and resolves `${…}` in what comes out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl_runtime.app.nemo.interpolation import resolve_all
from asyncrl_runtime.app.yaml_document import DocumentError, read_documents

DEFAULTS = "defaults"


@dataclass(eq=False)
class ReferenceInvalid(Exception):
    """A file of the reference cannot be read or imported. Each line is one problem, with its place."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(slots=True)
class Reference:
    """What a file says after its chain was merged."""

    file: str
    value: dict[str, Any]
    places: dict[str, str] = field(default_factory=dict)
    """Where each dotpath was set last, as `file:line:column`."""

    def where(self, path: str) -> str:
        """Place of a dotpath, or of the nearest block around it."""
        while path and path not in self.places:
            path = path.rpartition(".")[0]
        return self.places.get(path, self.file)


def read_reference(path: Path, environment: Mapping[str, str] = os.environ) -> Reference:
    """Read a file, lay it over the files that its `defaults` name, and resolve every `${…}`.

    Raises:
        ReferenceInvalid: a file of the chain is missing, is not YAML or names itself, or a `${…}` cannot be
            resolved.
    """
    try:
        reference = _read(path, ())
        reference.value.pop(DEFAULTS, None)
        resolved, problems = resolve_all(reference.value, environment)
    except RecursionError as error:
        raise ReferenceInvalid((f"{path}: its blocks or its defaults are nested too deeply",)) from error
    if problems:
        lines = (f"{reference.where(at)}: {at}: {text}" for at, text in problems)
        raise ReferenceInvalid(tuple(lines))
    return Reference(reference.file, resolved, reference.places)


def _read(path: Path, chain: tuple[Path, ...]) -> Reference:
    """One file over those that it names; `chain` holds the files that led here."""
    real = path.resolve()
    if real in chain:
        names = " → ".join(each.name for each in (*chain[chain.index(real) :], real))
        raise ReferenceInvalid((f"{path}: its defaults lead back to itself ({names}): remove one of them",))
    own = _document(path, chain)
    merged = Reference(str(path), {})
    for name in _parents(own):
        parent = _read(path.parent / name, (*chain, real))
        _lay_over(merged, parent)
    _lay_over(merged, own)
    return merged


def _document(path: Path, chain: tuple[Path, ...]) -> Reference:
    named = f" (named by the defaults of {chain[-1].name})" if chain else ""
    try:
        documents = read_documents(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"{path}: cannot be read{named}: {error.strerror}"
        raise ReferenceInvalid((problem,)) from error
    except UnicodeDecodeError as error:
        problem = f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}"
        raise ReferenceInvalid((problem,)) from error
    except DocumentError as error:
        place = f"{path}:{error.mark.line}:{error.mark.column}" if error.mark else str(path)
        raise ReferenceInvalid((f"{place}: {error}",)) from error
    if len(documents) > 1:
        raise ReferenceInvalid((f"{path}: holds {len(documents)} documents: give each a file of its own",))
    value = documents[0].value if documents else {}
    if not isinstance(value, dict):
        raise ReferenceInvalid((f"{path}: holds no block of keys: is it a file of the reference?",))
    marks = documents[0].marks if documents else {}
    places = {at: f"{path}:{mark.line}:{mark.column}" for at, mark in marks.items() if at}
    return Reference(str(path), value, places)


def _parents(own: Reference) -> list[str]:
    named = own.value.get(DEFAULTS)
    names = named if isinstance(named, list) else [] if named is None else [named]
    if not all(isinstance(name, str) and name for name in names):
        problem = "defaults is neither a file nor a list of files: name files, relative to this one"
        raise ReferenceInvalid((f"{own.where(DEFAULTS)}: {problem}",))
    return names


def _lay_over(base: Reference, upper: Reference) -> None:
    base.value = merged(base.value, upper.value)
    base.places.update(upper.places)


def merged(base: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks are merged key by key; anything else of `upper` replaces what was there."""
    result = dict(base)
    for key, value in upper.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
