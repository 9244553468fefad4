"""The worker's side of `environment.function`: imports the target and calls it."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl_runtime.adapters.environments.results import BadResult, Outcome, plain_step
from asyncrl_runtime.ports.environment import Episode

SCORING = ("prompt", "completion", "answer", "task", "messages", "turns", "extra", "truncated", "episode")
"""What a function may declare; it gets what it declares, by name."""


class UnusableTarget(ValueError):
    """The target cannot be imported, or cannot be called as environments are."""


class FunctionService:
    """One target in one process."""

    def __init__(self, target: str, arguments: Mapping[str, Any], folders: Sequence[str]) -> None:
        """Raises `UnusableTarget`."""
        for folder in reversed(folders):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        self._target = target
        found = _import(target)
        self.episodic, self._call = _bind(target, found, dict(arguments))

    def facts(self) -> dict[str, bool]:
        """`episodic`: turns of an episode must come to the same process. `concurrent`: it awaits."""
        called = getattr(self._call, "__wrapped__", self._call)
        inner = getattr(called, "__call__", None)  # noqa: B004  an instance whose __call__ is async
        concurrent = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(inner)
        return {"episodic": self.episodic, "concurrent": concurrent}

    def ping(self) -> None:
        """Answer, which proves that the process's loop is free."""

    def step(self, episode: Episode) -> Any:
        """Judge the last turn: an `Outcome`, or an awaitable of one."""
        try:
            result = self._call(episode)
        except Exception as error:  # noqa: BLE001  whatever a user's function raises is its outcome
            return _raised(error)
        return self._awaited(result) if inspect.isawaitable(result) else _outcome(result)

    async def _awaited(self, result: Any) -> Outcome:
        try:
            return _outcome(await result)
        except Exception as error:  # noqa: BLE001  whatever a user's function raises is its outcome
            return _raised(error)


def scoring_arguments(episode: Episode) -> dict[str, Any]:
    """All that a function may declare."""
    prompt = episode.prompt
    turns = [{"role": turn.role, "content": turn.text} for turn in episode.turns]
    return {
        "prompt": prompt.text,
        "completion": episode.turns[-1].text,
        "answer": prompt.answer,
        "task": prompt.task,
        "messages": [dict(message) for message in prompt.messages],
        "turns": turns,
        "extra": dict(prompt.extra),
        "truncated": episode.truncated,
        "episode": episode,
    }


def _import(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    try:
        found = importlib.import_module(module_name)
    except Exception as error:
        raise UnusableTarget(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            known = ", ".join(n for n in vars(found) if not n.startswith("_"))[:200]
            raise UnusableTarget(f"{module_name} has no {attribute} (it has: {known})")
        found = getattr(found, name)
    return found


def _bind(target: str, found: Any, arguments: dict[str, Any]) -> tuple[bool, Callable[[Episode], Any]]:
    """Whether it is episodic, and how to call it with an episode.

    A class, and a function that declares nothing of `SCORING`, is called once with the arguments and
    gives the object that judges. A function that declares some of it judges by itself.
    """
    if inspect.isclass(found) or (inspect.isroutine(found) and not _judges(found)):
        try:
            found = found(**arguments)
        except Exception as error:
            raise UnusableTarget(f"{target} cannot be built: {type(error).__name__}: {error}") from error
        arguments = {}
    step = getattr(found, "step", None)
    if callable(step):
        if arguments:
            raise UnusableTarget(f"{target} is an object already and takes no arguments")
        return True, step
    if not callable(found):
        raise UnusableTarget(f"{target} gave {found!r}, which is neither callable nor has a step method")
    return False, _scorer(target, found, arguments)


def _judges(function: Any) -> bool:
    return bool(set(_parameters(function)) & set(SCORING))


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _scorer(target: str, function: Any, arguments: dict[str, Any]) -> Callable[[Episode], Any]:
    parameters = _parameters(function)
    takes_rest = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    declared = [name for name in SCORING if name in parameters and name not in arguments]
    named = {key: value for key, value in arguments.items() if key in parameters or takes_rest}
    if "arguments" in parameters:
        named["arguments"] = arguments
    elif len(named) < len(arguments):
        lost = ", ".join(sorted(set(arguments) - set(named)))
        raise UnusableTarget(f"{target} takes no argument {lost}; correct environment.function.arguments")
    for name, parameter in parameters.items():
        plain = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if plain and parameter.default is parameter.empty and name not in declared and name not in named:
            raise UnusableTarget(
                f"{target} needs {name}, which is neither in environment.function.arguments "
                f"nor among {', '.join(SCORING)}"
            )

    def call(episode: Episode) -> Any:
        given = scoring_arguments(episode)
        return function(**{name: given[name] for name in declared}, **named)

    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


def _outcome(result: object) -> Outcome:
    try:
        return Outcome(plain_step(result))
    except BadResult as problem:
        return Outcome(problem=f"returned {problem},")


def _raised(error: Exception) -> Outcome:
    text = str(error).strip()
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return Outcome(problem=f"raised {said}", trace="".join(traceback.format_exception(error)))
