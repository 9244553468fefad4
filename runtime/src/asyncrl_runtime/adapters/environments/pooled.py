"""Environments whose judging runs in worker processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncrl_runtime.adapters.environments.pool import StartFailed, WorkerEnded, WorkerPool
from asyncrl_runtime.adapters.environments.results import Outcome
from asyncrl_runtime.core.errors import DeadlinePassed, EnvironmentFailure, EnvironmentUnavailable, RunError
from asyncrl_runtime.ports.environment import EnvironmentStep, Episode

FALLBACK_SECONDS = 300.0
"""Deadline of a step where spec.asyncRL.rolloutFailure.native.envTimeoutSeconds is unset."""

SETTING = "spec.asyncRL.rolloutFailure.native.envTimeoutSeconds"


@dataclass(eq=False)
class EnvironmentUnusable(RunError):
    """An environment cannot be started."""

    environment: str
    problem: str

    def __str__(self) -> str:
        return f"environment {self.environment} cannot be started: {self.problem}"


class PooledEnvironment:
    """Judges in worker processes: what raises, hangs, dies or returns no number fails its prompt alone."""

    def __init__(
        self,
        name: str,
        factory: Callable[..., Any],
        args: tuple[Any, ...] = (),
        *,
        function: str,
        num_workers: int,
        timeout_seconds: float | None,
    ) -> None:
        """`function` is what messages call the code at fault."""
        self.name = name
        self._function = function
        self._deadline_seconds = timeout_seconds or FALLBACK_SECONDS
        self._pool = WorkerPool(
            name,
            factory,
            args,
            num_workers=num_workers,
            deadline_seconds=self._deadline_seconds,
            setting=SETTING,
        )
        self._episodic = False
        self._started: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start a worker and learn how its function wants to be called. Raises `EnvironmentUnusable`."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
        await asyncio.shield(self._started)

    async def step(self, episode: Episode) -> EnvironmentStep:
        """Judge the last turn; starts a worker if none runs.

        Raises `EnvironmentFailure` for what the function did, `EnvironmentUnavailable` where it did not
        answer in time or its worker ended, and `EnvironmentUnusable` where no worker can be started.
        """
        await self.start()
        key = episode.episode_id if self._episodic else None
        try:
            outcome: Outcome = await self._pool.call("step", episode, key=key)
        except DeadlinePassed as error:
            problem = f"did not return within {error.seconds:g} s (raise {SETTING} if that is too short)"
            raise self._unavailable(episode, problem) from error
        except StartFailed as error:
            raise EnvironmentUnusable(self.name, str(error)) from error
        except WorkerEnded as error:
            raise self._unavailable(episode, str(error)) from error
        if outcome.step is None:
            failure = self._failure(episode, outcome.problem)
            if outcome.trace:
                failure.add_note(outcome.trace)
            raise failure
        return EnvironmentStep(**outcome.step)

    async def health(self) -> str | None:
        """Why it does not start, if so."""
        if self._started is not None and self._started.done() and not self._started.cancelled():
            problem = self._started.exception()
            if problem is not None:
                return str(problem)
        return self._pool.problem()

    async def close(self) -> None:
        """Stop the workers. Idempotent."""
        if self._started is not None and not self._started.done():
            self._started.cancel()
        await self._pool.close()

    async def _start(self) -> None:
        try:
            facts = await self._pool.call("facts")
        except (StartFailed, WorkerEnded, DeadlinePassed) as error:
            raise EnvironmentUnusable(self.name, str(error)) from error
        self._episodic, self._pool.concurrent = facts["episodic"], facts["concurrent"]

    def _failure(self, episode: Episode, problem: str) -> EnvironmentFailure:
        return EnvironmentFailure(self.name, self._function, episode.prompt.label, problem)

    def _unavailable(self, episode: Episode, problem: str) -> EnvironmentUnavailable:
        return EnvironmentUnavailable(self.name, self._function, episode.prompt.label, problem)
