"""The trainer's files: weights as a Hugging Face folder, optimizer as safetensors and JSON.

Each rank writes its slice of the optimizer's moments. Any number of ranks reads them again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
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
        _to_disk(*directory.iterdir(), directory)


def save_optimizer(trainer: PolicyTrainer, directory: Path) -> None:
    """Write this rank's moments, and as rank 0 scheduler tick, loss scale and random state.

    Returns when they are on disk. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ranks, numel = trainer.ranks, trainer.weights.flat.numel()
    mine = directory / _shard_name(ranks.rank, ranks.size)
    tensors = trainer.optimizer.state()
    if ranks.rank == 0:
        tensors[_RNG] = torch.get_rng_state()
    with _disk_errors():
        save_file(tensors, mine)
    written = [mine]
    if ranks.rank == 0:
        owned = [ranks.slice_of(numel, rank) for rank in range(ranks.size)]
        facts = {
            "schema": _SCHEMA,
            "tick": trainer.optimizer.tick,
            "layout": trainer.weights.layout,
            "loss_scale": trainer.arithmetic.state(),
            "shards": [
                {"file": _shard_name(rank, ranks.size), "start": part.start, "stop": part.stop}
                for rank, part in enumerate(owned)
            ],
        }
        (directory / _FACTS).write_text(json.dumps(facts, indent=2) + "\n")
        written.append(directory / _FACTS)
    _to_disk(*written, directory)


def _shard_name(rank: int, size: int) -> str:
    return _TENSORS if size == 1 else f"state-{rank + 1:05d}-of-{size:05d}.safetensors"


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
    """Read what `save_optimizer` wrote, on however many ranks; False if there is nothing.

    Raises:
        IncompleteModelFolder: one of its files is absent.
        ValueError: it belongs to another model, or was written by a newer version.
    """
    if not directory.is_dir():
        return False
    if not (directory / _FACTS).exists():
        raise IncompleteModelFolder(str(directory), _FACTS)
    facts = json.loads((directory / _FACTS).read_text())
    if facts["schema"] != _SCHEMA:
        raise ValueError(f"{directory} has schema {facts['schema']}; this version reads {_SCHEMA}")
    layout = trainer.weights.layout
    if facts["layout"] != layout:
        raise ValueError(f"{directory} belongs to a model of layout {facts['layout']}, not {layout}")
    numel = trainer.weights.flat.numel()
    shards = facts.get("shards", [{"file": _TENSORS, "start": 0, "stop": numel}])
    for shard in shards:
        if not (directory / shard["file"]).exists():
            raise IncompleteModelFolder(str(directory), shard["file"])
    with safe_open(directory / shards[0]["file"], framework="pt") as first:
        torch.set_rng_state(first.get_tensor(_RNG))
    owned = trainer.ranks.slice_of(numel)
    moments = {name: _moments(directory, shards, name, owned) for name in trainer.optimizer.state()}
    trainer.optimizer.load_state(facts["tick"], moments)
    trainer.arithmetic.load_state(facts.get("loss_scale"))
    return True


def _moments(directory: Path, shards: list[dict[str, Any]], name: str, owned: slice) -> Tensor:
    """A slice of what several ranks wrote; only the overlapping parts are read."""
    parts = []
    for shard in shards:
        start, stop = max(shard["start"], owned.start), min(shard["stop"], owned.stop)
        if start < stop:
            with safe_open(directory / shard["file"], framework="pt") as file:
                parts.append(file.get_slice(name)[start - shard["start"] : stop - shard["start"]])
    return torch.cat(parts) if parts else torch.empty(0)


def _to_disk(*paths: Path) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
