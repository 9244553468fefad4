"""Generalised advantage estimation over masked rows (11.4)."""

from __future__ import annotations

import numpy as np

from asyncrl_runtime.algorithms.settings import GaeSettings


def token_rewards(rewards: np.ndarray, mask: np.ndarray, penalty: np.ndarray | None) -> np.ndarray:
    """Minus the penalty at each response token, plus the reward at the last one (SC-11.35).

    Shapes:
        rewards  [R]
        mask     [R, T] bool, response tokens
        penalty  [R, T], 0 outside the mask
        returns  [R, T] float64; a row without response tokens is all 0
    """
    tokens = np.zeros(mask.shape) if penalty is None else -penalty
    has_tokens = mask.any(axis=1)
    last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
    rows = np.flatnonzero(has_tokens)
    tokens[rows, last[rows]] += rewards[rows]
    return tokens


def recursion(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, *, gamma: float, lam: float | np.ndarray
) -> np.ndarray:
    """Backward sums of discounted temporal differences; masked positions pass the state through (SC-11.36).

    Shapes:
        rewards, values  [R, T]
        mask             [R, T] bool
        lam              scalar or [R]
        returns          [R, T] float64; 0 where masked

    Source: arXiv:1506.02438, equation 16.
    """
    advantages = np.zeros(mask.shape)
    running, next_value = np.zeros(len(mask)), np.zeros(len(mask))
    for t in range(mask.shape[1] - 1, -1, -1):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = np.where(here, delta + gamma * lam * running, running)
        next_value = np.where(here, values[:, t], next_value)
        advantages[:, t] = np.where(here, running, 0.0)
    return advantages


def length_adaptive_lambda(response_tokens: np.ndarray, alpha: float) -> np.ndarray:
    """A λ per row that grows with its length (SC-11.40).

    Source: arXiv:2504.05118, section 4.2.
    """
    return np.clip(1.0 - 1.0 / np.maximum(alpha * response_tokens, 1.0), 0.0, 1.0)


def whiten(advantages: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Mean 0 and unbiased variance 1 over valid tokens; 0 elsewhere (SC-11.38)."""
    taken = advantages[valid]
    if not len(taken):
        return np.zeros_like(advantages)
    variance = taken.var(ddof=1) if len(taken) >= 2 else 0.0
    return np.where(valid, (advantages - taken.mean()) / np.sqrt(variance + 1e-8), 0.0)


def advantages_and_returns(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, settings: GaeSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages before whitening, and the critic's targets, each with its own λ (SC-11.37, SC-11.39).

    Shapes:
        rewards  [R, T], as of `token_rewards`
        values   [R, T], the critic's value of the state before token t
        mask     [R, T] bool, response tokens
        returns  [R, T] float64 twice; 0 where masked
    """
    base = settings.gae_lambda
    value_lambda = base if settings.lambda_value is None else settings.lambda_value
    policy_lambda: float | np.ndarray = base if settings.lambda_policy is None else settings.lambda_policy
    if settings.length_adaptive_alpha > 0:
        policy_lambda = length_adaptive_lambda(mask.sum(axis=1), settings.length_adaptive_alpha)
    targets = recursion(rewards, values, mask, gamma=settings.gamma, lam=value_lambda)
    advantages = (
        targets
        if not isinstance(policy_lambda, np.ndarray) and policy_lambda == value_lambda
        else recursion(rewards, values, mask, gamma=settings.gamma, lam=policy_lambda)
    )
    return advantages, np.where(mask, targets + values, 0.0)
