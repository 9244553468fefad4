"""How far generation may run ahead of training."""

from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field, StringConstraints

from asyncrl_api.base import WARM, ApiModel, Count, DefaultsTo, FreeForm, Name, Natural, Number, Positive
from asyncrl_api.spec.failure import RolloutFailureSpec, StallWatchdogSpec
from asyncrl_api.spec.fleet import GenerationFleetHealthSpec, GenerationRouterSpec, RefitSpec


class SamplerSpec(ApiModel):
    """The staleness policy. A union on `name`: a knob of another mode is an error."""

    name: Annotated[Literal["in_order", "weight_fifo", "ready_first", "windowed", "custom"], WARM] = (
        "in_order"
    )
    """`in_order`: each batch trains at the step it was admitted for. `weight_fifo`: oldest weights first.
    `ready_first`: whatever is done first. `windowed`: anything within the window, older groups are thrown
    away. `custom`: your class."""

    max_lookahead_versions: Annotated[Annotated[Natural, Le(1024)] | None, DefaultsTo("1")] = None
    """in_order: batches that generation may be ahead of training. 0: synchronous."""

    warmup_lookahead_versions: Annotated[Annotated[Natural, Le(1024)] | None, WARM] = None
    """in_order, PPO: a wider lead during critic warm-up."""

    max_staleness_versions: Annotated[Annotated[Natural, Le(1024)] | None, DefaultsTo("1")] = None
    """weight_fifo, ready_first, windowed: trainer versions a group may lag behind. For ready_first it
    bounds dispatch only, not the age of a group."""

    sample_freshest_first: Annotated[bool | None, DefaultsTo("false")] = None
    """windowed: take the freshest groups first."""

    over_sampling_ratio: Annotated[Number, Ge(1)] | None = None
    """windowed: cap on groups in flight or waiting, as a multiple of N·(maxStalenessVersions+1). Unset:
    only `maxBufferedRollouts` bounds them."""

    target: Annotated[
        Annotated[Name, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")]
        | None,
        WARM,
    ] = None
    """custom: the class, as `module:ClassName`."""

    arguments: Annotated[FreeForm | None, WARM] = None
    """custom: keyword arguments of the class, after the buffer."""


class AsyncRLSpec(ApiModel):
    """How far generation may run ahead, and what happens when something fails."""

    sampler: SamplerSpec = Field(default_factory=SamplerSpec)
    """The staleness policy. A union on `name`: a knob of another mode is an error."""

    min_groups_for_streaming_train: Annotated[
        Annotated[Count, Le(65536)] | None,
        DefaultsTo("min(32, N), or N where a step must be one chunk (V-6, V-44)"),
    ] = None
    """Fewest ready groups that the trainer starts on. Below N a step trains in several chunks while the
    rest is still generating."""

    max_inflight_prompts: Annotated[Count, Le(65536)] = 32
    """Groups generating at the same time. Without effect when `maxInflightGenerations` is set."""

    max_inflight_generations: Count | None = None
    """Completions generating at the same time, over all groups, in place of the group limit. Needs token
    capture. Unset: only the group limit applies."""

    max_buffered_rollouts: Annotated[
        Annotated[Count, Le(1000000)] | None, DefaultsTo("max(64, what the sampler may admit)")
    ] = None
    """Groups in flight or waiting to be trained on. Must hold all that the sampler may admit."""

    requeue_aborted_prompts: bool = False
    """Samplers without a gate: give a prompt whose rollout was aborted one more try instead of discarding
    it. Gated samplers always do."""

    abort_grace_seconds: Positive = 30.0
    """Time that an aborted rollout has to end. Later it is let go, and what it still returns is ignored."""

    in_flight_weight_updates: bool = True
    """Swap weights while completions are being generated. false: wait for running rollouts first."""

    drain_timeout_seconds: Positive | None = None
    """Longest such wait."""

    drain_timeout_action: Literal["proceed", "abort"] = "proceed"
    """After that wait: swap anyway, or abort what is still running."""

    recompute_kv_cache_after_weight_updates: bool = False
    """Throw the engines' attention caches away after every weight update."""

    advantage_workers: Annotated[Natural, Le(256), WARM] = 1
    """Processes that compute advantages. 0: a thread of the controller."""

    train_step_retries: Annotated[Natural, Le(100)] = 0
    """Retries of a train step that failed before any update was applied."""

    final_partial_step: Literal["error", "train", "discard"] = "error"
    """When data or spare prompts run out and too few groups are left for a step: fail, train on them, or
    discard them."""

    drop_incomplete_targets_on_restore: Annotated[bool, WARM] = False
    """in_order: on resume, regenerate steps that lack part of their batch instead of completing them."""

    telemetry_interval_seconds: Positive | None = None
    """How often throughput is sampled. Unset: not sampled."""

    diagnostics: bool = False
    """Log every rollout in detail."""

    rollout_failure: RolloutFailureSpec = Field(default_factory=RolloutFailureSpec)
    """Retries and budgets of failed rollouts."""

    stall_watchdog: StallWatchdogSpec = Field(default_factory=StallWatchdogSpec)
    """Notices a run in which nothing moves any more."""

    generation_fleet_health: GenerationFleetHealthSpec = Field(default_factory=GenerationFleetHealthSpec)
    """Finds dead and wedged shards and takes them out of service."""

    generation_router: Annotated[GenerationRouterSpec, WARM] = Field(default_factory=GenerationRouterSpec)
    """One HTTP address in front of all shards, for environments of the gym path."""

    refit: Annotated[RefitSpec, WARM] = Field(default_factory=RefitSpec)
    """Transfer of new weights to the shards."""
