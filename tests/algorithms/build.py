"""Settings with plain defaults, and small batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from asyncrl_runtime.algorithms import settings as s
from asyncrl_runtime.algorithms.advantages import EstimatorRows
from asyncrl_runtime.algorithms.stage import StageInput
from asyncrl_runtime.algorithms.surrogate import PolicyBatch

KL = s.KlSettings(penalty=0.1, kind="k3", input_clamp=20.0, output_clamp=10.0)
GRPO = s.GrpoSettings(leave_one_out=True, normalize=True, exclude_masked=False)
REINFORCE = s.ReinforcePlusPlusSettings(
    minus_baseline=True, exclude_masked=False, kl=None, filtered_sampling=False
)
GAE = s.GaeSettings(
    gae_lambda=0.95,
    gamma=1.0,
    lambda_value=None,
    lambda_policy=None,
    length_adaptive_alpha=0.0,
    normalize=False,
    kl=None,
    filtered_sampling=False,
)
LOSS = s.LossSettings(
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
MASKS = s.MaskSettings(overlong_filtering=False, mask_env_flagged=True, seq_error_threshold=None)
STAGE = s.StageSettings(
    rewards=s.RewardSettings(scaling=None, shaping=None),
    masks=MASKS,
    estimator=GRPO,
    clip_low=None,
    clip_high=None,
    invalid_tool_call_advantage=None,
    malformed_thinking_advantage=None,
)


def rows(rewards, *, groups=None, tokens=None, sample_mask=None, components=None):
    """Rows whose first position is the prompt, followed by `tokens` generated ones each."""
    tokens = tokens or [1] * len(rewards)
    mask = np.zeros((len(rewards), 1 + max(tokens)), dtype=bool)
    for row, count in enumerate(tokens):
        mask[row, 1 : 1 + count] = True
    return EstimatorRows(
        rewards=np.array(rewards, dtype=np.float64),
        components={k: np.array(v, dtype=np.float64) for k, v in (components or {}).items()},
        group_ids=groups or ["g"] * len(rewards),
        token_mask=mask,
        sample_mask=np.ones(len(rewards)) if sample_mask is None else np.array(sample_mask, np.float64),
    )


def stage_input(rewards, *, groups=None, tokens=None, **changes):
    """A stage input for `rows`; any field can be replaced."""
    made = rows(rewards, groups=groups, tokens=tokens)
    count = len(rewards)
    batch = StageInput(
        group_ids=list(made.group_ids),
        rewards=made.rewards,
        token_mask=made.token_mask.astype(np.int8),
        sample_mask=np.ones(count, np.float32),
        truncated=np.zeros(count, np.int8),
        flagged=np.zeros(count, np.int8),
        response_tokens=made.token_mask.sum(axis=1),
    )
    return replace(batch, **changes)


def padded(per_row, fill=0.0):
    """Rows of unequal length as [R, T] float64, behind a prompt position."""
    out = torch.full((len(per_row), 1 + max(map(len, per_row))), float(fill), dtype=torch.float64)
    for row, values in enumerate(per_row):
        out[row, 1 : 1 + len(values)] = torch.tensor(values, dtype=torch.float64)
    return out


def policy_batch(logprobs, *, generation=None, previous=None, advantages=None, reference=None, **changes):
    """Rows given as lists over generated tokens; unset columns equal the log-probs, advantages are 1."""
    lp = padded(logprobs)
    mask = padded([[1.0] * len(row) for row in logprobs])
    batch = PolicyBatch(
        logprobs=lp.clone().requires_grad_(),
        generation_logprobs=lp.clone() if generation is None else padded(generation),
        advantages=mask.clone() if advantages is None else padded(advantages),
        token_mask=mask,
        sample_mask=torch.ones(len(logprobs), dtype=torch.float64),
        previous_logprobs=lp.clone() if previous is None else padded(previous),
        reference_logprobs=None if reference is None else padded(reference),
    )
    return replace(batch, **changes)


def take(batch, picked):
    """Some rows of a policy batch; the gradient flows to the original."""
    fields = {name: getattr(batch, name) for name in batch.__slots__}
    return PolicyBatch(**{k: None if v is None else v[picked] for k, v in fields.items()})
