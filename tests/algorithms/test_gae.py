from dataclasses import replace

import numpy as np
import pytest
from algorithms.build import GAE, KL, rows
from hypothesis import given
from hypothesis import strategies as st

from asyncrl_runtime.algorithms.advantages import estimate
from asyncrl_runtime.algorithms.gae import length_adaptive_lambda, token_rewards, whiten

VALUES = np.array([[0.0, 0.2, 0.4, 0.6]])


@pytest.mark.parametrize(
    ("lam", "advantages", "returns"),
    [
        (0.95, [0.751, 0.58, 0.4], [0.951, 0.98, 1]),
        (1.0, [0.8, 0.6, 0.4], [1, 1, 1]),
        (0.0, [0.2, 0.2, 0.4], [0.4, 0.6, 1]),
    ],
)
def test_ex_11_5_gae(lam, advantages, returns):
    got = estimate(rows([1.0], tokens=[3]), replace(GAE, gae_lambda=lam), values=VALUES)
    assert got.values[0, 1:] == pytest.approx(advantages)
    assert got.returns[0, 1:] == pytest.approx(returns)


def test_ex_11_5_gae_passes_over_masked_positions():
    batch = rows([1.0], tokens=[3])
    batch.token_mask[0, 2] = False
    got = estimate(batch, GAE, values=VALUES)
    assert got.values[0] == pytest.approx([0, 0.78, 0, 0.4])
    assert got.returns[0] == pytest.approx([0, 0.98, 0, 1])


def test_ex_11_6_length_adaptive_lambda():
    lengths = np.array([0, 10, 20, 40, 100, 1000])
    assert length_adaptive_lambda(lengths, 0.05) == pytest.approx([0, 0, 0, 0.5, 0.8, 0.98])


def test_ex_11_10_whitening():
    one = whiten(np.array([[0.0, 3.0]]), np.array([[False, True]]))
    assert one.tolist() == [[0, 0]]
    two = whiten(np.array([[9.0, 1.0, 3.0]]), np.array([[False, True, True]]))
    assert two == pytest.approx(np.array([[0, -0.7071, 0.7071]]), abs=5e-5)


def test_sc_11_37_returns_are_taken_before_whitening():
    plain = estimate(rows([1.0], tokens=[3]), GAE, values=VALUES)
    white = estimate(rows([1.0], tokens=[3]), replace(GAE, normalize=True), values=VALUES)
    assert white.returns.tolist() == plain.returns.tolist()
    assert white.values[0, 1:].mean() == pytest.approx(0)
    assert white.values[0, 1:].std(ddof=1) == pytest.approx(1)


def test_sc_11_39_decoupled_lambdas():
    got = estimate(rows([1.0], tokens=[3]), replace(GAE, lambda_value=1.0, lambda_policy=0.0), values=VALUES)
    assert got.values[0, 1:] == pytest.approx([0.2, 0.2, 0.4])
    assert got.returns[0, 1:] == pytest.approx([1, 1, 1])
    only_value = estimate(rows([1.0], tokens=[3]), replace(GAE, lambda_value=1.0), values=VALUES)
    assert only_value.values[0, 1:] == pytest.approx([0.751, 0.58, 0.4])
    assert only_value.returns[0, 1:] == pytest.approx([1, 1, 1])


def test_sc_11_40_the_length_adaptive_lambda_is_per_row_and_for_the_policy_only():
    settings = replace(GAE, gae_lambda=1.0, lambda_policy=0.3, length_adaptive_alpha=1.0)
    batch = rows([1.0, 1.0], tokens=[3, 1])
    values = np.array([[0.0, 0.2, 0.4, 0.6], [0.0, 0.5, 0.0, 0.0]])
    got = estimate(batch, settings, values=values)
    lam = 1 - 1 / 3
    expected = [0.2 + lam * (0.2 + lam * 0.4), 0.2 + lam * 0.4, 0.4]
    assert got.values[0, 1:] == pytest.approx(expected)
    assert got.values[1] == pytest.approx([0, 0.5, 0, 0])
    assert got.returns[0, 1:] == pytest.approx([1, 1, 1])


def test_sc_11_35_the_reward_lands_on_the_last_response_token():
    mask = np.array([[False, True, False, True, False], [False] * 5])
    penalty = np.array([[0, 0.5, 0, 0.25, 0], [0] * 5])
    assert token_rewards(np.array([2.0, 7.0]), mask, penalty).tolist() == [[0, -0.5, 0, 1.75, 0], [0] * 5]


def test_sc_11_35_kl_in_the_reward():
    settings = replace(GAE, gae_lambda=1.0, kl=KL)
    zeros = np.zeros((1, 4))
    previous = np.full((1, 4), -1.0)
    reference = np.array([[0.0, -1.5, -1.0, -1.0]])
    got = estimate(
        rows([1.0], tokens=[3]),
        settings,
        values=zeros,
        previous_logprobs=previous,
        reference_logprobs=reference,
    )
    assert got.values[0, 1:] == pytest.approx([1 - 0.1 * (np.exp(-0.5) - 0.5), 1, 1])


def test_sc_11_41_a_row_without_response_tokens_contributes_nothing():
    batch = rows([1.0, 5.0], tokens=[3, 1])
    batch.token_mask[1] = False
    values = np.array([[0.0, 0.2, 0.4, 0.6], [np.nan] * 4])
    got = estimate(batch, replace(GAE, length_adaptive_alpha=0.05, normalize=True), values=values)
    assert np.isfinite(got.values).all()
    assert got.values[1].tolist() == [0] * 4
    assert got.returns[1].tolist() == [0] * 4


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8), st.floats(-2, 2))
def test_with_lambda_one_returns_are_the_reward_to_go(values, reward):
    column = np.array([[0.0, *values]])
    got = estimate(rows([reward], tokens=[len(values)]), replace(GAE, gae_lambda=1.0), values=column)
    assert got.returns[0, 1:] == pytest.approx([reward] * len(values), abs=1e-9)
