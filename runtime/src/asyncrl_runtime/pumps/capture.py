"""Token capture: siblings are finished one by one, and what is finished is never generated again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from asyncrl_runtime.core.errors import InfraFailure, RunError
from asyncrl_runtime.core.ledger import Granularity, LedgerEntry, PromptLedger
from asyncrl_runtime.core.records import Completion, GroupId, GroupRecord, Prompt, SampleId, staging_key
from asyncrl_runtime.core.samplers.base import Sampler, is_oldest_first
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.data_plane import DataPlane
from asyncrl_runtime.pumps.rollouts import RolloutManager
from asyncrl_runtime.pumps.staging import FIELDS, completions_of, staging_columns
from asyncrl_runtime.pumps.wakeup import Barrier, RolloutGate, deadline

Charge = Callable[[Exception], float | None]
"""Counts a failed sibling against its prompt; seconds to wait before another attempt, None if spent."""


class SiblingsMissing(InfraFailure):
    """Siblings have to start again and the gate is closed: the group goes on when it opens."""

    uncharged = True


@dataclass(eq=False)
class Spent(Exception):
    """A sibling's failure used up the attempts of its prompt, and is charged already."""

    failure: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """How groups are recovered and put together."""

    granularity: Callable[[Prompt], Granularity]
    finalizers: int
    finalize_timeout_seconds: float | None
    max_generations: int | None
    """Siblings that may generate at a time, over all groups; None: groups are bounded, not siblings."""


