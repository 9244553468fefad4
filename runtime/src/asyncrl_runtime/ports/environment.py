"""Environments: what scores completions and answers turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from asyncrl_runtime.core.records import Prompt


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of an episode after the prompt."""

    role: str
    """`assistant` for the policy's, else the role of an observation (`user`, `tool`)."""

    text: str


@dataclass(frozen=True, slots=True)
class Episode:
    """A sibling's rollout so far; the last turn is the policy's."""

    episode_id: str
    """Unique per sibling and attempt."""

    prompt: Prompt
    turns: tuple[Turn, ...]
    truncated: bool = False
    """The last turn was cut by the length limit."""


@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """The environment's answer to a turn."""

    reward: float
    """Reward of this turn; a completion's reward is the sum over its turns."""

    terminated: bool = True
    observation: str | None = None
    """Templated text that is appended after the turn; needed unless terminated."""

    components: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward, summed over turns like the total."""

    flagged: bool = False
    """Keep the completion out of the loss."""


class Environment(Protocol):
    """Scores one turn. Raises `EnvironmentFailure` naming the prompt and the function at fault."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    async def step(self, episode: Episode) -> EnvironmentStep:
        """Judge the last turn. Cancelling the call stops the work behind it."""
        ...

    async def health(self) -> str | None:
        """A problem in words, or None."""
        ...

    async def close(self) -> None:
        """Stop workers. Idempotent."""
        ...
