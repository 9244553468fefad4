"""custom: a user's own sampler class."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.samplers.base import REQUIRED_MEMBERS, Sampler, SamplerUnusable

CAPABILITIES = ("supports_buffer_checkpoint", "supports_training_claims")


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
    except Exception as error:  # importing runs the user's code
        raise SamplerUnusable(target, f"cannot be imported: {_told(error)}") from error
    if not isinstance(cls, type):
        raise SamplerUnusable(target, f"is a {type(cls).__name__}: name a class")
    missing = [member for member in REQUIRED_MEMBERS if not hasattr(cls, member)]
    if missing:
        raise SamplerUnusable(
            target, f"lacks {', '.join(missing)}; see asyncrl_runtime.core.samplers.base.Sampler"
        )
    declared = {flag: bool(cls.__dict__.get(flag, False)) for flag in CAPABILITIES}
    try:
        told = type(cls.__name__, (cls,), {"__module__": cls.__module__, "name": target, **declared})
        return cast(Sampler, told(buffer, **arguments))
    except Exception as error:  # the constructor is the user's code
        raise SamplerUnusable(target, f"cannot be built with {dict(arguments)}: {_told(error)}") from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
