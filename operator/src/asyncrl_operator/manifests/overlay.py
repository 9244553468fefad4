"""Merging what a user gives over what the operator renders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(base: Any, over: Any) -> Any:
    """Objects by key, lists of named objects by name, everything else replaced. Neither argument changes."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {key: merged(base.get(key), over[key]) if key in over else base[key] for key in [*base, *over]}
    if _is_named(base) and _is_named(over):
        given = {item["name"]: item for item in over}
        known = {item["name"] for item in base}
        return [merged(item, given.get(item["name"], {})) for item in base] + [
            item for item in over if item["name"] not in known
        ]
    return over


def _is_named(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and "name" in item for item in value)
    )
