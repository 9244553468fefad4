"""Small models, settings and batches for the tests of the torch adapters."""

import numpy as np

from asyncrl_runtime.adapters.torch.settings import (
    EngineSettings,
    OptimizerSettings,
    TorchModelSettings,
    TrainerSettings,
)
from asyncrl_runtime.adapters.torch.shape import DecoderShape
from asyncrl_runtime.algorithms.settings import LossSettings
from asyncrl_runtime.core.records import BatchMeta, GroupMeta, PromptRef
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Jagged

SHAPE = DecoderShape(
    vocab_size=16,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_positions=256,
)
MODEL = TorchModelSettings(shape=SHAPE, seed=1)
ENGINE = EngineSettings(model=MODEL, max_sequence_tokens=256)
LOSS = LossSettings(
    ratio="token",
    clip_min=0.2,
    clip_max=0.2,
    dual_clip=None,
    cispo=False,
    token_level=True,
    correction=False,
    truncation=None,
    kl=None,
    on_policy_kl=False,
    nll_weight=0.0,
)
TRAINER = TrainerSettings(
    model=MODEL, loss=LOSS, optimizer=OptimizerSettings(lr=0.01), reference=True, micro_batch_rows=3
)


def columns_of(num_rows, *, seed=0, rewards=None, lengths=None):
    """Rows of random tokens, 4 to 12 unless given, of which the first 2 or 3 are the prompt."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 13, num_rows) if lengths is None else np.asarray(lengths)
    prompts = rng.integers(2, 4, num_rows)
    made = [np.arange(length) >= prompt for length, prompt in zip(lengths, prompts, strict=True)]
    advantages = rng.normal(size=num_rows)

    def per_token(values):
        return Jagged.of([np.where(mask, values(), 0) for mask in made], np.float32)

    return {
        col.TOKEN_IDS: Jagged.of([rng.integers(0, 16, length) for length in lengths], np.int64),
        col.TOKEN_MASK: Jagged.of(made, np.int8),
        col.GENERATION_LOGPROBS: per_token(lambda: -2.7),
        col.PREVIOUS_LOGPROBS: per_token(lambda: -2.7),
        col.REFERENCE_LOGPROBS: per_token(lambda: -2.6),
        col.ADVANTAGES: Jagged.of(
            [np.where(mask, a, 0) for mask, a in zip(made, advantages, strict=True)], np.float32
        ),
        col.SAMPLE_MASK: Jagged.scalars(np.ones(num_rows), np.float32),
        col.REWARD: Jagged.scalars(rng.normal(size=num_rows) if rewards is None else rewards, np.float64),
    }


def rows_of(columns, picked):
    """Some rows of columns."""
    result = {}
    for name, column in columns.items():
        rows = column.rows()
        result[name] = Jagged.of([rows[at] for at in picked], column.values.dtype)
    return result


def meta_of(columns, *, siblings=4):
    """Groups of consecutive rows."""
    lengths = columns[col.TOKEN_IDS].lengths.tolist()
    groups = []
    for start in range(0, len(lengths), siblings):
        names = tuple(f"g{start}_a0_g{n}" for n in range(len(lengths[start : start + siblings])))
        groups.append(
            GroupMeta(
                group_id=f"g{start}",
                attempt=0,
                prompt=PromptRef(0, start),
                sample_ids=names,
                lengths=tuple(lengths[start : start + siblings]),
                weight_versions=(0,) * len(names),
                generated_tokens=0,
                start_weight=0,
                end_weight=0,
                straddled=False,
                target_step=None,
            )
        )
    return BatchMeta(tuple(groups))
