"""Committing a group: all of it, or nothing."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.core.records import Completion, GroupRecord, Prompt, PromptRef
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.pumps.commit import Committer, RowsNotCleared, WrongGroupSize
from asyncrl_runtime.pumps.wakeup import MutationToken

REF = PromptRef(0, 4)


def completion(*, prompt=2, generated=3, reward=1.0, **changes):
    tokens = prompt + generated
    return Completion(
        token_ids=list(range(tokens)),
        token_mask=[0] * prompt + [1] * generated,
        logprobs=[0.0] * prompt + [-0.5] * generated,
        weight_versions=[-1] * prompt + [3] * generated,
        prompt_tokens=prompt,
        text="t",
        reward=reward,
        **changes,
    )


def record(*completions, loss_multiplier=1.0):
    prompt = Prompt(REF, ({"role": "user", "content": "x"},), loss_multiplier=loss_multiplier)
    return GroupRecord(prompt, completions)


@dataclass
class Bench:
    """A committer over an empty buffer with one open slot, `g`, at attempt 1."""

    plane: object = field(default_factory=lambda: InProcessPlane(1000))
    overlong_filtering: bool = False
    mask_flagged: bool = True

    def __post_init__(self):
        self.buffer = ReplayBuffer(8)
        self.buffer.launch("g")
        self.slot = self.buffer.reserve("g", REF, start_weight=3, target_step=7, attempt=1)
        self.committer = Committer(
            plane=self.plane,
            buffer=self.buffer,
            generations=2,
            overlong_filtering=self.overlong_filtering,
            mask_flagged=self.mask_flagged,
        )

    async def commit(self, group):
        return await self.committer.commit(MutationToken(), self.slot, group, end_weight=5, straddled=True)


async def test_a_commit_writes_the_rows_and_flips_the_slot():
    bench = Bench()
    meta = await bench.commit(record(completion(), completion(generated=1, reward=-0.5)))
    assert (bench.buffer.ready, bench.buffer.launched) == (1, 0)
    assert bench.slot.meta is meta
    assert meta.sample_ids == ("g_a1_g0", "g_a1_g1")
    assert (meta.lengths, meta.weight_versions, meta.generated_tokens) == ((5, 3), (3, 3), 4)
    assert (meta.start_weight, meta.end_weight, meta.straddled, meta.target_step) == (3, 5, True, 7)
    columns = await bench.plane.get(
        meta.sample_ids, [col.TOKEN_IDS, col.TOKEN_MASK, col.REWARD, col.PROMPT_TOKENS]
    )
    assert [row.tolist() for row in columns[col.TOKEN_IDS].rows()] == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert [row.tolist() for row in columns[col.TOKEN_MASK].rows()] == [[0, 0, 1, 1, 1], [0, 0, 1]]
    assert columns[col.REWARD].values.tolist() == [1.0, -0.5]
    assert columns[col.PROMPT_TOKENS].values.tolist() == [2, 2]


async def test_sc_14_185_rollout_metrics_travel_with_the_group():
    bench = Bench()
    meta = await bench.commit(
        record(completion(truncated=True, turns=3), completion(generated=7, flagged=True))
    )
    expected = {"siblings": 2, "generated_tokens": 10, "generated_tokens_max": 7, "generated_tokens_min": 3}
    assert meta.metrics.items() >= expected.items()
    assert (meta.metrics["truncated"], meta.metrics["flagged"], meta.metrics["turns"]) == (1, 1, 4)


@pytest.mark.parametrize(
    ("overlong", "mask_flagged", "masks", "flags"),
    [(False, True, [0.5, 0.5, 0.0], [0, 0, 1]), (True, False, [0.5, 0.0, 0.5], [0, 0, 0])],
)
async def test_sc_4_17_sc_14_122_the_sample_mask_says_what_is_kept_out_of_the_loss(
    overlong, mask_flagged, masks, flags
):
    bench = Bench(overlong_filtering=overlong, mask_flagged=mask_flagged)
    object.__setattr__(bench.committer, "generations", 3)
    group = record(completion(), completion(truncated=True), completion(flagged=True), loss_multiplier=0.5)
    meta = await bench.commit(group)
    columns = await bench.plane.get(meta.sample_ids, [col.SAMPLE_MASK, col.TRUNCATED, col.FLAGGED])
    assert columns[col.SAMPLE_MASK].values.tolist() == masks
    assert columns[col.TRUNCATED].values.tolist() == [0, 1, 0]
    assert columns[col.FLAGGED].values.tolist() == flags


async def test_sc_5_31_reward_components_are_columns_of_their_own():
    bench = Bench()
    meta = await bench.commit(
        record(completion(reward_components={"b": 2.0, "a": 1.0}), completion(reward_components={"b": 3.0}))
    )
    assert meta.reward_components == ("a", "b")
    columns = await bench.plane.get(meta.sample_ids, [col.REWARD_COMPONENT + "a", col.REWARD_COMPONENT + "b"])
    assert [column.values.tolist() for column in columns.values()] == [[1.0, 0.0], [2.0, 3.0]]
    assert all(column.values.dtype == np.float64 for column in columns.values())


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_sc_4_20_another_number_of_completions_is_an_error(count):
    bench = Bench()
    with pytest.raises(WrongGroupSize, match=f"group g came back with {count} completions instead of 2"):
        await bench.commit(record(*(completion() for _ in range(count))))
    assert await bench.plane.keys() == frozenset()


async def test_sc_14_27_a_late_attempt_writes_nothing():
    bench = Bench()
    bench.buffer.remove("g")
    assert await bench.commit(record(completion(), completion())) is None
    bench.buffer.reserve("g", REF, start_weight=4, target_step=7, attempt=2)
    assert await bench.commit(record(completion(), completion())) is None
    assert await bench.plane.keys() == frozenset()
    assert bench.buffer.ready == 0


class FaultyPlane(InProcessPlane):
    """Writes, then raises; clearing may raise as well."""

    write_error = OSError("write broke")
    clear_error = None

    async def put(self, sample_ids, columns, tags=None):
        await super().put(sample_ids, columns, tags)
        if isinstance(self.write_error, asyncio.CancelledError):
            await asyncio.sleep(1e9)
        raise self.write_error

    async def clear(self, sample_ids):
        if self.clear_error:
            raise self.clear_error
        await super().clear(sample_ids)


async def test_sc_14_28_a_failed_write_leaves_no_row_and_no_ready_slot():
    bench = Bench(FaultyPlane(1000))
    with pytest.raises(OSError, match="write broke"):
        await bench.commit(record(completion(), completion()))
    assert await bench.plane.keys() == frozenset()
    assert bench.buffer.ready == 0


async def test_sc_4_14_if_clearing_fails_too_both_errors_surface():
    plane = FaultyPlane(1000)
    plane.clear_error = OSError("clear broke")
    with pytest.raises(RowsNotCleared, match=r"rows of g_a1_g0 .*write broke.*clear broke") as caught:
        await Bench(plane).commit(record(completion(), completion()))
    assert caught.value.__cause__ is plane.write_error


@pytest.mark.parametrize("clear_error", [None, OSError("clear broke")])
async def test_sc_14_29_a_cancelled_commit_stays_a_cancellation(clear_error, looptime):
    plane = FaultyPlane(1000)
    plane.write_error, plane.clear_error = asyncio.CancelledError(), clear_error
    bench = Bench(plane)
    task = asyncio.create_task(bench.commit(record(completion(), completion())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert task.cancelled()
    assert bench.buffer.ready == 0
    if clear_error is None:
        assert await plane.keys() == frozenset()
    else:
        assert "clear broke" in caught.value.__notes__[0]
