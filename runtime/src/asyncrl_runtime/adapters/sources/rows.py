"""From a row of a data set to a prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncrl_runtime.core.errors import SourceFailure
from asyncrl_runtime.core.records import Prompt, PromptRef

LOSS_MULTIPLIER = "loss_multiplier"
"""Optional key of a row: the weight of its completions in the loss."""


@dataclass(frozen=True, slots=True)
class RowFields:
    """Keys under which a row holds prompt, reference answer and task name."""

    prompt: str = "prompt"
    answer: str = "answer"
    task: str = "task"


def prompt_of_row(row: object, fields: RowFields, ref: PromptRef) -> Prompt:
    """Read one row.

    Raises:
        ValueError: what is wrong with the row, in words and without its place.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"is {_kind(row)}, and must be an object")
    if fields.prompt not in row:
        keys = ", ".join(map(str, row)) or "none"
        raise ValueError(f"lacks the key {fields.prompt!r} (it has: {keys})")
    multiplier = row.get(LOSS_MULTIPLIER, 1.0)
    if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not 0 <= multiplier < 1e6:
        raise ValueError(f"holds {multiplier!r} under {LOSS_MULTIPLIER!r}, and must hold a number from 0 up")
    task = row.get(fields.task)
    if task is not None and not isinstance(task, str):
        raise ValueError(f"holds {_kind(task)} under {fields.task!r}, and must hold a string")
    known = {fields.prompt, fields.answer, fields.task, LOSS_MULTIPLIER}
    return Prompt(
        ref=ref,
        messages=_messages(row[fields.prompt], fields.prompt),
        answer=_answer(row.get(fields.answer)),
        task=task,
        loss_multiplier=float(multiplier),
        extra={str(key): value for key, value in row.items() if key not in known},
    )


def check_position(source: str, ref: PromptRef, length: int) -> None:
    """Raise `SourceFailure` unless the position exists."""
    if not 0 <= ref.position < length:
        raise SourceFailure(
            source,
            f"has no position {ref.position}: it holds {length} prompts, numbered from 0; "
            "was the run started on a longer data set?",
        )


def digest(facts: Mapping[str, object]) -> str:
    """A fingerprint of plain facts, the same on every machine."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _messages(prompt: object, key: str) -> tuple[Mapping[str, str], ...]:
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError(f"holds an empty string under {key!r}")
        return ({"role": "user", "content": prompt},)
    if not isinstance(prompt, Sequence) or not prompt:
        raise ValueError(f"holds {_kind(prompt)} under {key!r}, and must hold a string or a list of messages")
    found = []
    for number, message in enumerate(prompt, 1):
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise ValueError(
                f"holds a message {number} under {key!r} that is not {{role: string, content: string}}"
            )
        found.append({"role": role, "content": content})
    return tuple(found)


def _answer(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _kind(value: object) -> str:
    names: dict[type, str] = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(
        type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}"
    )
