"""Prompts made by a reasoning-gym generator."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl_runtime.adapters.sources.rows import check_position, digest
from asyncrl_runtime.core.errors import SourceFailure
from asyncrl_runtime.core.records import Prompt, PromptRef

ENTRY = "reasoning_gym_entry"
"""Key of `Prompt.extra`: the generator's own row, which its scorer needs."""


class ReasoningGymPrompts:
    """`size` prompts of one generator, each made when it is asked for."""

    def __init__(
        self, dataset: str, *, size: int, seed: int, config: Mapping[str, object] | None = None
    ) -> None:
        self.name = f"reasoning_gym/{dataset}"
        self._task = dataset
        self._dataset = create(dataset, size=size, seed=seed, config=config)
        from importlib.metadata import version

        facts = {"reasoning_gym": dataset, "size": size, "seed": seed, "config": dict(config or {})}
        self.fingerprint = digest({**facts, "version": version("reasoning-gym")})

    def __len__(self) -> int:
        return len(self._dataset)

    async def fetch(self, refs: Sequence[PromptRef]) -> list[Prompt]:
        """The prompts at these positions; generators run in a thread."""
        for ref in refs:
            check_position(self.name, ref, len(self))
        return await asyncio.to_thread(lambda: [self._at(ref) for ref in refs])

    def _at(self, ref: PromptRef) -> Prompt:
        try:
            entry = self._dataset[ref.position]
        except Exception as error:
            problem = f"cannot make prompt {ref.position}: {type(error).__name__}: {error}"
            raise SourceFailure(self.name, problem) from error
        answer = entry["answer"]
        return Prompt(
            ref=ref,
            messages=({"role": "user", "content": entry["question"]},),
            answer=None if answer is None else str(answer),
            task=self._task,
            extra={ENTRY: entry, "seed_position": ref.position},
        )


def create(dataset: str, *, size: int, seed: int, config: Mapping[str, object] | None) -> Any:
    """Build a generator. Raises `SourceFailure` that names the nearest known one, or the bad argument."""
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if dataset not in DATASETS:
        near = difflib.get_close_matches(dataset, DATASETS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see its list of data sets"
        raise SourceFailure("reasoning-gym", f"has no data set {dataset!r} among its {len(DATASETS)}; {hint}")
    try:
        return reasoning_gym.create_dataset(dataset, size=size, seed=seed, **(config or {}))
    except (TypeError, ValueError, AssertionError, KeyError) as error:
        raise SourceFailure(
            f"reasoning-gym data set {dataset}", f"refuses its config: {error}; correct reasoningGym.config"
        ) from error
