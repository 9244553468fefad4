"""The split optimizer step, in this process."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from adapters.split_steps import KL, SPLITS, gradient, policy_trainer, whole_and_split
from adapters.torch_bench import LOSS, MODEL, SHAPE, columns_of, rows_of

from asyncrl_runtime.adapters.torch.flat import flatten_parameters
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.model import Decoder
from asyncrl_runtime.adapters.torch.optimizer import FlatAdamW, learning_rate
from asyncrl_runtime.adapters.torch.sampling import filtered
from asyncrl_runtime.adapters.torch.settings import OptimizerSettings
from asyncrl_runtime.algorithms.columns import UNFILTERED_PREVIOUS_LOGPROBS
from asyncrl_runtime.core.errors import NonFiniteStep
from asyncrl_runtime.ports import columns as col

CASES = [(loss, split) for loss in ("token", "sequence", "kl") for split in SPLITS] + [("nll", "single rows")]


@pytest.mark.parametrize(("loss", "split"), CASES)
def test_sc_14_115_no_split_of_a_step_shows_in_gradient_or_metrics(loss, split):
    """B12: equal to one chunk within 1e-6."""
    whole, parts = whole_and_split(loss, split)
    metrics, tokens, rows = whole.report
    split_metrics, *counts = parts.report

    assert rows == 11
    assert counts == [tokens, rows]
    bound = 1e-6 * float(whole.raw.abs().max()) + 1e-6
    torch.testing.assert_close(parts.raw, whole.raw, atol=bound, rtol=0)
    assert split_metrics == pytest.approx(metrics, abs=1e-6, rel=1e-6)
    torch.testing.assert_close(parts.trainer.weights.flat, whole.trainer.weights.flat, atol=1e-5, rtol=0)


def test_the_gradient_is_that_of_the_mean_over_valid_tokens():
    columns = columns_of(3)
    one = policy_trainer(optimizer=OptimizerSettings(lr=0.0, max_grad_norm=None))
    raw, (_, tokens, _) = gradient(one, [columns])
    model = build_model(MODEL)
    total = 0.0
    rows = {name: column.rows() for name, column in columns.items()}
    for n in range(3):
        ids = torch.from_numpy(rows[col.TOKEN_IDS][n])[None]
        logprobs = model.logits(ids, torch.ones_like(ids, dtype=torch.bool)).log_softmax(-1)
        for t in range(1, ids.shape[1]):
            if rows[col.TOKEN_MASK][n][t]:
                ratio = (logprobs[t - 1, ids[0, t]] - rows[col.PREVIOUS_LOGPROBS][n][t]).exp()
                a = float(rows[col.ADVANTAGES][n][t])
                total = total + torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
    total.backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])

    assert tokens == sum(int(row.sum()) for row in rows[col.TOKEN_MASK])
    torch.testing.assert_close(raw, expected, atol=1e-5, rtol=1e-4)


def test_sc_14_116_logprobs_leave_the_gradient_of_an_open_step_alone():
    """SC-5.62."""
    columns = columns_of(8)
    first, second = rows_of(columns, range(4)), rows_of(columns, range(4, 8))
    plain = policy_trainer()
    expected, report = gradient(plain, [first, second])
    disturbed = policy_trainer()
    disturbed.begin(None)
    disturbed.accumulate(first)
    disturbed.logprobs(second, frozenset({"policy", "reference"}))
    disturbed.accumulate(second)

    assert torch.equal(disturbed.optimizer.grad, expected)
    assert disturbed.finish() == report


def test_the_reference_stays_while_the_policy_moves():
    columns = columns_of(4)
    one = policy_trainer()
    both = frozenset({"policy", "reference"})
    before = one.logprobs(columns, both)
    gradient(one, [columns])
    after = one.logprobs(columns, both)

    np.testing.assert_array_equal(before[col.PREVIOUS_LOGPROBS].values, before[col.REFERENCE_LOGPROBS].values)
    np.testing.assert_array_equal(before[col.REFERENCE_LOGPROBS].values, after[col.REFERENCE_LOGPROBS].values)
    assert np.abs(after[col.PREVIOUS_LOGPROBS].values - before[col.PREVIOUS_LOGPROBS].values).max() > 1e-4


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.5}, {"top_k": 4, "top_p": 0.7, "temperature": 1.2}]
)
def test_logprobs_are_of_the_filtered_distribution_and_the_unfiltered_ones_come_beside(sampling):
    columns = columns_of(5)
    one = policy_trainer(**sampling)
    written = one.logprobs(columns, frozenset({"policy"}))
    rows = {name: column.rows() for name, column in (columns | written).items()}
    for n in range(5):
        ids = torch.from_numpy(rows[col.TOKEN_IDS][n])[None]
        with torch.no_grad():
            logits = one.model.logits(ids, torch.ones_like(ids, dtype=torch.bool))
        logits = logits / sampling.get("temperature", 1.0)
        kept = filtered(logits, sampling.get("top_k", 0), sampling.get("top_p", 1.0))
        at = np.flatnonzero(rows[col.TOKEN_MASK][n])
        expected = kept.log_softmax(-1)[at - 1, ids[0, at]].numpy()
        unfiltered = logits.log_softmax(-1)[at - 1, ids[0, at]].numpy()

        np.testing.assert_allclose(rows[col.PREVIOUS_LOGPROBS][n][at], expected, atol=1e-5)
        assert not rows[col.PREVIOUS_LOGPROBS][n][rows[col.TOKEN_MASK][n] == 0].any()
        if "top_k" in sampling:
            np.testing.assert_allclose(rows[UNFILTERED_PREVIOUS_LOGPROBS][n][at], unfiltered, atol=1e-5)
    assert (UNFILTERED_PREVIOUS_LOGPROBS in written) == ("top_k" in sampling)


def test_filtered_sampling_trains_with_a_finite_gradient_and_counts_what_fell_out():
    """SC-11.70."""
    columns = columns_of(6)
    written = policy_trainer(top_k=3).logprobs(columns, frozenset({"policy", "reference"}))
    columns |= {name: column for name, column in written.items() if name != UNFILTERED_PREVIOUS_LOGPROBS}
    raw, (metrics, *_) = gradient(policy_trainer(top_k=3, loss=replace(LOSS, kl=KL)), [columns])

    assert torch.isfinite(raw).all()
    assert metrics["nonfinite_logprob_tokens"] > 0
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_a_step_that_is_not_finite_changes_nothing_and_is_closed(spoiled):
    columns = columns_of(4)
    one = policy_trainer()
    gradient(one, [columns])
    before = one.weights.flat.clone()
    state = {name: tensor.clone() for name, tensor in one.optimizer.state().items()}
    bad = dict(columns)
    bad[col.ADVANTAGES] = replace(
        columns[col.ADVANTAGES], values=np.full_like(columns[col.ADVANTAGES].values, spoiled)
    )
    with pytest.raises(NonFiniteStep, match="the loss is"):
        gradient(one, [bad])

    assert torch.equal(one.weights.flat, before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in one.optimizer.state().items())
    assert one.optimizer.tick == 1
    assert not one.optimizer.grad.any()
    gradient(one, [columns])


def test_updates_equal_those_of_torch():
    settings = OptimizerSettings(lr=0.01, weight_decay=0.1, max_grad_norm=0.5)
    ours, theirs = Decoder.random(SHAPE, 0), Decoder.random(SHAPE, 0)
    flat = flatten_parameters(ours)
    optimizer = FlatAdamW(ours, flat, settings)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1)
    ids = torch.randint(0, 16, (4, 9), generator=torch.Generator().manual_seed(0))
    wanted = torch.ones_like(ids, dtype=torch.bool)
    for _ in range(4):
        optimizer.grad.zero_()
        ours.logits(ids, wanted).square().sum().backward()
        norm = optimizer.clip()
        optimizer.step()
        reference.zero_grad()
        theirs.logits(ids, wanted).square().sum().backward()
        assert norm == pytest.approx(
            float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)), rel=1e-4
        )
        reference.step()

    torch.testing.assert_close(flat, flatten_parameters(theirs), atol=1e-5, rtol=1e-4)


def test_learning_rates_warm_up_and_decay():
    base = OptimizerSettings(lr=1.0, warmup_steps=2, total_steps=6, min_lr=0.2)

    def rates(schedule):
        return [learning_rate(replace(base, schedule=schedule), tick) for tick in range(8)]

    assert rates("constant") == [0.5, 1, 1, 1, 1, 1, 1, 1]
    assert rates("linear") == pytest.approx([0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2])
    assert rates("cosine")[4] == pytest.approx(0.6)
    assert rates("cosine")[6:] == pytest.approx([0.2, 0.2])
    with pytest.raises(ValueError, match="linear needs total_steps"):
        learning_rate(OptimizerSettings(schedule="linear"), 1)
