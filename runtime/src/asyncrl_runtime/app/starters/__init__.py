"""Starter manifests (CLI-5): each runs as it is; the samples of the repository are the same texts."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from asyncrl_runtime.core.errors import RunError


@dataclass(frozen=True, slots=True)
class Starter:
    """A manifest, with the files that it refers to."""

    task: str
    manifest: str
    shows: str
    companions: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files, the manifest first."""
        return (self.manifest, *self.companions)


STARTERS = (
    Starter("reverse", "reverse-digits.yaml", "the demo: two shards, a long tail, checkpoints"),
    Starter("copy", "copy-digits.yaml", "the easiest task, learned in seconds"),
    Starter("sort", "sort-digits.yaml", "a longer run on one shard"),
    Starter("add", "add-digits.yaml", "sums, which take minutes"),
    Starter("jsonl", "jsonl.yaml", "prompts and answers from a file", ("words.jsonl",)),
    Starter("reasoning-gym", "reasoning-gym.yaml", "generated puzzles with their own scoring"),
    Starter("function", "function.yaml", "a reward function of your own", ("reward.py",)),
    Starter("tools", "tools.yaml", "two turns with a calculator", ("calculator.py",)),
    Starter("hugging-face", "hugging-face.yaml", "weights of a language model, from a folder or the hub"),
)


@dataclass(eq=False)
class UnknownTask(RunError):
    """There is no starter of that name."""

    task: str

    def __str__(self) -> str:
        known = [starter.task for starter in STARTERS]
        near = difflib.get_close_matches(self.task, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"no starter is called {self.task!r}{hint or ';'} There are: {', '.join(known)}"


@dataclass(eq=False)
class FileExists(RunError):
    """A starter would overwrite a file."""

    path: Path

    def __str__(self) -> str:
        return f"{self.path} exists already and stays as it is; choose another place, or move it away"


def find(task: str) -> Starter:
    """The starter of a task. Raises `UnknownTask`."""
    for starter in STARTERS:
        if starter.task == task:
            return starter
    raise UnknownTask(task)


def text(name: str) -> str:
    """Content of a starter's file."""
    return resources.files(__name__).joinpath("files", name).read_text(encoding="utf-8")


def write(starter: Starter, folder: Path) -> list[Path]:
    """Write all its files; all or none. Raises `FileExists`."""
    return write_manifest(starter, folder / starter.manifest)


def write_manifest(starter: Starter, manifest: Path) -> list[Path]:
    """Write the manifest under that name and the other files beside it; all or none. Raises `FileExists`."""
    paths = {manifest: starter.manifest}
    paths |= {manifest.with_name(name): name for name in starter.companions}
    for path in paths:
        if path.exists():
            raise FileExists(path)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    for path, name in paths.items():
        path.write_text(text(name), encoding="utf-8")
    return list(paths)


def starters() -> dict[str, str]:
    """What each task shows, by name."""
    return {starter.task: starter.shows for starter in STARTERS}
