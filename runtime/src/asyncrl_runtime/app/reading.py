"""Reading files of a run folder that anybody may have touched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl_runtime.adapters.sinks.lines import read_rows
from asyncrl_runtime.core.errors import RunError


@dataclass(eq=False)
class Unreadable(RunError):
    """A file of a run folder is not what a run writes."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"{self.path} cannot be read: {self.problem}; repair it or move it away"


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None if there is no file. Raises Unreadable."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise Unreadable(path, f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise Unreadable(path, f"it holds {type(value).__name__} where an object belongs")
    return value


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The JSON objects in a file of lines, none if there is no file. Raises Unreadable."""
    try:
        rows = list(read_rows(path))
    except NotADirectoryError:
        return []
    except OSError as error:
        raise Unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise Unreadable(path, f"a line is not JSON ({error})") from error
    if not all(isinstance(row, dict) for row in rows):
        raise Unreadable(path, "a line holds no object")
    return rows


def numbers(value: Mapping[str, Any], names: Iterable[str], path: Path) -> None:
    """Check that these fields, where they are set, are numbers. Raises Unreadable."""
    for name in names:
        found = value.get(name)
        if found is not None and (isinstance(found, bool) or not isinstance(found, int | float)):
            raise Unreadable(path, f"{name} is {found!r} where a number belongs")
