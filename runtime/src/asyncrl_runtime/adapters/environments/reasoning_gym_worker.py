"""Scores with the reasoning-gym generator that made the prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from asyncrl_runtime.adapters.environments.results import BadResult, Outcome, number
from asyncrl_runtime.adapters.sources.reasoning_gym import ENTRY
from asyncrl_runtime.ports.environment import Episode

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGymService:
    """Pays what the generator's own scorer gives, 0 to 1."""

    def __init__(self) -> None:
        import reasoning_gym

        self._scorer_of: Callable[[str], Callable[..., object]] = reasoning_gym.get_score_answer_fn

    def facts(self) -> dict[str, bool]:
        """No state between turns; nothing is awaited."""
        return {"episodic": False, "concurrent": False}

    def step(self, episode: Episode) -> Outcome:
        """Judge the last turn: what stands in <answer> tags, else all of it."""
        entry = episode.prompt.extra.get(ENTRY)
        if not isinstance(entry, Mapping):
            return Outcome(problem="scores prompts of data.source.reasoningGym only; this is none,")
        tagged = _TAGGED.findall(episode.turns[-1].text)
        given = (tagged[-1] if tagged else episode.turns[-1].text).strip()
        try:
            score = self._scorer_of(entry["metadata"]["source_dataset"])
            return Outcome({"reward": number(score(answer=given, entry=entry))})
        except BadResult as problem:
            return Outcome(problem=f"returned {problem},")
        except Exception as error:  # noqa: BLE001  whatever a generator's scorer raises is its outcome
            return Outcome(problem=f"raised {type(error).__name__}: {error}")
