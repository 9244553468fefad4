"""What every environment keeps; a test module subclasses it, with `make_environment`, `right`, `wrong`."""

import asyncio
import math

from asyncrl_runtime.core.records import Prompt, PromptRef
from asyncrl_runtime.ports.environment import Environment, Episode, Turn


def episode(text, answer, *completions, position=0, episode_id="e0", **prompt):
    """An episode whose policy turns are the completions, with empty observations in between."""
    asked = Prompt(PromptRef(0, position), ({"role": "user", "content": text},), answer=answer, **prompt)
    turns = []
    for completion in completions:
        turns += [Turn("assistant", completion), Turn("user", "")]
    return Episode(episode_id, asked, tuple(turns[:-1]))


class EnvironmentContract:
    """`right` and `wrong` are (prompt, answer, completion)."""

    right: tuple[str, str, str]
    wrong: tuple[str, str, str]
    prompt: dict = {}  # noqa: RUF012

    def make_environment(self) -> Environment:
        raise NotImplementedError

    async def test_a_right_answer_earns_more_than_a_wrong_one(self):
        environment = self.make_environment()
        try:
            right = await environment.step(episode(*self.right, **self.prompt))
            wrong = await environment.step(episode(*self.wrong, **self.prompt))
        finally:
            await environment.close()

        assert right.reward > wrong.reward
        for step in (right, wrong):
            assert math.isfinite(step.reward)
            assert all(math.isfinite(value) for value in step.components.values())
            assert step.terminated or step.observation is not None

    async def test_many_episodes_at_once_each_get_their_own_answer(self):
        environment = self.make_environment()
        asked = [
            episode(*(self.right if k % 2 else self.wrong), position=k, episode_id=f"e{k}", **self.prompt)
            for k in range(12)
        ]
        try:
            steps = await asyncio.gather(*(environment.step(one) for one in asked))
        finally:
            await environment.close()

        assert all((step.reward > steps[0].reward) == bool(k % 2) for k, step in enumerate(steps))

    async def test_a_fresh_environment_is_well_and_has_a_name(self):
        environment = self.make_environment()
        try:
            assert await environment.health() is None
            assert environment.name
        finally:
            await environment.close()

    async def test_closing_twice_is_harmless(self):
        environment = self.make_environment()
        await environment.step(episode(*self.right, **self.prompt))
        await environment.close()
        await environment.close()
