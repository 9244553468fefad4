"""What answers the model and scores it."""

from typing import Annotated, Literal

from annotated_types import Le, MaxLen
from pydantic import StringConstraints

from asyncrl_api.base import ApiModel, Count, FreeForm, Items, Name, Path


class ArithmeticEnvironment(ApiModel):
    """Scores the built-in digit tasks."""

    reward: Literal["dense", "exact"] = "dense"
    """`dense` pays the share of right positions, `exact` pays 1 only for the whole answer."""


class MathEnvironment(ApiModel):
    """Compares the final answer with the reference as mathematics."""

    num_workers: Annotated[Count, Le(256)] = 8
    """Scoring processes. A hung one is killed and replaced."""


class ReasoningGymEnvironment(ApiModel):
    """Scores with the generator that made the prompt."""


class FunctionEnvironment(ApiModel):
    """Your own Python environment."""

    target: Annotated[Name, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$")]
    """What to import, as `module:attr`. It must be installed in the image."""

    arguments: FreeForm | None = None
    """Keyword arguments it is called with once, at start."""

    num_workers: Annotated[Count, Le(256)] = 1
    """Processes that run it."""


class TaskEnvironment(ApiModel):
    """One environment, for the prompts of one task."""

    arithmetic: ArithmeticEnvironment | None = None
    """Scores the built-in digit tasks."""

    math: MathEnvironment | None = None
    """Compares the final answer with the reference as mathematics."""

    reasoning_gym: ReasoningGymEnvironment | None = None
    """Scores with the generator that made the prompt."""

    function: FunctionEnvironment | None = None
    """Your own Python environment."""


class NemoGymEnvironment(ApiModel):
    """HTTP environment services that drive their own turns. Setting it puts the whole run on the gym path."""

    config_paths: Annotated[Items[Path], MaxLen(64)] = ()
    """Configuration files of the services, in order of precedence."""

    config: FreeForm | None = None
    """Settings laid over the files, passed on as they are."""


class EnvironmentSpec(TaskEnvironment):
    """What answers the model and scores it."""

    by_task: Annotated[dict[Annotated[str, MaxLen(63)], TaskEnvironment], MaxLen(32)] | None = None
    """Several environments, keyed by the task name that a prompt carries."""

    nemo_gym: NemoGymEnvironment | None = None
    """HTTP environment services that drive their own turns. Setting it puts the whole run on the gym path.
    """
