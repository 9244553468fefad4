"""Committing a group: completions become rows of the data plane, the slot becomes ready."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import chain

import numpy as np

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import Completion, GroupMeta, GroupRecord, sample_id
from asyncrl_runtime.core.replay import ReplayBuffer, Slot
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Jagged
from asyncrl_runtime.ports.data_plane import DataPlane
from asyncrl_runtime.pumps.wakeup import MutationToken


@dataclass(eq=False)
class WrongGroupSize(RunError):
    """A rollout gave another number of completions than the job asks for (SC-4.20)."""

    group_id: str
    completions: int
    expected: int

    def __str__(self) -> str:
        return (
            f"group {self.group_id} came back with {self.completions} completions instead of {self.expected}"
        )


@dataclass(eq=False)
class RowsNotCleared(RunError):
    """Writing a group's rows failed, and so did clearing what was written of them (SC-4.14)."""

    sample_id: str
    write_problem: str
    clear_problem: str

    def __str__(self) -> str:
        return (
            f"the rows of {self.sample_id} … could not be written ({self.write_problem}) and not be cleared "
            f"({self.clear_problem}): the data plane is out of step with the replay buffer"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Writes the rows of a finished group and flips its slot ready, or leaves nothing behind."""

    plane: DataPlane
    buffer: ReplayBuffer
    generations: int
    overlong_filtering: bool
    mask_flagged: bool

    async def commit(
        self,
        token: MutationToken,
        slot: Slot,
        record: GroupRecord,
        *,
        end_weight: int,
        straddled: bool,
        start_weights: tuple[int, ...] | None = None,
    ) -> GroupMeta | None:
        """Commit; None when the slot is no longer this attempt's, and then nothing was written (SC-4.12).

        `token` proves that the barrier's shared side is held: rows and index change together. Siblings that
        began under different weights have their `start_weights`; without, all have the slot's.
        """
        if len(record.completions) != self.generations:
            raise WrongGroupSize(slot.group_id, len(record.completions), self.generations)
        if not self.buffer.expects(slot.group_id, slot.attempt):
            return None
        samples = tuple(sample_id(slot.group_id, slot.attempt, i) for i in range(self.generations))
        try:
            await self.plane.put(samples, self._columns(record))
        except BaseException as error:
            await self._undo(samples, error)
            raise
        weights = start_weights or (slot.start_weight,) * self.generations
        meta = self._meta(slot, record, samples, weights, end_weight, straddled)
        self.buffer.commit(meta)
        return meta

    async def _undo(self, samples: tuple[str, ...], error: BaseException) -> None:
        """No row of a failed write may stay; a cancellation stays a cancellation (SC-4.14)."""
        try:
            await self.plane.clear(samples)
        except Exception as second:  # noqa: BLE001 - both errors surface together
            if isinstance(error, asyncio.CancelledError):
                error.add_note(f"clearing its rows failed as well: {second}")
                return
            raise RowsNotCleared(samples[0], str(error), str(second)) from error

    def _columns(self, record: GroupRecord) -> dict[str, Jagged]:
        done = record.completions
        lengths = np.fromiter((len(c.token_ids) for c in done), np.int64, len(done))

        def tokens(values: list[list[float]] | list[list[int]], dtype: type) -> Jagged:
            return Jagged(np.fromiter(chain.from_iterable(values), dtype, int(lengths.sum())), lengths)

        columns = {
            col.TOKEN_IDS: tokens([c.token_ids for c in done], np.int64),
            col.TOKEN_MASK: tokens([c.token_mask for c in done], np.int8),
            col.GENERATION_LOGPROBS: tokens([c.logprobs for c in done], np.float32),
            col.WEIGHT_VERSIONS: tokens([c.weight_versions for c in done], np.int32),
            col.SAMPLE_MASK: Jagged.scalars([self._sample_mask(record, c) for c in done], np.float32),
            col.REWARD: Jagged.scalars([c.reward for c in done], np.float64),
            col.TRUNCATED: Jagged.scalars([c.truncated for c in done], np.int8),
            col.FLAGGED: Jagged.scalars([c.flagged and self.mask_flagged for c in done], np.int8),
            col.PROMPT_TOKENS: Jagged.scalars([c.prompt_tokens for c in done], np.int64),
        }
        for name in sorted({name for c in done for name in c.reward_components}):
            values = [c.reward_components.get(name, 0.0) for c in done]
            columns[col.REWARD_COMPONENT + name] = Jagged.scalars(values, np.float64)
        return columns

    def valid_rows(self, record: GroupRecord) -> int:
        """Rows that will count in the loss (SC-5.34)."""
        return sum(self._sample_mask(record, completion) > 0 for completion in record.completions)

    def _sample_mask(self, record: GroupRecord, completion: Completion) -> float:
        """SC-11.50, but for the sequence error, which is known later."""
        if completion.truncated and self.overlong_filtering:
            return 0.0
        if completion.flagged and self.mask_flagged:
            return 0.0
        return record.prompt.loss_multiplier

    def _meta(
        self,
        slot: Slot,
        record: GroupRecord,
        samples: tuple[str, ...],
        start_weights: tuple[int, ...],
        end_weight: int,
        straddled: bool,
    ) -> GroupMeta:
        done = record.completions
        components = sorted({name for c in done for name in c.reward_components})
        return GroupMeta(
            group_id=slot.group_id,
            attempt=slot.attempt,
            prompt=slot.prompt,
            sample_ids=samples,
            lengths=tuple(len(c.token_ids) for c in done),
            weight_versions=start_weights,
            generated_tokens=sum(c.generated_tokens for c in done),
            start_weight=min(start_weights),
            end_weight=end_weight,
            straddled=straddled,
            target_step=slot.target_step,
            metrics=rollout_metrics(done),
            reward_components=tuple(components),
        )


def rollout_metrics(done: tuple[Completion, ...]) -> dict[str, float]:
    """Sums over a group's siblings that its step's metrics are made of (SC-12.30)."""
    generated = [c.generated_tokens for c in done]
    return {
        "siblings": len(done),
        "generated_tokens": sum(generated),
        "generated_tokens_max": max(generated),
        "generated_tokens_min": min(generated),
        "prompt_tokens": sum(c.prompt_tokens for c in done),
        "truncated": sum(c.truncated for c in done),
        "flagged": sum(c.flagged for c in done),
        "turns": sum(c.turns for c in done),
        "max_turns_reached": sum(c.max_turns_reached for c in done),
        "generation_seconds": sum(c.generation_seconds for c in done),
        "environment_seconds": sum(c.environment_seconds for c in done),
        "reward": sum(c.reward for c in done),
    }
