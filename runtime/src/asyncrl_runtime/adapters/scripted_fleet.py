"""Scripted shards and their weight sync: durations in loop time, and shards that die, freeze and hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from asyncrl_runtime.core.errors import RefitAborted, RefitIncomplete, WorkerDied
from asyncrl_runtime.ports.generator import GenerationRequest, GenerationResult, ShardState
from asyncrl_runtime.ports.weight_sync import Reconciled, TransferReport

MIXED = -2
"""Weight version of a scripted shard that holds a mixture."""


@dataclass(slots=True, kw_only=True, eq=False)
class ScriptedGenerator:
    """A shard whose completions take as long as the script says, and that can be killed, frozen and hung."""

    index: int
    seconds: Callable[[GenerationRequest], float]
    tokens: Callable[[GenerationRequest], int] = lambda request: 1
    failing: Callable[[GenerationRequest], Exception | None] = lambda request: None
    weight_version: int = -1
    start_seconds: float = 0.0
    start_failing: Callable[[int], Exception | None] = lambda number: None
    """Failure of the n-th start, from 1."""

    frozen: bool = False
    """Nothing is answered; what runs does not end."""

    hung: bool = False
    """Calls are answered, and no token is made any more."""

    started: list[str] = field(default_factory=list, init=False)
    aborted: list[str] = field(default_factory=list, init=False)
    invalidated: int = field(default=0, init=False)
    starts: int = field(default=0, init=False)
    generated: int = field(default=0, init=False)
    running: int = field(default=0, init=False)
    probes: int = field(default=0, init=False)
    _waits: set[asyncio.Future[None]] = field(default_factory=set, init=False)
    _ended: str | None = field(default=None, init=False)

    @property
    def alive(self) -> bool:
        """Until it is closed or dies."""
        return self._ended is None

    async def start(self) -> None:
        """A new engine, after the time that the script says."""
        again = self.starts > 0 or not self.alive
        self.starts += 1
        if again:
            self.kill()
        await asyncio.sleep(self.start_seconds)
        error = self.start_failing(self.starts)
        if error is not None:
            raise error
        if again:
            self.weight_version = -1
        self.frozen = self.hung = False
        self._ended = None

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Wait, then answer with the token 1 as often as the script says."""
        self._check()
        self.started.append(request.request_id)
        self.running += 1
        try:
            await self._wait(self.seconds(request))
            if self.frozen or self.hung:
                await self._wait(None)
        except asyncio.CancelledError:
            self.aborted.append(request.request_id)
            raise
        finally:
            self.running -= 1
        error = self.failing(request)
        if error is not None:
            raise error
        count = min(self.tokens(request), request.sampling.max_new_tokens)
        self.generated += count
        reason: Literal["stop", "length"] = "stop" if self.tokens(request) <= count else "length"
        return GenerationResult((1,) * count, (-1.0,) * count, (self.weight_version,) * count, reason)

    async def probe(self) -> ShardState:
        """Counters, unless it is frozen."""
        self.probes += 1
        await self.answer()
        return ShardState(
            self.weight_version, self.running, 0, self.generated, 0.0, busy=self.hung and self.running > 0
        )

    async def ping(self) -> None:
        """Its one process answers."""
        await self.answer()

    async def until_ended(self) -> str:
        """Wait for its end."""
        try:
            await self._wait(None)
        except WorkerDied as death:
            return death.detail
        raise AssertionError("a wait without an end has ended")

    async def answer(self) -> None:
        """Return while it lives and is not frozen. Raises WorkerDied."""
        self._check()
        if self.frozen:
            await self._wait(None)

    async def invalidate_kv_cache(self) -> None:
        """Counted."""
        await self.answer()
        self.invalidated += 1

    def die(self, reason: str = "killed by SIGKILL") -> None:
        """End; running requests fail."""
        if self._ended is None:
            self._ended = reason
            for wait in self._waits:
                if not wait.done():
                    wait.set_exception(WorkerDied(f"shard {self.index}", None, reason))

    def kill(self) -> None:
        """End at once."""
        self.die("it was killed")

    async def close(self) -> None:
        """Answer no more."""
        self.die("it was closed")

    def _check(self) -> None:
        if self._ended is not None:
            raise WorkerDied(f"shard {self.index}", None, self._ended)

    async def _wait(self, seconds: float | None) -> None:
        """Until then, or for ever; fails when the engine ends before."""
        self._check()
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[None] = loop.create_future()
        self._waits.add(wait)
        timer = None if seconds is None else loop.call_later(seconds, _end_wait, wait)
        try:
            await wait
        finally:
            self._waits.discard(wait)
            if timer is not None:
                timer.cancel()


