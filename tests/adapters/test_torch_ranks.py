"""One trainer in several processes: the same step whatever their number, and what a lost one costs."""

import asyncio
import os
import signal
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from adapters.split_steps import LOSSES
from adapters.torch_bench import TRAINER, columns_of, meta_of
from hypothesis import given
from hypothesis import strategies as st
from ports.trainer_contract import TrainerContract
from safetensors.torch import load_file

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.torch.entry import Bound, torch_host
from asyncrl_runtime.adapters.torch.errors import IncompleteModelFolder
from asyncrl_runtime.adapters.torch.shares import merged, shares, taken
from asyncrl_runtime.adapters.torch.trainer import TorchTrainer
from asyncrl_runtime.core.errors import DeadlinePassed, NonFiniteStep, TrainerFailure, WorkerDied
from asyncrl_runtime.core.records import BatchMeta
from asyncrl_runtime.ports import columns as col

GENTLE = replace(TRAINER, optimizer=replace(TRAINER.optimizer, epsilon=1e-3))
"""Adam divides by the gradient's size: its epsilon must lie above the rounding that is allowed."""


async def started(plane, ranks, settings=TRAINER, *, call_seconds=60.0):
    trainer = TorchTrainer(
        settings,
        plane,
        hosts=[torch_host() for _ in range(ranks)],
        call_bound=Bound(call_seconds, "spec.lifecycle.stallDeadlineSeconds"),
    )
    await trainer.start()
    return trainer


@pytest.fixture
async def trainer(plane):
    trainer = await started(plane, 2)
    yield trainer
    await trainer.close()


class TestContract(TrainerContract):
    pass


async def step(trainer, chunks, positive_tokens=None):
    await trainer.begin(positive_tokens=positive_tokens)
    for chunk in chunks:
        await trainer.accumulate(chunk)
    return await trainer.finish()


async def weights_after(trainer, folder):
    await trainer.save(folder, optimizer=True)
    return load_file(folder / "weights" / "model.safetensors")


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 9))
def test_every_row_is_in_one_share_and_no_share_is_much_longer(lengths, ranks):
    owners = shares(np.array(lengths, np.int64), ranks)
    tokens = [sum(lengths[row] for row in rows) for rows in owners]

    assert len(owners) == ranks
    assert Counter(row for rows in owners for row in rows.tolist()) == Counter(range(len(lengths)))
    assert max(tokens) - min(tokens) <= max(lengths, default=0)
    assert len(lengths) < ranks or all(len(rows) for rows in owners)


def test_shares_put_together_are_the_columns_that_were_taken_apart():
    columns = columns_of(11)
    owners = shares(columns[col.TOKEN_IDS].lengths, 3)
    again = merged([taken(columns, rows) for rows in owners], owners)

    assert set(again) == set(columns)
    for name, column in columns.items():
        np.testing.assert_array_equal(again[name].values, column.values)
        np.testing.assert_array_equal(again[name].lengths, column.lengths)


@pytest.mark.parametrize("loss", ["token", "sequence", "kl", "nll"])
async def test_sc_11_71_no_number_of_ranks_shows_in_parameters_or_metrics(loss, plane, tmp_path):
    """B12, over ranks: 12 rows of which one is masked, as one chunk and as chunks of one row."""
    columns = columns_of(12)
    columns[col.SAMPLE_MASK].values[3] = 0
    meta = meta_of(columns, siblings=1 if loss != "nll" else 12)
    await plane.put(meta.sample_ids, columns)
    made = np.array([row.sum() for row in columns[col.TOKEN_MASK].rows()])
    positive = float((made * (columns[col.REWARD].values > 0) * columns[col.SAMPLE_MASK].values).sum())
    chunks = [BatchMeta((group,)) for group in meta.groups]
    found = []
    for ranks, parts in ((1, [meta]), (2, [meta]), (3, chunks)):
        trainer = await started(plane, ranks, replace(GENTLE, loss=LOSSES[loss]))
        report = await step(trainer, parts, positive)
        found.append((report, await weights_after(trainer, tmp_path / str(ranks))))
        await trainer.close()

    (whole, parameters), *others = found
    assert whole.metrics["num_ranks"] == 1
    for ranks, (report, same) in zip((2, 3), others, strict=True):
        assert report.metrics.pop("num_ranks") == ranks
        expected = {name: value for name, value in whole.metrics.items() if name != "num_ranks"}
        assert report.metrics == pytest.approx(expected, abs=1e-6, rel=1e-6)
        assert (report.valid_rows, report.valid_tokens) == (whole.valid_rows, whole.valid_tokens)
        for name, tensor in parameters.items():
            torch.testing.assert_close(same[name], tensor, atol=1e-5, rtol=0)


