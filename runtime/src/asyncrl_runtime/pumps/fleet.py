"""The generation fleet: which shard takes the next request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl_runtime.ports.generator import GenerationRequest, GenerationResult, Generator


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Hands requests to shards in turn (SC-7.49) and counts what they have outstanding."""

    shards: Sequence[Generator]
    outstanding: list[int] = field(init=False)
    _next: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.outstanding = [0] * len(self.shards)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Sample one completion on the next shard."""
        index = self._next
        self._next = (index + 1) % len(self.shards)
        self.outstanding[index] += 1
        try:
            return await self.shards[index].generate(request)
        finally:
            self.outstanding[index] -= 1
