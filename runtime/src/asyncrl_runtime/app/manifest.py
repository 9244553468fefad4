"""Reads a manifest file, with `--set` laid over it, and says where each problem is (CLI-20, CLI-23)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import ManifestInvalid, Problem, parse
from asyncrl_runtime.app.yaml_document import Document, DocumentError, Mark, read_documents, read_value

KIND = "AsyncRLJob"
STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(eq=False)
class ManifestError(Exception):
    """A manifest cannot be run. Each line is one problem, with its place."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(slots=True)
class Positions:
    """Where each dotpath of a manifest was set: in the file, or by an override."""

    file: str
    marks: dict[str, Mark] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    """Text of the `--set` by dotpath."""

    def override(self, path: str, text: str) -> None:
        """Note that an override set a path; what stood below it in the file is gone."""
        for known in (self.marks, self.overrides):
            for inner in [each for each in known if _is_within(each, path)]:
                del known[inner]
        self.overrides[path] = text

    def where(self, path: str) -> str:
        """Place of a dotpath, or of the nearest block around it: `job.yaml:12:5`, or the override."""
        place = self._holder(path)
        if place in self.overrides:
            return f"--set {self.overrides[place]}"
        mark = self.marks.get(place)
        return f"{self.file}:{mark.line}:{mark.column}" if mark else self.file

    def _holder(self, path: str) -> str:
        """The path itself if something set it, else the nearest one around it."""
        while path and path not in self.overrides and path not in self.marks:
            path = re.sub(r"(\[\d+\]|(^|\.)[^.\[]*)$", "", path)
        return path

    def order(self, path: str) -> tuple[bool, int, int]:
        """Sort key: file order, then overrides in theirs."""
        place = self._holder(path)
        if place in self.overrides:
            return True, list(self.overrides).index(place), 0
        mark = self.marks.get(place, Mark(0, 0))
        return False, mark.line, mark.column


def read_job(path: Path, sets: Iterable[str] = (), *, cluster: bool = False) -> AsyncRLJob:
    """Read and check a manifest. With `cluster`, rules count too that only a cluster asks for.

    Raises:
        ManifestError: it cannot be read, or breaks the schema or rules; everything is in it.
    """
    raw, positions = load_manifest(path, sets)
    try:
        return parse(raw, cluster=cluster)
    except ManifestInvalid as invalid:
        raise ManifestError(render(invalid.problems, positions)) from None


def render(problems: Iterable[Problem], positions: Positions) -> tuple[str, ...]:
    """One line for each problem, in the order of the file."""
    ordered = sorted(problems, key=lambda problem: positions.order(problem.path))
    return tuple(f"{positions.where(problem.path)}: {problem}" for problem in ordered)


def load_manifest(path: Path, sets: Iterable[str] = ()) -> tuple[Any, Positions]:
    """The manifest's object with the overrides applied, and where everything in it was set.

    Raises:
        ManifestError: the file cannot be read, is not YAML, or an override cannot be applied.
    """
    document = _document(path)
    positions = Positions(str(path), document.marks)
    faults = []
    for text in sets:
        try:
            document.value = _with_override(document.value, text, positions)
        except OverrideInvalid as invalid:
            faults.append(f"--set {text}: {invalid}")
    if faults:
        raise ManifestError(tuple(faults))
    return document.value, positions


def _document(path: Path) -> Document:
    """The one AsyncRLJob of a file that may hold other objects too."""
    try:
        documents = read_documents(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError((f"{path}: cannot be read: {error.strerror}",)) from error
    except UnicodeDecodeError as error:
        raise ManifestError((f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}",)) from error
    except DocumentError as error:
        place = f"{path}:{error.mark.line}:{error.mark.column}" if error.mark else str(path)
        raise ManifestError((f"{place}: {error}",)) from error
    jobs = [each for each in documents if isinstance(each.value, dict) and each.value.get("kind") == KIND]
    if len(jobs) > 1:
        lines = ", ".join(str(job.marks[""].line) for job in jobs)
        problem = f"holds {len(jobs)} jobs, in lines {lines}: give each a file of its own"
        raise ManifestError((f"{path}: {problem}",))
    if jobs:
        return jobs[0]
    if len(documents) > 1:
        raise ManifestError((f"{path}: holds {len(documents)} objects and no {KIND}: add one",))
    return documents[0] if documents else Document(None)


@dataclass(eq=False)
class OverrideInvalid(Exception):
    """A `--set` cannot be applied."""

    problem: str

    def __str__(self) -> str:
        return self.problem


def _with_override(raw: Any, text: str, positions: Positions) -> Any:
    path, found, value = text.partition("=")
    steps = _steps(path)
    if not found or not steps:
        raise OverrideInvalid("is not of the form spec.a.b=value: write a path, = and a value")
    try:
        new = read_value(value)
    except DocumentError as error:
        raise OverrideInvalid(f"the value is {error}: put it in quotes") from error
    raw = {} if raw is None else raw
    _assign(raw, steps, new)
    positions.override(path, text)
    return raw


def _steps(path: str) -> list[str | int]:
    """Keys and indices of a dotpath; none if it is not one."""
    steps: list[str | int] = []
    for match in STEP.finditer(path):
        steps.append(match[1] if match[1] is not None else int(match[2]))
    spelt = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return steps if spelt == f".{path}" else []


def _assign(node: Any, steps: list[Any], value: Any) -> None:
    """Set a value, making the blocks on the way; an index may name the place after the last entry."""
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        if not isinstance(node, list) or step > len(node):
            size = f"has {len(node)} entries" if isinstance(node, list) else "is no list"
            raise OverrideInvalid(f"[{step}] names an entry of what {size}: name one that is there")
        if step == len(node):
            node.append(None)
    elif not isinstance(node, dict):
        raise OverrideInvalid(f"{step} names a key of what is no block: set the block instead")
    if not rest:
        node[step] = value
        return
    inner = node[step] if isinstance(step, int) or step in node else None
    if inner is None:
        inner = [] if isinstance(rest[0], int) else {}
        node[step] = inner
    _assign(inner, rest, value)


def _is_within(path: str, holder: str) -> bool:
    return path == holder or path.startswith((f"{holder}.", f"{holder}["))
