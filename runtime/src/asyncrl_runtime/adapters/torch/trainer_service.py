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
from asyncrl_runtime.adapters.torch.collectives import Group, Meeting
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.policy import PolicyTrainer, Report
from asyncrl_runtime.adapters.torch.ranks import Ranks
from asyncrl_runtime.adapters.torch.settings import TrainerSettings
from asyncrl_runtime.adapters.torch.weight_buffers import digest_of, write_buffer
from asyncrl_runtime.adapters.torch.weight_link import WeightLink, in_thread
from asyncrl_runtime.ports.columns import Columns, Jagged


class TrainerService:
    """One rank. Calls run one after the other, in the order they came."""

    def __init__(self, settings: TrainerSettings, rank: int = 0, size: int = 1) -> None:
        """Build model, reference and optimizer. Ranks of more than one must `join` before they train."""
        torch.set_num_threads(settings.num_threads)
        torch.manual_seed(settings.seed)
        masters = replace(settings.model, dtype="float32")
        self._trainer = PolicyTrainer(build_model(masters), settings, Ranks(rank, size))
        self._meeting: Meeting | None = None
        self._link = WeightLink()

    def host_ranks(self) -> str:
        """Be the place where the ranks meet; returns its address."""
        self._meeting = Meeting()
        return self._meeting.address

    def join_ranks(self, address: str, start_seconds: float, call_seconds: float | None) -> None:
        """Meet the other ranks. From then on a rank that ends or freezes fails the others' steps.

        Raises:
            RuntimeError: they did not all come within `start_seconds`.
            ValueError: they hold other parameters.
        """
        ranks, flat = self._trainer.ranks, self._trainer.weights.flat
        group = Group(
            address,
            ranks.rank,
            ranks.size,
            device=flat.device,
            start_seconds=start_seconds,
            call_seconds=call_seconds,
        )
        ranks.join(group)
        ranks.check_alike(digest_of(flat))

    def facts(self) -> tuple[int, int, str, int]:
        """Fields of `ModelFacts`."""
        flat = self._trainer.weights.flat
        return flat.numel(), flat.numel() * flat.element_size(), str(flat.device), self._trainer.ranks.size

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
        """Write weights/, as rank 0, and this rank's part of optimizer/ if asked."""
        if self._trainer.ranks.rank == 0:
            save_weights(self._trainer.model, Path(directory) / "weights")
        if optimizer:
            save_optimizer(self._trainer, Path(directory) / "optimizer")

    def load(self, directory: str, optimizer: bool) -> bool:
        """Read what `save` wrote; False if optimizer state was asked for and is absent."""
        self._trainer.abort()
        load_weights(self._trainer.model, Path(directory) / "weights")
        self._trainer.ranks.check_alike(digest_of(self._trainer.weights.flat))
        if not optimizer:
            return True
        return load_optimizer(self._trainer, Path(directory) / "optimizer")

    def create_weight_buffers(self, paths: tuple[str, ...]) -> str:
        """Make the shared files; returns the layout that readers need."""
        return self._trainer.weights.create(paths)

    def stage_weights(self) -> str:
        """Make a buffer to broadcast from; returns the layout that readers need."""
        return self._trainer.weights.stage()

    def host_weights(self) -> str:
        """Be the place where trainer and shards meet; returns its address."""
        return self._link.host()

    async def join_weights(self, address: str, size: int, seconds: float) -> None:
        """Meet the shards. Raises RuntimeError when they do not come within `seconds`."""
        await self._link.join(address, 0, size, self._trainer.weights.flat.device, seconds)

    async def send_weights(self) -> None:
        """Broadcast what was published. Raises RuntimeError."""
        await self._link.broadcast(self._trainer.weights.staged)

    async def write_weights(self, path: str) -> None:
        """Write what was published to a new file; returns when it is on disk. Raises OSError."""
        staged = self._trainer.weights.staged
        await in_thread(lambda: write_buffer(staged, path))

    def publish_weights(self) -> tuple[int, int, str]:
        """Copy the parameters into the next buffer: its index, bytes and digest."""
        return self._trainer.weights.publish()
