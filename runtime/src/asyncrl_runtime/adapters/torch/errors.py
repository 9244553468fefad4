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
class PromptTooLong(DataFailure):
    """A prompt leaves no room for a token of its completion."""

    tokens: int
    limit: int

    def __str__(self) -> str:
        return (
            f"a prompt of {self.tokens} tokens leaves no room below the limit of {self.limit} tokens; "
            "shorten it or raise the sequence limit"
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
