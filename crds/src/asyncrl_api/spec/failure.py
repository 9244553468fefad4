"""Failed rollouts and stalled runs."""

from typing import Annotated, Literal

from annotated_types import Le
from pydantic import Field

from asyncrl_api.base import ApiModel, Count, Fraction, Natural, Positive, Share


class NativeDeadlines(ApiModel):
    """Deadlines of the native path."""

    generation_timeout_seconds: Positive | None = None
    """Longest generation of one turn. Unset: no limit."""

    env_timeout_seconds: Positive | None = None
    """Longest environment step. Unset: no limit."""


class NemoGymDeadlines(ApiModel):
    """Deadlines of the gym path."""

    rollout_timeout_seconds: Positive | None = None
    """Longest rollout of one whole group, re-sent rows included. Unset: no limit."""

    max_row_attempts: Annotated[Count, Le(1000)] = 3
    """How often rows that do not come back are sent, before the whole group is tried again."""


class RolloutFailureSpec(ApiModel):
    """Retries and budgets of failed rollouts."""

    max_infra_attempts_per_prompt: Annotated[Count, Le(1000)] = 5
    """Tries of a prompt whose rollout fails for reasons of the infrastructure."""

    max_data_attempts_per_prompt: Annotated[Count, Le(1000)] = 2
    """Tries of a prompt that itself makes the rollout fail. Counted apart from the former."""

    backoff_base_seconds: Positive = 1.0
    """Wait before the first infrastructure retry; it doubles each time."""

    max_backoff_seconds: Positive = 30.0
    """Longest such wait."""

    max_skipped_prompts: Natural = 0
    """Prompts that the run, restarts included, may give up because of their data. One more ends it."""

    max_consecutive_dropped_prompts: Natural = 0
    """Prompts in a row that may be lost to the infrastructure. One more ends the run; any success starts
    the count again."""

    min_step_batch_fraction: Share = 0.9
    """Share of N that a step must keep after losses. Below it the run fails."""

    on_dropped_prompt: Literal["shrink", "replace"] = "shrink"
    """Let the step be smaller, or roll out a spare prompt in its place."""

    max_replacement_attempts: Annotated[Natural, Le(1000)] = 1
    """Spare prompts that may be tried for one lost place."""

    replacement_reserve_prompts: Annotated[Natural, Le(65536)] = 1
    """Spare prompts to keep at hand. A whole batch is set aside when there are fewer."""

    min_valid_row_fraction: Fraction = 0.0
    """With token capture: share of usable rows below which a finished group is given up, which counts
    against `maxSkippedPrompts`."""

    native: NativeDeadlines = Field(default_factory=NativeDeadlines)
    """Deadlines of the native path."""

    nemo_gym: NemoGymDeadlines = Field(default_factory=NemoGymDeadlines)
    """Deadlines of the gym path."""


class StallWatchdogSpec(ApiModel):
    """Notices a run in which nothing moves any more."""

    interval_seconds: Positive = 30.0
    """How often it looks. An environment that takes longer to answer counts as unhealthy."""

    stall_timeout_seconds: Positive = 600.0
    """Time without a finished group or step after which the run counts as stalled. Must outlast every
    rollout deadline and a weight transfer."""

    stall_action: Literal["warn", "abort"] = "warn"
    """What a stall, an unhealthy environment or a controller that does not answer leads to."""

    gym_subprocess_check: bool = True
    """Ask environments that can tell whether they are well."""
