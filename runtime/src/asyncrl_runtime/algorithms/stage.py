"""The advantage stage of one chunk, or of a whole step (11.2): plain records in, plain records out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from asyncrl_runtime.algorithms.advantages import Advantages, EstimatorRows, estimate
from asyncrl_runtime.algorithms.columns import (
    GENERATION_LOGPROBS,
    INVALID_TOOL_CALL,
    MALFORMED_THINKING,
    PREVIOUS_LOGPROBS,
    estimator_columns,
    stage_columns,
)
from asyncrl_runtime.algorithms.errors import ColumnsMismatch, MissingGroupTag, ShapeError
from asyncrl_runtime.algorithms.masks import (
    compose_sample_mask,
    sequence_error_mask,
    sequence_errors,
    token_weights,
)
from asyncrl_runtime.algorithms.metrics import Moments, Normalizer, Stat, Totals
from asyncrl_runtime.algorithms.rewards import TransformedRewards, transform
from asyncrl_runtime.algorithms.settings import GaeSettings, StageSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """Small columns of complete prompt groups.

    Shapes (R rows, T padded tokens):
        group_ids         R non-empty ids, from the rows' tags
        rewards           [R], raw totals
        components        [R] each, raw, by name
        token_mask        [R, T], nonzero on generated tokens
        sample_mask       [R], as committed
        truncated         [R], nonzero if cut by the length limit
        flagged           [R], nonzero if the environment asked to mask the row
        response_tokens   [R]
        columns           [R, T] each: those of `columns.stage_columns`
    """

    group_ids: Sequence[str]
    rewards: np.ndarray
    token_mask: np.ndarray
    sample_mask: np.ndarray
    truncated: np.ndarray
    flagged: np.ndarray
    response_tokens: np.ndarray
    components: Mapping[str, np.ndarray] = field(default_factory=dict)
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutput:
    """What the stage writes back, and what the controller folds into the step.

    Shapes:
        advantages           [R, T] float32; 0 outside valid tokens
        returns              [R, T] float32, only under an estimator with a critic
        sample_mask          [R] float32, after sequence-error masking
        row_valid_tokens     [R] float64, sum of the effective mask
        row_positive_tokens  [R] float64, the same on rows with positive raw reward, else 0
        stats                pooled statistics; `metrics.finalize` over a step's chunks gives its metrics
    """

    advantages: np.ndarray
    returns: np.ndarray | None
    sample_mask: np.ndarray
    row_valid_tokens: np.ndarray
    row_positive_tokens: np.ndarray
    stats: Mapping[str, Stat | Moments]

    @property
    def has_valid_tokens(self) -> bool:
        """Whether anything is left to train on (SC-11.13)."""
        return bool(self.row_valid_tokens.any())

    @property
    def positive_tokens(self) -> float:
        """T+ of these rows (SC-11.64)."""
        return self.totals().positive_tokens

    def totals(self, rows: Sequence[int] | None = None) -> Totals:
        """T, S and T+ of some rows, e.g. of a minibatch; of all by default."""
        picked = slice(None) if rows is None else list(rows)
        tokens = self.row_valid_tokens[picked]
        return Totals(
            valid_tokens=float(tokens.sum()),
            valid_rows=float((tokens > 0).sum()),
            positive_tokens=float(self.row_positive_tokens[picked].sum()),
        )


def run_stage(batch: StageInput, settings: StageSettings) -> StageOutput:
    """Rewards, sequence-error masking, estimator, clipping, token overrides, in this order (SC-11.12).

    Raises:
        MissingGroupTag: a row has no group id.
        ColumnsMismatch: a column that the settings need is missing.
        ShapeError: arrays do not belong to the same rows.
        NonFiniteRewards: a reward is NaN or infinite.
    """
    _check(batch, settings)
    rewards = transform(
        batch.rewards,
        batch.components,
        settings.rewards,
        response_tokens=batch.response_tokens,
        truncated=batch.truncated,
    )
    token_mask = np.asarray(batch.token_mask) != 0
    token_mask[:, :1] = False
    sample_mask, stats = _masked(batch, token_mask, settings)
    rows = EstimatorRows(
        rewards=rewards.rewards,
        components=rewards.components,
        group_ids=batch.group_ids,
        token_mask=token_mask,
        sample_mask=sample_mask,
    )
    estimated = _estimated(rows, batch, settings)
    advantages, override_stats = _overridden(
        _clipped(estimated.values, rows.valid, settings), rows.valid, batch, settings
    )
    tokens = token_weights(token_mask, sample_mask).sum(axis=1)
    returns = estimated.returns
    return StageOutput(
        advantages=advantages.astype(np.float32),
        returns=None if returns is None else returns.astype(np.float32),
        sample_mask=sample_mask.astype(np.float32),
        row_valid_tokens=tokens,
        row_positive_tokens=np.where(np.asarray(batch.rewards) > 0, tokens, 0.0),
        stats={
            **stats,
            **_reward_stats(batch, rewards, tokens > 0),
            **estimated.stats,
            **override_stats,
            **_advantage_stats(advantages[rows.valid]),
        },
    )


def _check(batch: StageInput, settings: StageSettings) -> None:
    rows, width = np.shape(batch.token_mask)
    tagged = sum(1 for group in batch.group_ids if group not in (None, ""))
    if len(batch.group_ids) != rows or tagged != rows:
        raise MissingGroupTag(rows, tagged)
    needed = stage_columns(settings, has_previous_logprobs=PREVIOUS_LOGPROBS in batch.columns)
    if settings.masks.seq_error_threshold is not None:
        needed |= {PREVIOUS_LOGPROBS, GENERATION_LOGPROBS}
    missing = needed - batch.columns.keys()
    unknown = batch.columns.keys() - needed
    if missing or unknown:
        raise ColumnsMismatch(
            "the advantage stage", tuple(sorted(missing)), tuple(sorted(unknown)), tuple(sorted(needed))
        )
    for name in ("rewards", "sample_mask", "truncated", "flagged", "response_tokens"):
        _check_shape(name, getattr(batch, name), (rows,))
    for name, values in batch.components.items():
        _check_shape(f"reward_component/{name}", values, (rows,))
    for name, values in batch.columns.items():
        _check_shape(name, values, (rows, width))


def _check_shape(name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    if np.shape(array) != expected:
        raise ShapeError(name, np.shape(array), expected)


def _masked(
    batch: StageInput, token_mask: np.ndarray, settings: StageSettings
) -> tuple[np.ndarray, dict[str, Stat]]:
    """The final sample mask, with the statistics of what was masked."""
    masks = settings.masks
    mask = compose_sample_mask(
        batch.sample_mask, truncated=batch.truncated, flagged=batch.flagged, settings=masks
    )
    overlong = np.count_nonzero(batch.truncated) if masks.overlong_filtering else 0
    flagged = np.count_nonzero(batch.flagged) if masks.mask_env_flagged else 0
    stats = {
        "masked_rows_overlong": Stat(Normalizer.NONE, float(overlong)),
        "masked_rows_env": Stat(Normalizer.NONE, float(flagged)),
    }
    if PREVIOUS_LOGPROBS in batch.columns:
        valid = token_weights(token_mask, mask) > 0
        kept, error_stats = sequence_error_mask(
            sequence_errors(batch.columns[GENERATION_LOGPROBS], batch.columns[PREVIOUS_LOGPROBS], valid),
            valid_rows=np.asarray(valid.any(axis=1)),
            raw_rewards=np.asarray(batch.rewards),
            threshold=masks.seq_error_threshold,
        )
        mask = mask * kept
        stats |= error_stats
    return mask, stats


def _estimated(rows: EstimatorRows, batch: StageInput, settings: StageSettings) -> Advantages:
    """The estimator's result, or zeros if no token is valid (SC-11.14)."""
    if not rows.valid.any():
        zeros = np.zeros(rows.token_mask.shape)
        return Advantages(zeros, zeros if isinstance(settings.estimator, GaeSettings) else None)
    declared = estimator_columns(settings.estimator)
    return estimate(rows, settings.estimator, **{name: batch.columns[name] for name in declared})


