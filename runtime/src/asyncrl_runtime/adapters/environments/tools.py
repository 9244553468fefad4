"""A tiny tool protocol for your own environments: calls between markers, results as the next observation.

    class Research:
        def __init__(self):
            self._loop = ToolLoop({"search": search, "add": lambda a, b: str(int(a) + int(b))}, score=score)

        def step(self, episode):
            return self._loop.step(episode)

The policy writes `<tool>add 3 4</tool>` and reads `<result>7</result>`; a turn without a call is its answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl_runtime.ports.environment import Episode

Tool = Callable[..., str]
Score = Callable[[Episode], "float | Mapping[str, Any]"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the policy asked for."""

    tool: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Markers:
    """What surrounds calls and results, and what follows a result."""

    call_begin: str = "<tool>"
    call_end: str = "</tool>"
    result: str = "<result>{}</result>\n"


class InvalidCall(ValueError):
    """A call that cannot be carried out; its text is the observation."""


def parse_call(text: str, markers: Markers = Markers()) -> ToolCall | None:
    """The first call of a completion, or None. Raises `InvalidCall` for one that is not closed or empty."""
    _, begin, rest = text.partition(markers.call_begin)
    if not begin:
        return None
    inside, end, _ = rest.partition(markers.call_end)
    if not end:
        raise InvalidCall(f"the call lacks {markers.call_end}")
    try:
        words = shlex.split(inside)
    except ValueError as error:
        raise InvalidCall(f"the call cannot be read: {error}") from None
    if not words:
        raise InvalidCall("the call names no tool")
    return ToolCall(words[0], tuple(words[1:]))


@dataclass(frozen=True, slots=True)
class ToolLoop:
    """Runs tools until the policy answers without a call, or has used up its calls; then scores."""

    tools: Mapping[str, Tool]
    score: Score
    markers: Markers = Markers()
    max_calls: int = 8
    invalid_call_reward: float = 0.0

    def step(self, episode: Episode) -> Mapping[str, Any]:
        """Fields of a step: a tool's result to go on with, or the final score."""
        num_calls = sum(turn.role == "assistant" for turn in episode.turns) - 1
        try:
            call = parse_call(episode.turns[-1].text, self.markers)
            if call is not None and num_calls < self.max_calls:
                return self._observed(self._run(call), 0.0)
        except InvalidCall as problem:
            if num_calls < self.max_calls:
                return self._observed(f"error: {problem}", self.invalid_call_reward)
        scored = self.score(episode)
        return scored if isinstance(scored, Mapping) else {"reward": scored}

    def _run(self, call: ToolCall) -> str:
        tool = self.tools.get(call.tool)
        if tool is None:
            raise InvalidCall(f"no tool is called {call.tool}; there are {', '.join(self.tools)}")
        try:
            return str(tool(*call.arguments))
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise InvalidCall(f"{call.tool} failed: {error}") from error

    def _observed(self, text: str, reward: float) -> Mapping[str, Any]:
        return {"reward": reward, "terminated": False, "observation": self.markers.result.format(text)}
