"""Micro-batches of a bounded number of tokens: padded rows, and packed ones."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from adapters.torch_bench import LOSS, MODEL, TRAINER, columns_of
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl_runtime.adapters.torch.batching import micro_batches, packed_rows, padded_runs
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.policy import PolicyTrainer
from asyncrl_runtime.ports import columns as col

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40).map(lambda v: np.asarray(v, np.int64))
BUDGETS = st.integers(1, 200)
BOTH = frozenset({"policy", "reference"})


@given(lengths=LENGTHS, budget=BUDGETS, multiple=st.sampled_from([1, 4, 16]))
def test_a_micro_batch_holds_at_most_the_tokens_that_are_allowed(lengths, budget, multiple):
    asked = replace(TRAINER, micro_batch_tokens=budget, pad_to_multiple=multiple)
    plan = micro_batches(lengths, asked, "train")

    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    for picked in plan:
        width = -(-int(lengths[picked].max()) // multiple) * multiple
        assert len(picked) * width <= budget or len(picked) == 1
    for before, after in itertools.pairwise(plan):
        assert lengths[before].max() <= lengths[after].min(), "sequences of like length are together"


@given(lengths=LENGTHS, budget=BUDGETS)
def test_a_packed_row_holds_at_most_the_tokens_that_are_allowed(lengths, budget):
    plan = packed_rows(lengths, budget)
    sizes = [int(lengths[picked].sum()) for picked in plan]

    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    assert all(size <= budget or len(picked) == 1 for size, picked in zip(sizes, plan, strict=True))
    assert sum(size <= budget / 2 for size in sizes) <= 1, "two rows that are half empty would be one"


def test_without_a_bound_on_tokens_training_and_log_probs_have_their_own_number_of_rows():
    asked = replace(TRAINER, micro_batch_rows=2, logprob_batch_rows=3)
    lengths = np.array([3, 1, 2, 5, 4])

    assert [list(p) for p in micro_batches(lengths, asked, "train")] == [[1, 2], [0, 4], [3]]
    assert [list(p) for p in micro_batches(lengths, asked, "logprobs")] == [[1, 2, 0], [4, 3]]


def test_ascending_lengths_are_cut_where_the_padded_size_would_pass_the_budget():
    runs = padded_runs(np.array([1, 2, 2, 3, 9, 20]), 8)
    assert [(run.start, run.stop) for run in runs] == [(0, 3), (3, 4), (4, 5), (5, 6)]


def one_step(columns, **changes):
    """Raw gradient, metrics and log-prob columns."""
    trainer = PolicyTrainer(build_model(MODEL), replace(TRAINER, **changes))
    logprobs = trainer.logprobs(columns, BOTH)
    trainer.begin(None)
    trainer.accumulate(columns)
    gradient = trainer.optimizer.grad.clone()
    metrics, *counts = trainer.finish()
    return gradient, metrics, counts, logprobs


def assert_equal_steps(found, expected):
    """Within 1e-6, of the largest entry for the gradient, which is a sum over tokens."""
    gradient, metrics, counts, logprobs = expected
    allowed = 1e-6 * float(gradient.abs().max()) + 1e-6
    torch.testing.assert_close(found[0], gradient, atol=allowed, rtol=0)
    assert found[1] == pytest.approx(metrics, abs=1e-6, rel=1e-6)
    assert found[2] == counts
    for name, column in logprobs.items():
        np.testing.assert_allclose(found[3][name].values, column.values, atol=1e-6, rtol=0)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(4, 40), min_size=1, max_size=9),
    budget=st.integers(1, 120),
    multiple=st.sampled_from([1, 8]),
    token_level=st.booleans(),
)
def test_a_step_under_a_bound_on_tokens_equals_one_of_single_rows(lengths, budget, multiple, token_level):
    loss = LOSS if token_level else replace(LOSS, token_level=False, ratio="sequence")
    columns = columns_of(len(lengths), lengths=lengths)
    columns[col.SAMPLE_MASK].values[1:2] = 0
    expected = one_step(columns, loss=loss, micro_batch_rows=1, logprob_batch_rows=1)
    found = one_step(columns, loss=loss, micro_batch_tokens=budget, pad_to_multiple=multiple)

    assert_equal_steps(found, expected)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(4, 40), min_size=1, max_size=9),
    budget=st.integers(1, 120),
    multiple=st.sampled_from([1, 8]),
    token_level=st.booleans(),
)
def test_a_step_of_packed_rows_equals_one_of_single_rows(lengths, budget, multiple, token_level):
    loss = LOSS if token_level else replace(LOSS, token_level=False, ratio="sequence")
    columns = columns_of(len(lengths), lengths=lengths)
    columns[col.SAMPLE_MASK].values[1:2] = 0
    expected = one_step(columns, loss=loss, micro_batch_rows=1, logprob_batch_rows=1)
    packed = {"micro_batch_tokens": budget, "packing": True, "pad_to_multiple": multiple}

    assert_equal_steps(one_step(columns, loss=loss, **packed), expected)


def test_a_sequence_of_a_packed_row_sees_no_other_one():
    model = build_model(MODEL).requires_grad_(False)
    lengths = np.array([5, 3, 12, 4])
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 16, lengths.sum()))
    every = torch.ones_like(ids, dtype=torch.bool)
    before = model.packed_logits(ids, lengths, every)
    ids[8:20] = (ids[8:20] + 1) % 16
    after = model.packed_logits(ids, lengths, every)

    others = [*range(8), *range(20, 24)]
    assert torch.equal(after[others], before[others])
    assert (after[8:20] != before[8:20]).any(dim=-1).all()