async def test_logprobs_do_not_depend_on_who_computes_them(trainer, plane, batch):
    alone = await started(plane, 1)
    both = frozenset({"policy", "reference"})
    await trainer.logprobs(batch, models=both)
    shared = await plane.get(batch.sample_ids, [col.PREVIOUS_LOGPROBS, col.REFERENCE_LOGPROBS])
    await alone.logprobs(batch, models=both)
    single = await plane.get(batch.sample_ids, [col.PREVIOUS_LOGPROBS, col.REFERENCE_LOGPROBS])
    await alone.close()

    for name, column in single.items():
        np.testing.assert_allclose(shared[name].values, column.values, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 3])
async def test_a_checkpoint_goes_on_with_another_number_of_ranks(trainer, batch, plane, tmp_path, ranks):
    await step(trainer, [batch])
    await trainer.save(tmp_path / "before", optimizer=True)
    other = await started(plane, ranks)
    await other.load(tmp_path / "before", optimizer=True)
    for each in (trainer, other):
        await step(each, [batch])
    expected = await weights_after(trainer, tmp_path / "a")
    found = await weights_after(other, tmp_path / "b")
    await other.close()

    assert len(list((tmp_path / "before" / "optimizer").glob("*.safetensors"))) == 2
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=0)


async def test_a_missing_shard_of_the_optimizer_is_named(trainer, batch, tmp_path):
    await step(trainer, [batch])
    await trainer.save(tmp_path, optimizer=True)
    (tmp_path / "optimizer" / "state-00002-of-00002.safetensors").unlink()

    with pytest.raises(IncompleteModelFolder, match="state-00002-of-00002"):
        await trainer.load(tmp_path, optimizer=True)


async def test_a_step_that_is_not_finite_on_one_rank_is_applied_on_none(trainer, batch, plane, tmp_path):
    await step(trainer, [batch])
    before = await weights_after(trainer, tmp_path / "before")
    spoiled = columns_of(8)
    spoiled[col.ADVANTAGES].values[:] = 0
    spoiled[col.ADVANTAGES].values[5] = np.inf
    await plane.put(batch.sample_ids, spoiled)
    with pytest.raises(NonFiniteStep):
        await step(trainer, [batch])
    after = await weights_after(trainer, tmp_path / "after")
    await plane.put(batch.sample_ids, columns_of(8))

    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert (await step(trainer, [batch])).valid_rows == 8


async def test_the_step_of_a_killed_rank_fails_at_once_and_leaves_no_process(trainer, batch):
    workers = trainer._ranks._workers
    await trainer.begin()
    os.kill(workers[1].pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises((TrainerFailure, WorkerDied), match="trainer rank 1"):
        await trainer.accumulate(batch)
        await trainer.finish()
    assert time.monotonic() - began < 5
    await ended(workers)


async def test_a_frozen_rank_is_noticed_within_the_deadline(plane, batch):
    trainer = await started(plane, 2, call_seconds=1.5)
    workers = trainer._ranks._workers
    await step(trainer, [batch])
    await trainer.begin()
    await trainer.accumulate(batch)
    os.kill(workers[1].pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises((TrainerFailure, DeadlinePassed)):
        await trainer.finish()
    assert time.monotonic() - began < 1.5 + 1
    with pytest.raises((TrainerFailure, WorkerDied)):
        await trainer.abort()
    assert time.monotonic() - began < 1.5 + 2
    await trainer.close()
    await ended(workers)


async def test_a_rank_that_fails_alone_ends_the_others_in_seconds(trainer, batch, monkeypatch):
    monkeypatch.setattr("asyncrl_runtime.adapters.torch.rank_workers._AGREE_SECONDS", 0.2)
    workers = trainer._ranks._workers
    await workers[0].call("begin", None)
    await workers[0].call("accumulate", columns_of(4))
    with pytest.raises(TrainerFailure, match="no optimizer step is open"):
        await trainer.finish()
    await ended(workers)


async def ended(workers):
    """Within five seconds."""
    async with asyncio.timeout(5):
        await asyncio.gather(*(worker.ended.wait() for worker in workers))
    assert not any(os.path.exists(f"/proc/{worker.pid}") for worker in workers)


async def test_ranks_that_hold_other_parameters_are_refused():
    settings = [TRAINER, replace(TRAINER, model=replace(TRAINER.model, seed=2))]
    trainer = TorchTrainer(TRAINER, InProcessPlane(10), hosts=[Substituting(settings, n) for n in range(2)])

    with pytest.raises(TrainerFailure, match="rank 1 holds other parameters than rank 0"):
        await trainer.start()


class Substituting:
    """A host whose rank gets settings of its own."""

    def __init__(self, settings, rank):
        self._mine = settings[rank]

    async def launch(self, factory, settings, *args, **options):
        return await torch_host().launch(factory, self._mine, *args, **options)
