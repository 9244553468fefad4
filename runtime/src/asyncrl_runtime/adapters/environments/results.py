"""What an environment's function returned, as plain numbers; runs in the worker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STEP_KEYS = frozenset({"reward", "components", "terminated", "observation", "flagged"})


class BadResult(Exception):
    """The function returned something that is no reward; the text goes on with "returned"."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The worker's answer: a step as plain values, or a problem in words."""

    step: Mapping[str, Any] | None = None
    problem: str = ""
    trace: str = ""


def plain_step(value: object) -> dict[str, Any]:
    """Fields of an `EnvironmentStep` from a number, a dict of parts, a dict of fields, or such an object.

    Without a reward, the reward is the sum of the parts. Raises `BadResult`.
    """
    if isinstance(value, Mapping):
        if set(value) & STEP_KEYS:
            return _from_fields(value)
        parts = _parts(value)
        return {"reward": math.fsum(parts.values()), "components": parts}
    if not hasattr(value, "item") and hasattr(value, "reward"):
        return _from_fields({key: getattr(value, key) for key in STEP_KEYS if hasattr(value, key)})
    return {"reward": number(value)}


def number(value: object) -> float:
    """A finite float from a number of Python, numpy or torch. Raises `BadResult`."""
    if hasattr(value, "item") and getattr(value, "size", 1) != 0:
        try:
            value = value.item()
        except (TypeError, ValueError, RuntimeError):
            raise BadResult(f"{_short(value)}, which is not one number") from None
    if not isinstance(value, int | float):
        raise BadResult(f"{_short(value)}, which is no number")
    try:
        found = float(value)
    except OverflowError:
        raise BadResult("a number too large for a float") from None
    if not math.isfinite(found):
        raise BadResult(f"{found}, and must return a finite number")
    return found


def _from_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(map(str, set(value) - STEP_KEYS))
    if unknown:
        known = ", ".join(sorted(STEP_KEYS))
        raise BadResult(f"a dict with {', '.join(unknown)} beside its fields (which are {known})")
    parts = _parts(value.get("components") or {})
    if value.get("reward") is None and not parts:
        raise BadResult("neither a reward nor components")
    reward = math.fsum(parts.values()) if value.get("reward") is None else number(value["reward"])
    observation, terminated = value.get("observation"), bool(value.get("terminated", True))
    if observation is not None and not isinstance(observation, str):
        raise BadResult(f"the observation {_short(observation)}, which is no string")
    if not terminated and observation is None:
        raise BadResult("a step that is not terminated and holds no observation")
    return {
        "reward": reward,
        "components": parts,
        "terminated": terminated,
        "observation": observation,
        "flagged": bool(value.get("flagged", False)),
    }


def _parts(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise BadResult(f"the components {_short(value)}, which are no dict")
    if not value:
        return {}
    found = {}
    for name, part in value.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise BadResult(f"a part called {name!r}; names are strings without a slash")
        try:
            found[name] = number(part)
        except BadResult as problem:
            raise BadResult(f"{problem} under {name!r}") from None
    return found


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
