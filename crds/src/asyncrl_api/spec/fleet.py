"""Shard health, the router in front of shards, weight transfer."""

from typing import Annotated, Literal

from annotated_types import Ge, Le

from asyncrl_api.base import HOT, WARM, ApiModel, Count, Int32, Natural, NonNegative, Positive, Size


class GenerationFleetHealthSpec(ApiModel):
    """Finds dead and wedged shards and takes them out of service."""

    enabled: Annotated[bool, WARM] = False
    """Watch the shards. Off: requests go round all shards in turn."""

    probe_interval_seconds: Positive = 5.0
    """Time between probes of a shard."""

    probe_timeout_seconds: Positive = 2.0
    """A probe that takes longer has failed."""

    unhealthy_threshold: Annotated[Count, Le(1000)] = 3
    """Failures in a row, of probes or of requests, after which a shard is dead."""

    healthy_threshold: Annotated[Count, Le(1000)] = 2
    """Good probes in a row after which a suspect shard is healthy again."""

    selection: Annotated[Literal["least_outstanding"], WARM] = "least_outstanding"
    """How a shard is picked for a request."""

    on_dead_shard: Annotated[Literal["fail_fast", "quarantine", "restart"], WARM] = "fail_fast"
    """`fail_fast`: it is never started again. `quarantine`: it waits until it is released by hand, which
    starts it once. `restart`: a new engine is started by itself. A started engine serves after the next
    weight update."""

    max_restart_attempts_per_shard: Annotated[Count, Le(1000)] = 5
    """Restarts of one shard for as long as the job lives, across attempts; after that it is retired."""

    restart_backoff_base_seconds: Positive = 10.0
    """Wait before the first restart of a shard; it doubles each time."""

    min_healthy_shards: Annotated[Count, Le(4096)] = 1
    """Serving shards below which the run ends."""

    restart_grace_seconds: NonNegative = 0.0
    """How long that end may be put off while enough shards are coming back."""


class GenerationRouterSpec(ApiModel):
    """One HTTP address in front of all shards, for environments of the gym path."""

    enabled: bool = False
    """Run the router."""

    port_range_low: Annotated[Count, Le(65535)] = 6000
    """Lowest port it may take. One is taken at start and kept."""

    port_range_high: Annotated[Count, Le(65535)] = 6099
    """Highest port it may take."""

    backend_timeout_seconds: Positive = 600.0
    """Longest forwarded request."""

    connect_timeout_seconds: Positive = 5.0
    """Longest wait for a connection to a shard."""

    no_healthy_backend_status: Annotated[Int32, Ge(400), Le(599)] = 409
    """HTTP status answered when no shard can serve. Must be one that clients do not retry by themselves."""

    affinity: Literal["none", "session"] = "none"
    """`session` keeps the turns of a conversation on one shard, for its prefix cache."""


class RefitSpec(ApiModel):
    """Transfer of new weights to the shards."""

    transport: Literal["Auto", "SharedMemory", "Gloo", "Files", "NCCL"] = "Auto"
    """How weights travel. `Auto` picks shared memory in one process, Gloo without GPUs, NCCL between GPUs,
    Megatron's own way with Megatron generation, and files otherwise."""

    deadline_seconds: Annotated[Positive | None, HOT] = None
    """Longest transfer, seen from a worker. Unset: no limit, and only the stall watchdog notices a hang."""

    unwind_grace_seconds: Annotated[Positive, HOT] = 60.0
    """What the controller waits beyond that before it gives the transfer up."""

    max_retries: Annotated[Natural, Le(100), HOT] = 1
    """Transfers repeated after the group of receivers was rebuilt."""

    buffer_size: Size | None = None
    """Size of the staging buffer for weights. Unset: chosen by the transport."""
