"""Scores the built-in digit tasks, in microseconds and in the controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncrl_runtime.core.errors import EnvironmentFailure
from asyncrl_runtime.ports.environment import EnvironmentStep, Episode


@dataclass(frozen=True, slots=True)
class ArithmeticEnvironment:
    """`dense` pays the share of right positions, `exact` pays 1 only for the whole answer."""

    reward: Literal["dense", "exact"] = "dense"
    name: str = "arithmetic"

    async def step(self, episode: Episode) -> EnvironmentStep:
        """Compare the completion with the answer. Raises `EnvironmentFailure` for a prompt without one."""
        answer = episode.prompt.answer
        if answer is None:
            raise EnvironmentFailure(
                self.name, "arithmetic", episode.prompt.label, "needs an answer and has none"
            )
        text = episode.turns[-1].text.strip()
        exact = float(text == answer)
        dense = share_of_right_positions(text, answer)
        return EnvironmentStep(
            reward=dense if self.reward == "dense" else exact, components={"dense": dense, "exact": exact}
        )

    async def health(self) -> str | None:
        """Always well."""
        return None

    async def close(self) -> None:
        """Nothing to release."""


def share_of_right_positions(text: str, answer: str) -> float:
    """Right characters, and the right end, over the answer's length plus one; 0 to 1.

    The end counts as one position, so that a right digit is worth the same in a short and in a long text.
    """
    right = sum(given == wanted for given, wanted in zip(text, answer, strict=False))
    return (right + (len(text) == len(answer))) / (len(answer) + 1)
