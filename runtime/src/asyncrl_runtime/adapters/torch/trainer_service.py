"""The trainer's own process: a policy trainer behind calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from asyncrl_runtime.adapters.torch.checkpoint import (
    load_optimizer,
    load_weights,
    save_optimizer,
    save_weights,
)
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.policy import PolicyTrainer, Report
from asyncrl_runtime.adapters.torch.settings import TrainerSettings
from asyncrl_runtime.ports.columns import Columns, Jagged


class TrainerService:
    """Calls run one after the other, in the order they came."""

    def __init__(self, settings: TrainerSettings) -> None:
        """Build model, reference and optimizer."""
        torch.set_num_threads(settings.num_threads)
        torch.manual_seed(settings.seed)
        masters = replace(settings.model, dtype="float32")
        self._trainer = PolicyTrainer(build_model(masters), settings)

    def facts(self) -> tuple[int, int, str, int]:
        """Fields of `ModelFacts`."""
        flat = self._trainer.weights.flat
        return flat.numel(), flat.numel() * flat.element_size(), str(flat.device), 1

    def logprobs(self, columns: Columns, models: frozenset[str]) -> dict[str, Jagged]:
        """See `PolicyTrainer`."""
        return self._trainer.logprobs(columns, models)

    def begin(self, positive_tokens: float | None) -> None:
        """See `PolicyTrainer`."""
        self._trainer.begin(positive_tokens)

    def accumulate(self, columns: Columns) -> None:
        """See `PolicyTrainer`."""
        self._trainer.accumulate(columns)

    def finish(self) -> Report:
        """See `PolicyTrainer`."""
        return self._trainer.finish()

    def abort(self) -> None:
        """See `PolicyTrainer`."""
        self._trainer.abort()

    def save(self, directory: str, optimizer: bool) -> None:
        """Write weights/ and, if asked, optimizer/."""
        save_weights(self._trainer.model, Path(directory) / "weights")
        if optimizer:
            save_optimizer(self._trainer, Path(directory) / "optimizer")

    def load(self, directory: str, optimizer: bool) -> bool:
        """Read what `save` wrote; False if optimizer state was asked for and is absent."""
        self._trainer.abort()
        load_weights(self._trainer.model, Path(directory) / "weights")
        if not optimizer:
            return True
        return load_optimizer(self._trainer, Path(directory) / "optimizer")

    def create_weight_buffers(self, paths: tuple[str, ...]) -> str:
        """Make the shared files; returns the layout that readers need."""
        return self._trainer.weights.create(paths)

    def publish_weights(self) -> tuple[int, int, str]:
        """Copy the parameters into the next buffer: its index, bytes and digest."""
        return self._trainer.weights.publish()