def _clipped(advantages: np.ndarray, valid: np.ndarray, settings: StageSettings) -> np.ndarray:
    """Within the bounds on valid tokens, 0 elsewhere (SC-11.61)."""
    if settings.clip_low is None and settings.clip_high is None:
        return advantages
    return np.where(valid, np.clip(advantages, settings.clip_low, settings.clip_high), 0.0)


def _overridden(
    advantages: np.ndarray, valid: np.ndarray, batch: StageInput, settings: StageSettings
) -> tuple[np.ndarray, dict[str, Stat]]:
    """Fixed advantages on flagged messages; the invalid tool call wins (SC-11.61)."""
    stats: dict[str, Stat] = {}
    for column, rate, value in (
        (MALFORMED_THINKING, "malformed_thinking_rate", settings.malformed_thinking_advantage),
        (INVALID_TOOL_CALL, "invalid_tool_call_rate", settings.invalid_tool_call_advantage),
    ):
        if value is None:
            continue
        flagged = np.asarray(batch.columns[column]) != 0
        advantages = np.where(valid & flagged, value, advantages)
        stats[rate] = Stat(Normalizer.ROWS, float(flagged.any(axis=1).sum()), float(len(flagged)))
    return advantages, stats


def _mean(values: np.ndarray) -> Stat:
    return Stat(Normalizer.ROWS, float(np.sum(values, dtype=np.float64)), float(len(values)))


def _reward_stats(batch: StageInput, rewards: TransformedRewards, valid_rows: np.ndarray) -> dict[str, Stat]:
    """SC-12.14: means over all rows, and over valid ones; raw next to transformed (SC-11.57)."""
    stats = {
        "reward": _mean(rewards.rewards),
        "reward_valid": _mean(rewards.rewards[valid_rows]),
        "reward_raw": _mean(np.asarray(batch.rewards)),
        "reward_out_of_range": Stat(Normalizer.NONE, float(rewards.out_of_range)),
    }
    for name, values in rewards.components.items():
        stats[f"reward_component/{name}"] = _mean(values)
        clamped = float(rewards.components_out_of_range[name])
        stats[f"reward_component_out_of_range/{name}"] = Stat(Normalizer.NONE, clamped)
    return stats


def _advantage_stats(valid: np.ndarray) -> dict[str, Stat]:
    top, bottom = (float(valid.max()), float(valid.min())) if len(valid) else (-np.inf, np.inf)
    return {
        "advantages/mean": Stat(Normalizer.TOKENS, float(valid.sum()), float(len(valid))),
        "advantages/max": Stat(Normalizer.MAX, top, empty=-1.0),
        "advantages/min": Stat(Normalizer.MIN, bottom, empty=-1.0),
    }
