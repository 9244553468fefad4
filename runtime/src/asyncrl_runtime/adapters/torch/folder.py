"""The files of a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

from asyncrl_runtime.adapters.torch.errors import IncompleteModelFolder

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """Its safetensors files. Raises `IncompleteModelFolder` when one is absent."""
    index = folder / _INDEX
    weight_map = json.loads(index.read_text())["weight_map"] if index.exists() else {"": _SINGLE}
    names = sorted(set(weight_map.values()))
    for name in names:
        if not (folder / name).exists():
            raise IncompleteModelFolder(str(folder), name)
    return [folder / name for name in names]
