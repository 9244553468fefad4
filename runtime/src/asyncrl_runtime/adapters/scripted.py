"""Scripted engines: every port that computes, with durations in loop time and faults on request.

They pass the same contracts as the real ones, and with a virtual clock they run thousands of steps a second.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from asyncrl_runtime.core.errors import TrainerFailure
from asyncrl_runtime.core.records import BatchMeta, Prompt, PromptRef
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.advantage import StageResult
from asyncrl_runtime.ports.columns import Columns, Jagged
from asyncrl_runtime.ports.data_plane import DataPlane
from asyncrl_runtime.ports.environment import EnvironmentStep, Episode
from asyncrl_runtime.ports.trainer import ModelFacts, StepReport


@dataclass(slots=True, kw_only=True)
class ScriptedSource:
    """Prompts that say their own position."""

    length: int
    name: str = "scripted"

    @property
    def fingerprint(self) -> str:
        """Its length is all there is."""
        return f"scripted:{self.length}"

    def __len__(self) -> int:
        return self.length

    async def fetch(self, refs: Sequence[PromptRef]) -> list[Prompt]:
        """One prompt per position."""
        return [Prompt(ref, ({"role": "user", "content": f"p{ref.position}"},), answer="1") for ref in refs]


@dataclass(slots=True, kw_only=True)
class ScriptedTokenizer:
    """A token per character."""

    vocab_size: int = 256
    eos_token_id: int = 0
    pad_token_id: int = 1

    def encode(self, text: str) -> list[int]:
        """Code points, 8 bits each."""
        return [ord(character) % 256 for character in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The characters back."""
        return "".join(chr(token) for token in token_ids)

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The last message's tokens."""
        return self.encode(messages[-1]["content"])

    def save(self, directory: str) -> None:
        """A note in place of files."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / "tokenizer.json").write_text("{}", encoding="utf-8")


@dataclass(slots=True, kw_only=True)
class ScriptedEnvironment:
    """Ends every episode with the reward that the script gives."""

    reward: Callable[[Episode], float] = lambda episode: 1.0
    seconds: float = 0.0
    name: str = "scripted"

    async def step(self, episode: Episode) -> EnvironmentStep:
        """Wait, then score."""
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return EnvironmentStep(self.reward(episode))

    async def health(self) -> str | None:
        """Always well."""
        return None

    async def close(self) -> None:
        """Nothing to stop."""


@dataclass(slots=True, kw_only=True, eq=False)
class ScriptedTrainer:
    """A trainer whose step takes as long as the script says; it counts what it was given."""

    plane: DataPlane
    seconds: Callable[[int], float] = lambda step: 0.0
    """Duration of a `finish`, by optimizer step."""

    failing: Callable[[str, int], bool] = lambda call, number: False
    """Whether this call (by name, and how many of that name came before) fails."""

    trained: list[str] = field(default_factory=list, init=False)
    """Sample ids of every applied optimizer step, in order."""

    optimizer_steps: int = field(default=0, init=False)
    _open: list[str] | None = field(default=None, init=False)
    _calls: Counter[str] = field(default_factory=Counter, init=False)

    async def start(self) -> ModelFacts:
        """Nothing to build."""
        return ModelFacts(0, 0, "none", 1)

    async def logprobs(
        self, meta: BatchMeta, *, models: frozenset[Literal["policy", "reference"]]
    ) -> Mapping[str, float]:
        """Log-prob -1 for every token."""
        self._call("logprobs")
        names = {"policy": col.PREVIOUS_LOGPROBS, "reference": col.REFERENCE_LOGPROBS}
        lengths = np.array(meta.lengths, dtype=np.int64)
        column = Jagged(np.full(int(lengths.sum()), -1.0, dtype=np.float32), lengths)
        await self.plane.put(meta.sample_ids, {names[model]: column for model in models})
        return {}

    async def begin(self, *, positive_tokens: float | None = None) -> None:
        """Open a step."""
        self._call("begin")
        if self._open is not None:
            raise TrainerFailure("begin", "an optimizer step is open already")
        self._open = []

    async def accumulate(self, meta: BatchMeta) -> None:
        """Take rows; their advantages must be there."""
        self._call("accumulate")
        if self._open is None:
            raise TrainerFailure("accumulate", "no optimizer step is open")
        await self.plane.get(meta.sample_ids, [col.ADVANTAGES])
        self._open += meta.sample_ids

    async def finish(self) -> StepReport:
        """Apply."""
        self._call("finish")
        if self._open is None:
            raise TrainerFailure("finish", "no optimizer step is open")
        rows, self._open = self._open, None
        await asyncio.sleep(self.seconds(self.optimizer_steps))
        self.trained += rows
        self.optimizer_steps += 1
        return StepReport({"loss": 0.0}, len(rows), len(rows))

    async def abort(self) -> None:
        """Forget the open step."""
        self._open = None

    async def save(self, directory: Path, *, optimizer: bool) -> None:
        """Write what was trained."""
        (directory / "weights").mkdir(parents=True, exist_ok=True)
        state = {"optimizer_steps": self.optimizer_steps, "trained": self.trained}
        (directory / "weights" / "state.json").write_text(json.dumps(state), encoding="utf-8")
        if optimizer:
            (directory / "optimizer").mkdir(exist_ok=True)
            (directory / "optimizer" / "state.json").write_text("{}", encoding="utf-8")

    async def load(self, directory: Path, *, optimizer: bool) -> bool:
        """Read it back."""
        state = json.loads((directory / "weights" / "state.json").read_text(encoding="utf-8"))
        self.optimizer_steps, self.trained = state["optimizer_steps"], state["trained"]
        return not optimizer or (directory / "optimizer").is_dir()

    async def close(self) -> None:
        """Nothing to stop."""

    def _call(self, name: str) -> None:
        number = self._calls[name]
        self._calls[name] += 1
        if self.failing(name, number):
            raise TrainerFailure(name, f"scripted failure of call {number}")


@dataclass(slots=True, kw_only=True)
class ScriptedAdvantages:
    """Advantage 1 on every generated token of every unmasked row."""

    fields: tuple[str, ...] = (col.TOKEN_MASK, col.SAMPLE_MASK, col.REWARD)

    async def start(self) -> None:
        """Nothing to start."""

    async def run(self, meta: BatchMeta, columns: Columns) -> StageResult:
        """One pass over the masks."""
        mask, sample = columns[col.TOKEN_MASK], columns[col.SAMPLE_MASK].values
        rows = np.repeat(np.arange(len(mask.lengths)), mask.lengths)
        tokens = np.bincount(rows, weights=mask.values, minlength=len(mask.lengths)) * sample
        positive = np.where(columns[col.REWARD].values > 0, tokens, 0.0)
        advantages = Jagged(mask.values.astype(np.float32), mask.lengths)
        reward = float(columns[col.REWARD].values.sum())
        return StageResult({col.ADVANTAGES: advantages}, tokens, positive, (reward, len(tokens)))

    def metrics(self, results: Sequence[StageResult]) -> Mapping[str, float]:
        """Mean reward."""
        pairs: list[tuple[float, int]] = [result.statistics for result in results]  # type: ignore[misc]
        rows = sum(count for _, count in pairs)
        return {"reward": sum(total for total, _ in pairs) / rows} if rows else {}

    async def close(self) -> None:
        """Nothing to stop."""
