from dataclasses import replace

import pytest
import torch
from algorithms.build import padded
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl_runtime.algorithms.errors import ShapeError
from asyncrl_runtime.algorithms.metrics import Normalizer
from asyncrl_runtime.algorithms.settings import ValueLossSettings
from asyncrl_runtime.algorithms.value_loss import VALUE_METRICS, ValueBatch, value_loss, value_metrics

PLAIN = ValueLossSettings(scale=1.0, clip_range=None)
CLIPPED = ValueLossSettings(scale=0.5, clip_range=0.2)


def value_batch(values, returns, *, old=None, sample_mask=None):
    mask = padded([[1.0] * len(row) for row in values])
    return ValueBatch(
        values=padded(values).requires_grad_(),
        old_values=padded(values if old is None else old),
        returns=padded(returns),
        token_mask=mask,
        sample_mask=torch.ones(len(values)) if sample_mask is None else torch.tensor(sample_mask),
    )


def take(batch, picked):
    return ValueBatch(**{name: getattr(batch, name)[picked] for name in batch.__slots__})


def test_sc_10_20_the_plain_loss_is_half_the_square():
    sums = value_loss(value_batch([[1.0, 2.0]], [[0.0, 5.0]]), PLAIN)
    assert float(sums.loss.detach()) == pytest.approx((1 + 9) / 2)
    assert value_metrics([sums.stats()])["loss"] == pytest.approx(2.5)


def test_sc_10_20_clipping_takes_the_larger_square():
    # v, v_old, R: 1, 0, 2: clipped to 0.2, square 3.24 > 1. 1, 0, 0: clipped square 0.04 < 1.
    batch = value_batch([[1.0, 1.0]], [[2.0, 0.0]], old=[[0.0, 0.0]])
    sums = value_loss(batch, CLIPPED)
    assert float(sums.loss.detach()) == pytest.approx(0.5 * (3.24 + 1) / 2)
    assert value_metrics([sums.stats()])["vf_clipfrac"] == 0.5
    sums.loss.backward()
    assert batch.values.grad.tolist() == [[0, 0, 0.5]]


def test_sc_10_21_metrics():
    batch = value_batch([[1.0, 2.0], [9.0]], [[2.0, 4.0], [100.0]], sample_mask=[1.0, 0.0])
    metrics = value_metrics([value_loss(batch, PLAIN).stats()])
    assert metrics["values_mean"] == 1.5
    assert (metrics["values_min"], metrics["values_max"]) == (1, 2)
    assert metrics["returns_mean"] == 3
    assert metrics["explained_var"] == pytest.approx(1 - 0.25 / 1)


def test_explained_variance_of_constant_returns_is_floored():
    exact = value_metrics([value_loss(value_batch([[3.0, 3.0]], [[3.0, 3.0]]), PLAIN).stats()])
    assert exact["explained_var"] == 1
    noisy = value_metrics([value_loss(value_batch([[2.0, 4.0]], [[3.0, 3.0]]), PLAIN).stats()])
    assert noisy["explained_var"] == pytest.approx(1 - 1 / 1e-8)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_parts_give_what_the_whole_gives(data):
    rows = data.draw(st.integers(1, 5))
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=rows, max_size=rows))

    def column():
        return [data.draw(st.lists(st.floats(-3, 3), min_size=n, max_size=n)) for n in lengths]

    batch = value_batch(column(), column(), old=column())
    cut = data.draw(st.integers(0, rows))
    whole = value_loss(batch, CLIPPED)
    parts = [value_loss(take(batch, picked), CLIPPED) for picked in (slice(cut), slice(cut, None))]
    assert sum(p.loss.item() for p in parts) == pytest.approx(whole.loss.item())
    assert value_metrics([p.stats() for p in parts]) == pytest.approx(
        value_metrics([whole.stats()]), abs=1e-9
    )


def test_masked_and_first_positions_may_hold_anything():
    batch = value_batch([[1.0], [2.0]], [[0.0], [0.0]], sample_mask=[1.0, 0.0])
    values = batch.values.detach().clone()
    values[:, 0] = float("nan")
    values[1] = float("nan")
    spoiled = replace(batch, values=values.requires_grad_())
    sums = value_loss(spoiled, CLIPPED)
    sums.loss.backward()
    assert float(sums.loss.detach()) == pytest.approx(0.25)
    assert torch.isfinite(values.grad).all()


def test_sc_11_69_every_metric_declares_its_normaliser():
    stats = value_loss(value_batch([[1.0]], [[0.0]]), PLAIN).stats()
    assert {k: v.normalizer for k, v in stats.items()} == {"loss": Normalizer.TOKENS, **VALUE_METRICS}


def test_columns_of_other_shapes_are_refused():
    with pytest.raises(ShapeError, match="returns"):
        value_batch([[1.0]], [[0.0, 1.0]])
