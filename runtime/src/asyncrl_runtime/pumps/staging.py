"""Staging rows: finished completions of groups that are not committed, whole enough to go on from."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np

from asyncrl_runtime.core.records import Completion
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Columns, Jagged

FACTS = "staging_facts"
"""What a completion holds besides its tokens, as JSON in UTF-8 bytes."""

FIELDS = (col.TOKEN_IDS, col.TOKEN_MASK, col.GENERATION_LOGPROBS, col.WEIGHT_VERSIONS, FACTS)
_PER_TOKEN = ("token_ids", "token_mask", "logprobs", "weight_versions")
_FACTS = tuple(field.name for field in fields(Completion) if field.name not in _PER_TOKEN)


def staging_columns(completion: Completion) -> dict[str, Jagged]:
    """One row: the completion's tokens as canonical rows have them, and its facts."""
    facts = json.dumps({name: getattr(completion, name) for name in _FACTS}).encode()
    tokens = np.array([len(completion.token_ids)], np.int64)
    return {
        col.TOKEN_IDS: Jagged(np.array(completion.token_ids, np.int64), tokens),
        col.TOKEN_MASK: Jagged(np.array(completion.token_mask, np.int8), tokens),
        col.GENERATION_LOGPROBS: Jagged(np.array(completion.logprobs, np.float32), tokens),
        col.WEIGHT_VERSIONS: Jagged(np.array(completion.weight_versions, np.int32), tokens),
        FACTS: Jagged(np.frombuffer(facts, np.uint8), np.array([len(facts)], np.int64)),
    }


def completions_of(columns: Columns) -> tuple[Completion, ...]:
    """The completions of staging rows, in their order."""
    rows = zip(*(columns[name].rows() for name in FIELDS), strict=True)
    return tuple(
        Completion(
            token_ids=ids.tolist(),
            token_mask=mask.tolist(),
            logprobs=logprobs.tolist(),
            weight_versions=versions.tolist(),
            **json.loads(facts.tobytes()),
        )
        for ids, mask, logprobs, versions, facts in rows
    )
