"""Builds the model that settings name."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from asyncrl_runtime.adapters.torch.errors import IncompleteModelFolder
from asyncrl_runtime.adapters.torch.folder import weight_files
from asyncrl_runtime.adapters.torch.interface import Model
from asyncrl_runtime.adapters.torch.model import Decoder
from asyncrl_runtime.adapters.torch.settings import Device, TorchModelSettings
from asyncrl_runtime.adapters.torch.shape import DecoderShape


def resolve_device(device: Device) -> torch.device:
    """The device that `auto` stands for here."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def build_model(settings: TorchModelSettings) -> Model:
    """The model on its device, in its type.

    Raises:
        IncompleteModelFolder: the folder lacks a file.
        ValueError: the settings name no model, or the folder's tensors do not fit its config.
    """
    if settings.shape is not None:
        model: Model = Decoder.random(settings.shape, settings.seed)
    elif settings.folder is not None:
        model = _from_folder(settings.folder)
    else:
        raise ValueError("a model needs a folder or a shape")
    model = model.to(resolve_device(settings.device))
    for parameter in model.parameters():  # and no buffers: rotary frequencies need float32
        parameter.data = parameter.data.to(getattr(torch, settings.dtype))
    return model


def _from_folder(name: str) -> Model:
    folder = Path(name)
    if folder.is_dir():
        config = folder / "config.json"
        if not config.exists():
            raise IncompleteModelFolder(name, "config.json")
        weight_files(folder)
        shape = DecoderShape.from_config(json.loads(config.read_text()))
        if shape is not None:
            model = Decoder(shape)
            model.load_weights(folder)
            return model
    elif name.startswith((".", "/", "~")):
        raise IncompleteModelFolder(name, "config.json")
    from asyncrl_runtime.adapters.torch.hf import HuggingFaceModel

    return HuggingFaceModel.load(name)
