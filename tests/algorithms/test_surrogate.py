from dataclasses import replace

import pytest
import torch
from algorithms.build import KL, LOSS, policy_batch
from torch import tensor

from asyncrl_runtime.algorithms import settings as s
from asyncrl_runtime.algorithms.errors import ColumnsMismatch, ShapeError
from asyncrl_runtime.algorithms.surrogate import (
    correction_weights,
    kl_in_loss,
    policy_gradient,
    prepare,
    ratios,
)


def close(actual, expected, tolerance=1e-4):
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype), atol=tolerance, rtol=tolerance
    )


def logs(*rows):
    return [torch.tensor(row, dtype=torch.float64).log().tolist() for row in rows]


def surrogate(batch, settings):
    tokens = prepare(batch, settings)
    return policy_gradient(tokens, *ratios(tokens, settings), settings)


@pytest.mark.parametrize(
    ("advantage", "ratio", "dual_clip", "expected"),
    [
        (1, 1.5, None, -1.28),
        (1, 0.5, None, -0.5),
        (-1, 1.5, None, 1.5),
        (-1, 0.5, None, 0.8),
        (-1, 5, None, 5),
        (-1, 5, 3.0, 3),
        (1, 5, 3.0, -1.28),
    ],
)
def test_ex_11_11_clipped_surrogate(advantage, ratio, dual_clip, expected):
    batch = policy_batch(logs([ratio * 0.1]), previous=logs([0.1]), advantages=[[advantage]])
    settings = replace(LOSS, clip_min=0.2, clip_max=0.28, dual_clip=dual_clip)
    close(surrogate(batch, settings), [[expected]])


@pytest.mark.parametrize(
    ("kind", "lower", "upper", "expected", "outside"),
    [
        ("tis", None, 2.0, [2, 1, 0.25], [True, False, False]),
        ("tis", 0.5, 2.0, [2, 1, 0.5], [True, False, True]),
        ("icepop", 0.5, 2.0, [0, 1, 0], [True, False, True]),
        ("seq-mask-tis", 0.9, 1.1, [3, 1, 0.25], [False] * 3),
        ("seq-mask-tis", 0.999, 1.002, [0, 0, 0], [True] * 3),
    ],
)
def test_ex_11_12_truncated_correction_weights(kind, lower, upper, expected, outside):
    batch = policy_batch(
        logs([0.1, 0.1, 0.1]), previous=logs([0.3, 0.1, 0.025]), generation=logs([0.1, 0.1, 0.1])
    )
    truncation = s.Truncation(kind=kind, lower=lower, upper=upper)
    settings = replace(LOSS, correction=True, truncation=truncation)
    weights, out = correction_weights(prepare(batch, settings), settings)
    close(weights, [expected])
    assert out.tolist() == [outside]


def test_ex_11_12_the_sequence_level_weight_is_a_product():
    batch = policy_batch(
        logs([0.1, 0.1, 0.1]), previous=logs([0.3, 0.1, 0.025]), generation=logs([0.1, 0.1, 0.1])
    )
    settings = replace(LOSS, correction=True, ratio="sequence", token_level=False)
    weights, _ = correction_weights(prepare(batch, settings), settings)
    close(weights, [[0.75] * 3])


def test_without_correction_weights_are_1_whatever_the_mismatch():
    batch = policy_batch(logs([0.1, 0.2]), generation=logs([0.9, 0.01]))
    weights, outside = correction_weights(prepare(batch, LOSS), LOSS)
    assert weights.tolist() == [[1, 1]]
    assert not outside.any()


def test_sc_11_66_a_non_finite_weight_is_0():
    batch = policy_batch([[-1.0, -1.0]], generation=[[float("-inf"), -1.0]])
    settings = replace(LOSS, correction=True)
    weights, _ = correction_weights(prepare(batch, settings), settings)
    assert weights.tolist() == [[0, 1]]


def test_sc_11_67_a_non_finite_difference_counts_0_in_the_mean():
    batch = policy_batch([[-1.0, -1.0]], generation=[[float("-inf"), -1.0]])
    truncation = s.Truncation(kind="seq-mask-tis", lower=0.9, upper=1.1)
    settings = replace(LOSS, correction=True, truncation=truncation)
    weights, outside = correction_weights(prepare(batch, settings), settings)
    assert weights.tolist() == [[0, 1]]
    assert not outside.any()


def test_weights_carry_no_gradient():
    batch = policy_batch([[-1.0]], generation=[[-2.0]])
    for ratio in ("token", "forced"):
        settings = replace(LOSS, correction=True, ratio=ratio)
        weights, _ = correction_weights(prepare(batch, settings), settings)
        assert not weights.requires_grad
        close(weights, [[2.71828]])


def gradient(batch, settings):
    surrogate(batch, settings).sum().backward()
    return batch.logprobs.grad[:, 1:]


