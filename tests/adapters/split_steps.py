"""One optimizer step over the same rows, whole and in parts: what no split may show (B12)."""

from dataclasses import dataclass, replace

import numpy as np
from adapters.torch_bench import LOSS, MODEL, TRAINER, columns_of, rows_of

from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.policy import PolicyTrainer
from asyncrl_runtime.algorithms.settings import KlSettings
from asyncrl_runtime.ports import columns as col

KL = KlSettings(penalty=0.1, kind="k3", input_clamp=20.0, output_clamp=10.0)
LOSSES = {
    "token": LOSS,
    "sequence": replace(LOSS, token_level=False, ratio="sequence"),
    "kl": replace(LOSS, kl=KL),
    "nll": replace(LOSS, nll_weight=0.2),
}
SPLITS = {
    "two chunks": ([range(5), range(5, 12)], {"micro_batch_rows": 12}),
    "single rows": ([range(12)], {"micro_batch_rows": 1, "sort_by_length": False}),
    "interleaved": ([range(0, 12, 2), range(1, 12, 2)], {"micro_batch_rows": 5, "pad_to_multiple": 8}),
}
"""Rows of each chunk, and settings of the trainer."""


def policy_trainer(**changes):
    """A trainer in this process."""
    return PolicyTrainer(build_model(MODEL), replace(TRAINER, **changes))


def gradient(trainer, chunks, positive_tokens=None):
    """Raw gradient, and the report of the finished step."""
    trainer.begin(positive_tokens)
    for chunk in chunks:
        trainer.accumulate(chunk)
    raw = trainer.optimizer.grad.clone()
    return raw, trainer.finish()


@dataclass
class Done:
    """A finished step. `raw` is the gradient before it was divided."""

    trainer: PolicyTrainer
    raw: object
    report: tuple


def whole_and_split(loss, split):
    """The step of 12 rows, one of them masked, as one chunk and in parts."""
    chunks, changes = SPLITS[split]
    columns = columns_of(12)
    columns[col.SAMPLE_MASK].values[3] = 0
    made = np.array([row.sum() for row in columns[col.TOKEN_MASK].rows()])
    positive = float((made * (columns[col.REWARD].values > 0) * columns[col.SAMPLE_MASK].values).sum())
    # Adam divides by the gradient's size: its epsilon must lie above the rounding that is allowed.
    common = {"loss": LOSSES[loss], "optimizer": replace(TRAINER.optimizer, epsilon=1e-3)}
    whole = policy_trainer(**common, micro_batch_rows=100)
    parts = policy_trainer(**common, **changes)
    picked = [rows_of(columns, list(part)) for part in chunks]
    return (
        Done(whole, *gradient(whole, [columns], positive)),
        Done(parts, *gradient(parts, picked, positive)),
    )