def _end_wait(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)


@dataclass(slots=True, kw_only=True, eq=False)
class ScriptedSync:
    """Stamps scripted shards after the time that the script says, all together as a collective does.

    A receiver that is frozen at the end holds the others up, until the deadline cuts the transfer off. One
    that ended leaves the others complete.
    """

    shards: Sequence[ScriptedGenerator]
    seconds: Callable[[int], float] = lambda version: 0.0
    failing: Callable[[int], bool] = lambda version: False
    deadline_seconds: float | None = None
    owns_membership: bool = True
    rebuildable: bool = True
    is_stale: bool = True
    landed: list[int] = field(default_factory=list, init=False)
    built_without: list[tuple[int, ...]] = field(default_factory=list, init=False)
    """Absent shards of each time that it was built."""

    transfers: int = field(default=0, init=False)
    stood_down: int = field(default=0, init=False)
    _absent: frozenset[int] = field(default=frozenset(), init=False)
    _starts: tuple[int, ...] = field(default=(), init=False)

    async def init_communicator(self) -> None:
        """Connect all shards."""
        self._build(frozenset())

    async def reconcile(self, absent: frozenset[int], *, force: bool = False) -> Reconciled:
        """Leave the absent ones out."""
        if not self.owns_membership:
            return "unowned"
        same = absent == self._absent and self._starts in ((), self._starts_now(absent))
        if (same and not force) or not self.rebuildable:
            return "unchanged"
        self._build(absent)
        return "rebuilt"

    async def sync_weights(
        self, version: int, *, kv_scales: Mapping[str, float] | None = None
    ) -> TransferReport:
        """Wait, then every receiver serves the version."""
        if kv_scales is not None:
            raise ValueError("scripted shards have no key-value scales")
        self.transfers += 1
        receivers = [shard for shard in self.shards if shard.index not in self._absent]
        seconds = self.seconds(version)
        await asyncio.sleep(seconds)
        if self.failing(version):
            raise RefitAborted(version, "scripted failure")
        await self._agree(version, receivers)
        whole = [shard for shard in receivers if shard.alive]
        for shard in whole:
            shard.weight_version = version
        acknowledged = tuple(shard.index for shard in whole)
        if len(whole) < len(receivers):
            died = tuple(shard.index for shard in receivers if not shard.alive)
            problem = f"shards {', '.join(map(str, died))} ended"
            raise RefitIncomplete(version, problem, acknowledged=acknowledged, died=died)
        self.is_stale = False
        self.landed.append(version)
        return TransferReport(version, acknowledged, 0, seconds)

    def stand_down(self) -> None:
        """Counted."""
        self.stood_down += 1

    async def shutdown(self) -> None:
        """Nothing to release."""

    async def _agree(self, version: int, receivers: Sequence[ScriptedGenerator]) -> None:
        answers = asyncio.gather(*(shard.answer() for shard in receivers), return_exceptions=True)
        try:
            async with asyncio.timeout(self.deadline_seconds):
                await answers
        except TimeoutError as silence:
            frozen = ", ".join(str(shard.index) for shard in receivers if shard.frozen)
            for shard in receivers:
                shard.weight_version = MIXED
            raise RefitAborted(version, f"no answer from shards {frozen}") from silence

    def _build(self, absent: frozenset[int]) -> None:
        self._absent, self._starts = absent, self._starts_now(absent)
        self.built_without.append(tuple(sorted(absent)))

    def _starts_now(self, absent: frozenset[int]) -> tuple[int, ...]:
        return tuple(shard.starts for shard in self.shards if shard.index not in absent)