def test_sc_11_65_the_forced_ratio_is_1_with_the_policy_gradient():
    batch = policy_batch([[-1.0, -3.0]], previous=[[-9.0, -9.0]], advantages=[[2.0, -1.0]])
    settings = replace(LOSS, ratio="forced")
    close(surrogate(batch, settings), [[-2.0, 1.0]])
    close(gradient(batch, settings), [[-2.0, 1.0]])


def test_sc_11_65_without_a_ratio_the_logprob_takes_its_place():
    batch = policy_batch([[-1.5, -3.0]], previous=[[-9.0, -9.0]], advantages=[[2.0, -1.0]])
    settings = replace(LOSS, ratio="disabled")
    close(surrogate(batch, settings), [[3.0, -3.0]])
    close(gradient(batch, settings), [[-2.0, 1.0]])


def test_sc_11_65_sequence_ratio_is_the_geometric_mean_over_the_row():
    batch = policy_batch(logs([0.4, 0.1], [0.3]), previous=logs([0.1, 0.1], [0.1]))
    settings = replace(LOSS, ratio="sequence", token_level=False, clip_max=0.5)
    ratio, clipped = ratios(prepare(batch, settings), settings)
    close(ratio, [[2.0], [3.0]])
    close(clipped, [[1.5], [1.5]])


def test_the_token_ratio_has_gradient_inside_the_clip_only():
    batch = policy_batch(logs([0.11, 0.2, 0.05]), previous=logs([0.1, 0.1, 0.1]))
    close(gradient(batch, LOSS), [[-1.1, 0.0, -0.5]])


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    batch = policy_batch(logs([0.2, 0.1]), previous=logs([0.1, 0.1]), advantages=[[2.0, -1.0]])
    settings = replace(LOSS, cispo=True)
    close(surrogate(batch, settings), [[-2 * 1.2 * -1.60944, -2.302585]])
    close(gradient(batch, settings), [[-2 * 1.2, 1.0]])


@pytest.mark.parametrize(
    ("kind", "value", "slope"), [("k1", 0.5, 1.5), ("k2", 0.125, 0.625), ("k3", 0.1065, 0.5)]
)
def test_ex_11_13_kl_in_the_loss(kind, value, slope):
    batch = policy_batch([[-1.0]], reference=[[-1.5]])
    kl = replace(KL, kind=kind)
    estimate = kl_in_loss(batch, prepare(batch, LOSS), LOSS, kl)
    close(estimate, [[value]])
    estimate.sum().backward()
    close(batch.logprobs.grad[:, 1:], [[slope]])


def test_sc_11_63_where_the_input_clamp_acts_nothing_has_a_gradient():
    batch = policy_batch([[-30.0, -1.0]], reference=[[-1.0, -1.5]])
    kl = replace(KL, input_clamp=2.0, output_clamp=None)
    estimate = kl_in_loss(batch, prepare(batch, LOSS), LOSS, kl)
    close(estimate[:, :1], [[tensor(2.0).exp().item() - 3]])
    estimate.sum().backward()
    close(batch.logprobs.grad[:, 1:], [[0.0, 0.5]])


def test_sc_11_63_the_output_clamp_bounds_value_and_gradient():
    batch = policy_batch([[-8.0]], reference=[[-1.0]])
    estimate = kl_in_loss(batch, prepare(batch, LOSS), LOSS, KL)
    close(estimate, [[10.0]])
    estimate.sum().backward()
    assert batch.logprobs.grad.tolist() == [[0, 0]]


def test_sc_11_63_on_policy_approximation_weighs_by_the_generation_policy():
    batch = policy_batch([[-1.0]], generation=[[-1.5]], reference=[[-1.5]])
    settings = replace(LOSS, on_policy_kl=True)
    estimate = kl_in_loss(batch, prepare(batch, settings), settings, KL)
    close(estimate, [[1.64872 * 0.10653]])
    estimate.sum().backward()
    close(batch.logprobs.grad[:, 1:], [[1.64872 * 0.5]])


def test_sc_11_63_kl_uses_unfiltered_logprobs():
    unfiltered = tensor([[0.0, -2.0]], dtype=torch.float64, requires_grad=True)
    batch = policy_batch([[-1.0]], reference=[[-2.5]], unfiltered_logprobs=unfiltered)
    estimate = kl_in_loss(batch, prepare(batch, LOSS), LOSS, KL)
    close(estimate, [[0.10653]])
    estimate.sum().backward()
    close(unfiltered.grad, [[0.0, 0.5]])
    assert batch.logprobs.grad is None


def test_columns_that_the_settings_need_are_checked():
    batch = policy_batch([[-1.0]])
    with pytest.raises(ColumnsMismatch, match="previous_logprobs"):
        prepare(replace(batch, previous_logprobs=None), LOSS)
    with pytest.raises(ColumnsMismatch, match="reference_logprobs"):
        kl_in_loss(batch, prepare(batch, LOSS), LOSS, KL)
    prepare(replace(batch, previous_logprobs=None), replace(LOSS, ratio="forced"))
    with pytest.raises(ShapeError, match="advantages"):
        policy_batch([[-1.0]], advantages=[[1.0, 1.0]])
