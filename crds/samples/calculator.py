"""A calculator as an environment: it answers the first turn and scores both."""

import re
from typing import Any


class Calculator:
    """Built once per worker process; every turn of an episode comes to the same process."""

    def step(self, episode: Any) -> dict:
        """Judge the last turn: pay half for the call, half for the answer."""
        said = episode.turns[-1].text.strip()
        if len(episode.turns) == 1:
            wanted = episode.prompt.text.removesuffix("=")
            result = re.fullmatch(r"(\d+)\+(\d+)", said)
            shown = str(sum(map(int, result.groups()))) if result else ""
            reward = {"call": 0.5 * share(said, wanted), "answer": 0.0}
            return {"components": reward, "terminated": False, "observation": f"={shown}="}
        return {"components": {"call": 0.0, "answer": 0.5 * share(said, episode.prompt.answer)}}


def share(said: str, wanted: str) -> float:
    """Equal characters at equal places, over the longer length."""
    return sum(a == b for a, b in zip(said, wanted, strict=False)) / max(len(said), len(wanted), 1)
