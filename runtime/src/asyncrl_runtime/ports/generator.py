"""Generation: a shard that turns token prompts into sampled completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from asyncrl_runtime.core.records import FinishReason


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a completion is sampled."""

    temperature: float = 1.0
    """0 is greedy."""

    top_p: float = 1.0
    top_k: int | None = None
    max_new_tokens: int = 512
    stop_token_ids: tuple[int, ...] = ()
    """End the completion; the stop token is part of it. The tokenizer's end token is always one."""

    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One turn of one sibling."""

    request_id: str
    token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    """64 bits; the same seed, prompt and weights give the same completion whatever else runs beside it."""


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The generated tokens, per token in equal lengths."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the distribution that was sampled: after temperature, top-k and top-p."""

    weight_versions: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard's answer to a probe. Counters are cumulative since its start."""

    weight_version: int
    running: int
    waiting: int
    generated_tokens: int
    kv_cache_usage: float
    """0 to 1."""

    busy: bool = False
    """It has work that makes tokens. Two such answers with equal `generated_tokens` tell a stuck engine."""


class Generator(Protocol):
    """A shard: one copy of the policy that generates.

    Calls raise `InfraFailure` subclasses when the shard cannot answer, and `DataFailure` when the
    request itself is at fault (for example a prompt that exceeds the sequence limit).
    """

    index: int

    @property
    def alive(self) -> bool:
        """Whether it can take requests, as far as is known without asking it."""
        ...

    async def start(self) -> None:
        """Load, warm up and get ready; weights are version -1 until a weight sync lands.

        On a shard that ran before: end its engine, whatever state that is in, and start a new one.
        """
        ...

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Sample one completion. Cancelling the call aborts the request in the engine."""
        ...

    async def probe(self) -> ShardState:
        """Answer at once, also while generating."""
        ...

    async def ping(self) -> None:
        """Return when every process of the shard has answered, as `probe` does for its lead."""
        ...

    async def until_ended(self) -> str:
        """Wait until the engine that runs now has ended; says how. Returns at once when none runs."""
        ...

    async def invalidate_kv_cache(self) -> None:
        """Recompute the cached keys and values of running requests under the current weights."""
        ...

    def kill(self) -> None:
        """End its engine at once, also a frozen one; `start` makes a new one. Idempotent."""
        ...

    async def close(self) -> None:
        """Stop; running requests fail. Idempotent."""
        ...