@dataclass(slots=True, kw_only=True, eq=False)
class TokenCapture:
    """Rolls the missing siblings of a group out, each with a row in staging once it is finished."""

    settings: CaptureSettings
    plane: DataPlane
    ledger: PromptLedger
    sampler: Sampler
    versions: Versions
    gate: RolloutGate
    barrier: Barrier
    generations: int
    running: int = field(default=0, init=False)
    """Siblings that generate now."""

    _finished: dict[SampleId, Completion] = field(default_factory=dict, init=False)
    """What this process put into staging, by key: it need not be read back."""

    _current: dict[GroupId, object] = field(default_factory=dict, init=False)
    """The roll of each group that may still seal siblings."""

    _tokens: asyncio.Semaphore | None = field(init=False)
    _finalizers: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        bound = self.settings.max_generations
        self._tokens = None if bound is None else asyncio.Semaphore(bound)
        self._finalizers = asyncio.Semaphore(self.settings.finalizers)

    def prepare(self, entry: LedgerEntry, prompt: Prompt) -> None:
        """Fix the granularity of a group before its first attempt (SC-9.70)."""
        if entry.attempt < 0:
            entry.granularity = self.settings.granularity(prompt)

    def must_start_over(self, entry: LedgerEntry) -> bool:
        """Whether a new attempt may not reuse finished siblings.

        All generations are to be of one attempt; or the oldest could never be selected any more (SC-9.71);
        or the sampler takes groups in the order of their weights, and may have passed the oldest while the
        group held no slot.
        """
        oldest = entry.oldest_sealed
        if oldest is None:
            return False
        return (
            entry.granularity == "prompt_group"
            or self.sampler.should_abort_inflight(oldest, self.versions.trainer)
            or (is_oldest_first(self.sampler) and oldest < self.versions.stamp)
        )

    async def discard(self, entry: LedgerEntry) -> None:
        """Forget the finished siblings of a group. The caller holds the barrier's shared side."""
        if entry.sealed:
            keys = entry.staging
            self.ledger.unseal(entry)
            await self.clear(keys)

    async def clear(self, keys: Sequence[SampleId]) -> None:
        """Forget staging rows. The caller holds the barrier's shared side."""
        for key in keys:
            self._finished.pop(key, None)
        await self.plane.clear(keys)

    async def roll(
        self, rollouts: RolloutManager, entry: LedgerEntry, prompt: Prompt, attempt: int, charge: Charge
    ) -> GroupRecord:
        """Generate what is missing, then put the group together from its staging rows.

        A failed sibling is tried again beside the others while any of them runs and the gate is open. With
        granularity `prompt_group` the first failure ends the attempt instead.
        """
        tokens = rollouts.prompt_tokens(prompt)

        roll = self._current[entry.group_id] = object()

        def start(sibling: int, number: int, delay_seconds: float) -> asyncio.Future[None]:
            generate = partial(self._generate, rollouts, entry, prompt, tokens, sibling, number, roll)
            return asyncio.ensure_future(self._after_token(generate, delay_seconds))

        running = {start(i, attempt, 0.0): i for i in range(self.generations) if i not in entry.sealed}
        last: Exception | None = None
        try:
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    sibling = running.pop(task)
                    failure = task.exception()
                    if failure is None:
                        continue
                    if not isinstance(failure, Exception) or isinstance(failure, RunError):
                        raise failure
                    if last is not None:
                        self._charged(charge, last)
                    last = self._after(entry, failure, alone=not running)
                    if last is None:
                        delay = self._charged(charge, failure)
                        number = self.ledger.begin_attempt(entry, self.versions.stamp)
                        running[start(sibling, number, delay)] = sibling
            if last is not None or len(entry.sealed) < self.generations:
                raise last or SiblingsMissing("the rollout gate closed before every sibling had started")
            return await self._assembled(entry, prompt)
        finally:
            await _end(running)
            if self._current.get(entry.group_id) is roll:
                del self._current[entry.group_id]

    @staticmethod
    def _charged(charge: Charge, failure: Exception) -> float:
        delay = charge(failure)
        if delay is None:
            raise Spent(failure) from failure
        return delay

    def _after(self, entry: LedgerEntry, failure: Exception, *, alone: bool) -> Exception | None:
        """What ends the attempt with this failure, once the others are done; None: try the sibling again."""
        if entry.granularity == "prompt_group":
            raise failure
        if alone or not self.gate.is_open or getattr(failure, "uncharged", False):
            return failure
        return None

    async def _after_token(self, generate: Callable[[], Awaitable[None]], delay_seconds: float) -> None:
        """Wait out a backoff, then for one of the tokens that bound generation, in the order of asking."""
        await asyncio.sleep(delay_seconds)
        async with self._tokens or nullcontext():
            await generate()

    async def _generate(
        self,
        rollouts: RolloutManager,
        entry: LedgerEntry,
        prompt: Prompt,
        tokens: list[int],
        sibling: int,
        attempt: int,
        roll: object,
    ) -> None:
        """Generate and seal. Leaves the sibling missing if the gate is closed by now.

        A sibling that ends after its roll was given up on writes nothing (SC-4.12).
        """
        if not self.gate.is_open:
            return
        version = self.versions.stamp
        self.running += 1
        try:
            completion = await rollouts.roll_sibling(
                prompt, tokens, group_id=entry.group_id, attempt=attempt, sibling=sibling
            )
        finally:
            self.running -= 1
        async with self.barrier.mutation():
            owned = self.ledger.entries.get(entry.group_id) is entry
            if not owned or self._current.get(entry.group_id) is not roll:
                return
            key = staging_key(entry.group_id, attempt, sibling)
            await self.plane.put([key], staging_columns(completion))
            self._finished[key] = completion
            self.ledger.seal(entry, sibling, attempt=attempt, start_version=version)

    async def _assembled(self, entry: LedgerEntry, prompt: Prompt) -> GroupRecord:
        """Bounded in number and time (SC-2.181, 2.182)."""
        async with self._finalizers:
            if self.settings.finalize_timeout_seconds is None:
                return GroupRecord(prompt, await self._completions(entry.staging))
            setting = "spec.tokenCapture.finalizeTimeoutSeconds"
            what = f"the assembly of group {entry.group_id}"
            async with deadline(what, self.settings.finalize_timeout_seconds, setting):
                return GroupRecord(prompt, await self._completions(entry.staging))

    async def _completions(self, keys: Sequence[SampleId]) -> tuple[Completion, ...]:
        """In the order of keys; only what an earlier start has put there is read back."""
        unknown = [key for key in keys if key not in self._finished]
        if unknown:
            read = completions_of(await self.plane.get(unknown, FIELDS))
            self._finished.update(zip(unknown, read, strict=True))
        return tuple(self._finished[key] for key in keys)


def granularity_of(
    default: Granularity, by_task: Mapping[str, Granularity], by_agent: Mapping[str, Granularity]
) -> Callable[[Prompt], Granularity]:
    """Agent, then task, then default; an agent counts only where the row names one (SC-9.70)."""

    def resolve(prompt: Prompt) -> Granularity:
        agent = prompt.extra.get("agent_ref")
        if isinstance(agent, Mapping):
            agent = agent.get("name")
        if isinstance(agent, str) and agent in by_agent:
            return by_agent[agent]
        if prompt.task is not None and prompt.task in by_task:
            return by_task[prompt.task]
        return default

    return resolve


async def _end(tasks: Mapping[asyncio.Future[None], int]) -> None:
    """Cancel what still runs and wait for its end, so that no generation outlives its group."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)
