"""Prompts: map-style sources, and the tokenizer that turns them into tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from asyncrl_runtime.core.records import Prompt, PromptRef


class PromptSource(Protocol):
    """A dataset with stable integer positions."""

    name: str
    fingerprint: str
    """Changes when the order or content of the prompts changes."""

    def __len__(self) -> int: ...

    async def fetch(self, refs: Sequence[PromptRef]) -> list[Prompt]:
        """The prompts at these positions. Raises `SourceFailure` naming file, line or position."""
        ...


class Tokenizer(Protocol):
    """Text to tokens and back."""

    vocab_size: int
    eos_token_id: int
    pad_token_id: int

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text, without special tokens."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        ...

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a chat up to where the policy's turn begins."""
        ...

    def save(self, directory: str) -> None:
        """Write the files that load it again."""
        ...
