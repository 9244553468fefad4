"""Prompts: map-style sources, and the tokenizer that turns them into tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from asyncrl_runtime.core.records import Prompt, PromptRef


class PromptSource(Protocol):
    """A dataset with stable integer positions."""

    @property
    def name(self) -> str:
        """What messages and checkpoints call it."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the order or content of the prompts changes."""
        ...

    def __len__(self) -> int: ...

    async def fetch(self, refs: Sequence[PromptRef]) -> list[Prompt]:
        """The prompts at these positions. Raises `SourceFailure` naming file, line or position."""
        ...


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def vocab_size(self) -> int:
        """Tokens that it knows."""
        ...

    @property
    def eos_token_id(self) -> int:
        """Ends a completion."""
        ...

    @property
    def pad_token_id(self) -> int:
        """Fills rows; always masked."""
        ...

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
