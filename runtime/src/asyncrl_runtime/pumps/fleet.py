"""The generation fleet: which shard takes the next request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl_runtime.core.errors import FleetExhausted, WorkerDied
from asyncrl_runtime.ports.generator import GenerationRequest, GenerationResult, Generator


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Hands requests to the shards that live, in turn (SC-7.49), and counts what they have outstanding."""

    shards: Sequence[Generator]
    outstanding: list[int] = field(init=False)
    _next: int = field(default=0, init=False)
    _last_death: str = field(default="nothing was asked of them", init=False)

    def __post_init__(self) -> None:
        self.outstanding = [0] * len(self.shards)

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Sample one completion on the next shard. Raises FleetExhausted when none is left."""
        index = self._turn()
        self.outstanding[index] += 1
        try:
            return await self.shards[index].generate(request)
        except WorkerDied as death:
            self._last_death = str(death)
            raise
        finally:
            self.outstanding[index] -= 1

    def _turn(self) -> int:
        for offset in range(len(self.shards)):
            index = (self._next + offset) % len(self.shards)
            if self.shards[index].alive:
                self._next = (index + 1) % len(self.shards)
                return index
        raise FleetExhausted(len(self.shards), self._last_death)
