"""Rows of the rename table, and looking one up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from asyncrl_runtime.app.nemo.conversions import Convert, Targets, copy

ALGORITHMS = ("grpo", "ppo")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the rename table."""

    id: str
    source: str | tuple[str, ...]
    """Path in the reference's file, or several with one meaning. `<algo>` is grpo or ppo; a last step of `*`
    is any other key of the block, with all that is below it."""

    target: str | tuple[str, ...] = ()
    """Path below `spec`. Empty: there is no field."""

    convert: Convert = copy
    takes_null: bool = False
    """The conversion wants to see null; a copy always does."""

    descends: bool = False
    """A block at this path has rows of its own."""

    @property
    def sources(self) -> tuple[str, ...]:
        """All paths in the reference's file."""
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def targets(self) -> Targets:
        """All paths below `spec`."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @property
    def sees_null(self) -> bool:
        """Null is a value of it."""
        return self.takes_null or self.convert is copy


def below(source: str, target: str, *rows: Row) -> Iterator[Row]:
    """Rows whose paths are given below a block."""
    for row in rows:
        sources = tuple(_join(source, each) for each in row.sources)
        yield replace(row, source=sources, target=tuple(_join(target, each) for each in row.targets))


def anywhere(*rows: Row) -> Iterator[Row]:
    """Old names, which stood at the top or in `async_rl`."""
    for row in rows:
        yield replace(row, source=(*row.sources, *(f"async_rl.{each}" for each in row.sources)))


def _join(block: str, key: str) -> str:
    return f"{block}.{key}" if block else key


@dataclass(frozen=True, slots=True)
class Match:
    """A row as it applies to one path."""

    row: Row
    targets: Targets


@dataclass(frozen=True, slots=True)
class Index:
    """The rows by path."""

    exact: dict[str, Match]
    any_key: dict[str, Match]
    """By the block whose other keys a row takes."""

    blocks: frozenset[str]
    """Paths that have rows below them."""

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Index:
        """Expand `<algo>`; of two rows with one path the first counts."""
        exact: dict[str, Match] = {}
        any_key: dict[str, Match] = {}
        blocks: set[str] = set()
        for path, match in (found for row in rows for found in _expanded(row)):
            holder = path.rpartition(".")[0]
            if path.endswith(".*"):
                any_key.setdefault(holder, match)
            else:
                exact.setdefault(path, match)
            while holder:
                blocks.add(holder)
                holder = holder.rpartition(".")[0]
        return cls(exact, any_key, frozenset(blocks))

    def find(self, path: str) -> Match | None:
        """The row for a path: its own, else the one for other keys of its block."""
        if path in self.exact:
            return self.exact[path]
        return self.any_key.get(path.rpartition(".")[0]) if path not in self.blocks else None

    def known_below(self, block: str) -> list[str]:
        """Keys of a block that have rows, or rows below them."""
        start = f"{block}." if block else ""
        paths = [path for path in (*self.exact, *self.blocks) if path.startswith(start)]
        return sorted({path.removeprefix(start).partition(".")[0] for path in paths})


def _expanded(row: Row) -> Iterator[tuple[str, Match]]:
    for source in row.sources:
        for algorithm in ALGORITHMS:
            if algorithm == ALGORITHMS[0] or "<algo>" in source:
                targets = tuple(target.replace("<algo>", algorithm) for target in row.targets)
                yield source.replace("<algo>", algorithm), Match(row, targets)
