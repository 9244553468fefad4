"""The trainer's files: weights as a Hugging Face folder, optimizer as safetensors and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncrl_runtime.adapters.torch.errors import IncompleteModelFolder
from asyncrl_runtime.adapters.torch.folder import weight_files
from asyncrl_runtime.adapters.torch.interface import Model
from asyncrl_runtime.adapters.torch.policy import PolicyTrainer

_SCHEMA = 1
_TENSORS = "state.safetensors"
_FACTS = "state.json"
_RNG = "rng_state"


def save_weights(model: Model, directory: Path) -> None:
    """Write `directory` as a Hugging Face folder; returns when it is on disk. Raises OSError."""
    with _disk_errors():
        directory.mkdir(parents=True, exist_ok=True)
        model.save(directory)
        _to_disk(directory)


def save_optimizer(trainer: PolicyTrainer, directory: Path) -> None:
    """Write moments, scheduler tick, loss scale and random state; returns when they are on disk.

    Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _disk_errors():
        save_file({**trainer.optimizer.state(), _RNG: torch.get_rng_state()}, directory / _TENSORS)
    facts = {
        "schema": _SCHEMA,
        "tick": trainer.optimizer.tick,
        "layout": trainer.weights.layout,
        "loss_scale": trainer.arithmetic.state(),
    }
    (directory / _FACTS).write_text(json.dumps(facts, indent=2) + "\n")
    _to_disk(directory)


@contextmanager
def _disk_errors() -> Iterator[None]:
    """What safetensors cannot write is an error of the disk."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load_weights(model: Model, directory: Path) -> None:
    """Read what `save_weights` wrote."""
    weight_files(directory)
    model.load_weights(directory)


def load_optimizer(trainer: PolicyTrainer, directory: Path) -> bool:
    """Read what `save_optimizer` wrote; False if there is nothing.

    Raises:
        IncompleteModelFolder: one of its files is absent.
        ValueError: it belongs to another model, or was written by a newer version.
    """
    if not directory.is_dir():
        return False
    for name in (_FACTS, _TENSORS):
        if not (directory / name).exists():
            raise IncompleteModelFolder(str(directory), name)
    facts = json.loads((directory / _FACTS).read_text())
    if facts["schema"] != _SCHEMA:
        raise ValueError(f"{directory} has schema {facts['schema']}; this version reads {_SCHEMA}")
    layout = trainer.weights.layout
    if facts["layout"] != layout:
        raise ValueError(f"{directory} belongs to a model of layout {facts['layout']}, not {layout}")
    tensors: dict[str, Tensor] = load_file(directory / _TENSORS)
    torch.set_rng_state(tensors.pop(_RNG))
    trainer.optimizer.load_state(facts["tick"], tensors)
    trainer.arithmetic.load_state(facts.get("loss_scale"))
    return True


def _to_disk(directory: Path) -> None:
    for path in (*directory.iterdir(), directory):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
