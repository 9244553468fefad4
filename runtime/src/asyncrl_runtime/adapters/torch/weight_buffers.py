"""Buffers that weights are copied out of and into: the trainer's side and the shards' side."""

from __future__ import annotations

import hashlib
import mmap
import os
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl_runtime.adapters.torch.flat import flatten_parameters, layout_digest

_CHUNK_BYTES = 1 << 20
"""Copied, then summed while still in the processor's cache."""


def copied(target: Tensor, source: Tensor) -> str:
    """Copy flat source over flat target of the same type; returns their digest."""
    step = _CHUNK_BYTES // source.element_size()
    sums = []
    for start in range(0, source.numel(), step):
        part = source[start : start + step]
        target[start : start + step].copy_(part)
        sums.append(_sum(part))
    return _digest(sums)


def digest_of(source: Tensor) -> str:
    """Digest of a flat tensor: one 64-bit sum per chunk, hashed in order."""
    step = _CHUNK_BYTES // source.element_size()
    return _digest([_sum(source[start : start + step]) for start in range(0, source.numel(), step)])


def _sum(part: Tensor) -> int:
    """Sums of 64-bit words of both halves, so that words cannot trade places between them."""
    data = part.cpu().view(torch.uint8).numpy()
    words = data[: data.size // 8 * 8].view(np.int64)
    half = words.size // 2
    with np.errstate(over="ignore"):
        return 3 * int(words[:half].sum()) + int(words[half:].sum()) + int(data[words.size * 8 :].sum())


def _digest(sums: list[int]) -> str:
    return hashlib.blake2b(",".join(map(str, sums)).encode(), digest_size=8).hexdigest()


def _map(path: str, size: int, *, writable: bool) -> mmap.mmap:
    flags = os.O_RDWR if writable else os.O_RDONLY
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    fd = os.open(path, flags)
    try:
        return mmap.mmap(fd, size, access=access)
    finally:
        os.close(fd)


def _in_type(layout: str, dtype: torch.dtype) -> str:
    return f"{layout} in {str(dtype).removeprefix('torch.')}"


def write_buffer(source: Tensor, path: str) -> None:
    """Write a flat tensor's bytes to a new file; returns when they are on disk. Raises OSError."""
    with open(path, "xb") as file:
        file.write(_bytes(source.cpu()))
        file.flush()
        os.fsync(file.fileno())


def read_buffer(target: Tensor, path: str) -> None:
    """Fill a flat tensor by a file of its size. Raises OSError."""
    whole = target if target.device.type == "cpu" else torch.empty_like(target, device="cpu")
    with open(path, "rb", buffering=0) as file:
        view, at = _bytes(whole), 0
        while at < len(view) and (count := file.readinto(view[at:])):
            at += count
    if at < len(view):
        raise OSError(f"{path} holds {at} bytes of weights; {len(view)} are needed")
    if whole is not target:
        target.copy_(whole)


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy().data)


class WeightWriter:
    """The trainer's side. Two buffers: a late reader of one version never sees the next one's bytes."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Moves the model's parameters into one flat tensor; `dtype` is that of the buffers."""
        self.flat = flatten_parameters(model)
        self.layout = layout_digest(model)
        self._dtype = dtype
        self._buffers: list[Tensor] = []
        self._next = 0

    def create(self, paths: tuple[str, ...]) -> str:
        """Create the files; returns the layout, with the type, that readers must share."""
        self._buffers = []
        size = self.flat.numel() * self._dtype.itemsize
        for path in paths:
            with open(path, "xb") as file:
                os.fchmod(file.fileno(), 0o600)
                os.truncate(file.fileno(), size)
            mapped = _map(path, size, writable=True)
            self._buffers.append(torch.frombuffer(mapped, dtype=self._dtype))
        return _in_type(self.layout, self._dtype)

    def stage(self) -> str:
        """Make one buffer of this process alone; returns the layout."""
        self._next = 0
        self._buffers = [torch.empty(self.flat.numel(), dtype=self._dtype, device=self.flat.device)]
        return _in_type(self.layout, self._dtype)

    @property
    def staged(self) -> Tensor:
        """The buffer of `stage`, for a transport to send."""
        return self._buffers[0]

    def publish(self) -> tuple[int, int, str]:
        """Copy the parameters, rounded to the buffers' type, into the next one; index, bytes, digest."""
        index, self._next = self._next, (self._next + 1) % len(self._buffers)
        buffer = self._buffers[index]
        return (
            index,
            buffer.numel() * buffer.element_size(),
            copied(buffer, self.flat.to(buffer.device, self._dtype)),
        )


class WeightReader:
    """A shard's side."""

    def __init__(self, model: nn.Module) -> None:
        """Moves the model's parameters into one flat tensor."""
        self._flat = flatten_parameters(model)
        self._layout = _in_type(layout_digest(model), self._flat.dtype)
        self._buffers: list[Tensor] = []

    def attach(self, paths: tuple[str, ...], layout: str) -> None:
        """Map the writer's files. Raises ValueError when the models differ."""
        self._check(layout)
        self._buffers = []
        for path in paths:
            mapped = _map(path, os.stat(path).st_size, writable=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # read-only on purpose
                self._buffers.append(torch.frombuffer(mapped, dtype=self._flat.dtype))

    def stage(self, layout: str) -> None:
        """Make one buffer of this process alone. Raises ValueError when the models differ."""
        self._check(layout)
        self._buffers = [torch.empty_like(self._flat)]

    @property
    def staged(self) -> Tensor:
        """The buffer of `stage`, for a transport to fill."""
        return self._buffers[0]

    @torch.no_grad()
    def load(self, buffer: int, checksum: str) -> None:
        """Copy a buffer into the parameters. Raises ValueError when its digest is not `checksum`."""
        found = copied(self._flat, self._buffers[buffer])
        if found != checksum:
            raise ValueError(f"the weights have digest {found}, not {checksum}")

    def digest(self) -> str:
        """Digest of the parameters."""
        return digest_of(self._flat)

    def _check(self, layout: str) -> None:
        if layout != self._layout:
            raise ValueError(f"the trainer's model has layout {layout}, this shard's has {self._layout}")
