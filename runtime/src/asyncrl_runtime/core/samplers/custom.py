"""custom: a user's own sampler class."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.samplers.base import REQUIRED_MEMBERS, Sampler, SamplerUnusable


def load_custom(target: str, arguments: Mapping[str, object], buffer: ReplayBuffer) -> Sampler:
    """Build `module:ClassName` with the buffer first and the arguments by keyword (SC-2.67).

    Capabilities count only where the class itself declares them, since what holds for a base class
    need not hold for what a subclass changed (SC-3.3).

    Raises:
        SamplerUnusable: it cannot be imported or built, or members are missing.
    """
    module_name, _, class_name = target.partition(":")
    try:
        cls = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise SamplerUnusable(target, f"cannot be imported: {error}") from error
    missing = [member for member in REQUIRED_MEMBERS if not hasattr(cls, member)]
    if missing:
        raise SamplerUnusable(
            target, f"lacks {', '.join(missing)}; see asyncrl_runtime.core.samplers.base.Sampler"
        )
    try:
        sampler = cls(buffer, **arguments)
    except (TypeError, ValueError) as error:
        raise SamplerUnusable(target, f"cannot be built with {dict(arguments)}: {error}") from error
    for flag in ("supports_buffer_checkpoint", "supports_training_claims"):
        sampler.__dict__.setdefault(flag, bool(cls.__dict__.get(flag, False)))
    sampler.__dict__.setdefault("name", target)
    return cast(Sampler, sampler)
