"""Several environments, chosen by the task of the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from asyncrl_runtime.core.errors import EnvironmentFailure
from asyncrl_runtime.ports.environment import Environment, EnvironmentStep, Episode


class EnvironmentsByTask:
    """Hands an episode to the environment of its task."""

    name = "byTask"

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        self.environments = dict(environments)

    async def start(self) -> None:
        """Start those that start ahead of their first step."""
        await asyncio.gather(*(env.start() for env in self.environments.values() if hasattr(env, "start")))

    async def step(self, episode: Episode) -> EnvironmentStep:
        """Judge the last turn. Raises `EnvironmentFailure` for a task without an environment."""
        task = episode.prompt.task
        chosen = self.environments.get(task) if task is not None else None
        if chosen is None:
            known = ", ".join(self.environments)
            problem = f"has no environment for task {task!r}, only for {known}; add it there,"
            raise EnvironmentFailure(self.name, "byTask", episode.prompt.label, problem)
        return await chosen.step(episode)

    async def health(self) -> str | None:
        """The first problem of any of them."""
        for task, environment in self.environments.items():
            problem = await environment.health()
            if problem is not None:
                return f"{task}: {problem}"
        return None

    async def close(self) -> None:
        """Close all. Idempotent."""
        await asyncio.gather(*(environment.close() for environment in self.environments.values()))
