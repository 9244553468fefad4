"""From `spec.environment` to an environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asyncrl_api.job import JobSpec
from asyncrl_api.spec.environment import EnvironmentSpec, TaskEnvironment
from asyncrl_runtime.adapters.environments.arithmetic import ArithmeticEnvironment
from asyncrl_runtime.adapters.environments.by_task import EnvironmentsByTask
from asyncrl_runtime.adapters.environments.pooled import EnvironmentUnusable, PooledEnvironment
from asyncrl_runtime.ports.environment import Environment

REASONING_GYM_WORKERS = 2


def build_environment(spec: JobSpec, *, folder: Path | None = None) -> Environment:
    """The environment of a job. `folder` is the manifest's; modules are looked for there, then where it runs.

    Raises `EnvironmentUnusable` for a kind that this runtime does not drive.
    """
    folders = [Path.cwd()] if folder is None else [folder, Path.cwd()]
    timeout_seconds = spec.async_rl.rollout_failure.native.env_timeout_seconds
    return open_environment(spec.environment, timeout_seconds=timeout_seconds, folders=folders)


def open_environment(
    spec: EnvironmentSpec, *, timeout_seconds: float | None, folders: Sequence[Path] = ()
) -> Environment:
    """The environment that a block asks for; nothing is started before its `start` or first step.

    `folders`, the manifest's first, are where modules of `function.target` are looked for besides the
    installed ones. Raises `EnvironmentUnusable` for a kind that this runtime does not drive.
    """
    if spec.by_task is not None:
        return EnvironmentsByTask(
            {
                task: _single(entry, f"{task}", timeout_seconds=timeout_seconds, folders=folders)
                for task, entry in spec.by_task.items()
            }
        )
    if spec.nemo_gym is not None:
        raise EnvironmentUnusable(
            "nemoGym", "its services need the gym path, which this runtime does not have"
        )
    return _single(spec, None, timeout_seconds=timeout_seconds, folders=folders)


def _single(
    spec: TaskEnvironment, name: str | None, *, timeout_seconds: float | None, folders: Sequence[Path]
) -> Environment:
    if spec.arithmetic is not None:
        return ArithmeticEnvironment(spec.arithmetic.reward, name or "arithmetic")
    if spec.math is not None:
        from asyncrl_runtime.adapters.environments.math_worker import MathService

        return PooledEnvironment(
            name or "math",
            MathService,
            function="math",
            num_workers=spec.math.num_workers,
            timeout_seconds=timeout_seconds,
        )
    if spec.reasoning_gym is not None:
        from asyncrl_runtime.adapters.environments.reasoning_gym_worker import ReasoningGymService

        return PooledEnvironment(
            name or "reasoning_gym",
            ReasoningGymService,
            function="the scorer",
            num_workers=REASONING_GYM_WORKERS,
            timeout_seconds=timeout_seconds,
        )
    if (function := spec.function) is not None:
        from asyncrl_runtime.adapters.environments.function_worker import FunctionService

        return PooledEnvironment(
            name or "function",
            FunctionService,
            (function.target, dict(function.arguments or {}), [str(folder.resolve()) for folder in folders]),
            function=function.target,
            num_workers=function.num_workers,
            timeout_seconds=timeout_seconds,
        )
    raise ValueError("exactly one kind of environment must be set")
