"""When and how the policy is measured."""

from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field

from asyncrl_api.base import (
    WARM,
    ApiModel,
    Count,
    DefaultsTo,
    Int64,
    Natural64,
    NonNegative,
    Number,
    Share,
    Word,
)


class ValidationSampling(ApiModel):
    """Sampling for validation only. Fields left out follow `generation.sampling`."""

    temperature: Annotated[NonNegative | None, DefaultsTo("generation.sampling.temperature")] = None
    """Randomness of sampling. 0: greedy."""

    top_p: Annotated[Share | None, DefaultsTo("generation.sampling.topP")] = None
    """Sample from the smallest set of tokens with this probability."""

    top_k: Annotated[Count | None, DefaultsTo("generation.sampling.topK")] = None
    """Sample from this many best tokens."""


class ValidationSpec(ApiModel):
    """When the policy is measured, and with which sampling."""

    period_steps: Annotated[
        Natural64 | None, DefaultsTo("10 (grpo), 20 (ppo); 0 if data.validation is unset")
    ] = None
    """Steps between validations. 0: none in between."""

    start_at: Annotated[Int64, Ge(-1)] = -1
    """First step that may be followed by a periodic validation. -1: from the start."""

    at_start: Annotated[
        bool | None, DefaultsTo("false (grpo), true (ppo); false if data.validation is unset"), WARM
    ] = None
    """Validate before the first step."""

    at_end: bool = False
    """Validate after the last step."""

    batch_size: Count | None = 256
    """Validation prompts handled at a time. null: all at once."""

    max_samples: Count | None = 256
    """Validation prompts per pass. null: the whole set."""

    num_generations_per_prompt: Annotated[Count, Le(4096)] = 1
    """Completions per validation prompt. Above 1, `pass_k` is reported too."""

    stop_at_metric: Word | None = None
    """Validation metric that ends the run successfully, such as `accuracy` or `pass_k`."""

    stop_at_threshold: Number | None = None
    """Value that ends the run: at least this, or at most this if `checkpointing.higherIsBetter` is false."""

    failure_action: Literal["warn", "abort"] = "warn"
    """Whether a failed validation ends the run."""

    sampling: ValidationSampling = Field(default_factory=ValidationSampling)
    """Sampling for validation only. Fields left out follow `generation.sampling`."""
