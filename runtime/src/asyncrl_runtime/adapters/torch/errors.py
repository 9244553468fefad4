"""Errors of the torch adapters; free of torch, so that they reach the caller typed."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl_runtime.core.errors import DataFailure, InfraFailure, RunError


@dataclass(eq=False)
class IncompleteModelFolder(RunError):
    """A model folder lacks a file."""

    folder: str
    file: str

    def __str__(self) -> str:
        return f"model folder {self.folder} lacks {self.file}; give a folder in the Hugging Face layout"


@dataclass(eq=False)
class PackingUnsupported(RunError):
    """A model cannot keep the sequences of a packed row apart."""

    model: str
    problem: str

    def __str__(self) -> str:
        return (
            f"spec.training.sequencePacking: {self.model} cannot train on packed rows ({self.problem}); "
            "set sequencePacking.enabled to false, or use spec.training.dynamicBatching"
        )


@dataclass(eq=False)
class PrecisionUnsupported(RunError):
    """A device does not compute in a number format."""

    setting: str
    precision: str
    device: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.setting} {self.precision} does not work on device {self.device}: {self.problem}; "
            "use float32 there"
        )


@dataclass(eq=False)
class BadRequest(DataFailure):
    """A generation request that the engine cannot serve."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(eq=False)
class EngineFailure(InfraFailure):
    """The engine of a shard failed."""

    shard: str
    problem: str

    def __str__(self) -> str:
        return f"{self.shard} failed: {self.problem}"
