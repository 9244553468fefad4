"""Exceptions on their way from a worker to the process that called it."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

_TYPED_ROOTS = frozenset({"builtins", "asyncrl_runtime", "asyncrl_api"})


@dataclass(eq=False)
class RemoteError(Exception):
    """An exception of a worker whose type the caller's process does not know."""

    type_name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.type_name}: {self.problem}" if self.problem else self.type_name


def packed(error: BaseException) -> tuple[type, tuple, dict]:
    """Class, arguments and attributes that rebuild `error`; foreign types become `RemoteError`.

    Only types of Python and of this product keep their class: others would make the caller import
    their module (torch, or a user's), which it must not need.
    """
    trace = "".join(traceback.format_exception(error)).rstrip()
    if type(error).__module__.partition(".")[0] in _TYPED_ROOTS:
        state = {
            **error.__dict__,
            "__notes__": [*getattr(error, "__notes__", ()), f"In the worker:\n{trace}"],
        }
        parts = (type(error), error.args, state)
        try:
            unpacked(pickle.loads(pickle.dumps(parts)))
        except Exception:  # noqa: BLE001 - whatever its pickling raises, its text still travels
            pass
        else:
            return parts
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    state = {"type_name": name, "problem": str(error), "__notes__": [f"In the worker:\n{trace}"]}
    return (RemoteError, (), state)


def unpacked(parts: tuple[type[BaseException], tuple, dict]) -> BaseException:
    """The exception that `packed` took apart, without running its constructor."""
    kind, args, state = parts
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
