"""One token per character: the tokenizer of models that start from random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl_runtime.core.errors import DataFailure

PAD_TOKEN = "<pad>"
END_TOKEN = "<end>"
UNKNOWN_TOKEN = "<unk>"
"""Held by no vocabulary: other libraries then refuse an unknown character, as this one does."""

DIGIT_SYMBOLS = "0123456789=+rs"
"""With pad and end 16 tokens: all that the generated tasks are written in."""

TEXT_SYMBOLS = "\n" + "".join(map(chr, range(32, 127)))
"""Newline and printable ASCII."""

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


@dataclass(eq=False)
class UnknownCharacter(DataFailure):
    """A text holds a character that the built-in tokenizer has no token for."""

    character: str
    position: int
    symbols: str

    def __str__(self) -> str:
        return (
            f"character {self.character!r} at position {self.position} has no token; the built-in tokenizer "
            f"knows {self._known()}; set spec.model.tokenizer, or keep to these"
        )

    def _known(self) -> str:
        if self.symbols == TEXT_SYMBOLS:
            return "printable ASCII and newline"
        return f"{self.symbols!r}, since all prompts are generated"


@dataclass(frozen=True, slots=True)
class CharacterTokenizer:
    """Token 0 pads, token 1 ends a completion, the others are the symbols in order."""

    symbols: str = TEXT_SYMBOLS
    separator: str = field(init=False)
    """What stands between two messages."""

    vocab_size: int = field(init=False)
    pad_token_id: int = field(init=False, default=0)
    eos_token_id: int = field(init=False, default=1)
    _ids: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "separator", "\n" if "\n" in self.symbols else "")
        object.__setattr__(self, "vocab_size", len(self.symbols) + 2)
        object.__setattr__(self, "_ids", {symbol: number for number, symbol in enumerate(self.symbols, 2)})

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text. Raises `UnknownCharacter`."""
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            character = str(error.args[0])
            raise UnknownCharacter(character, text.index(character), self.symbols) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without end tokens. A pad, or a token beyond the symbols, becomes U+FFFD.

        Pads are not left out: a policy that generates one must not pass for one that ends.
        """
        return "".join(self._symbol(token) for token in token_ids if token != self.eos_token_id)

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of the contents, a line each where newline is a symbol. Raises `UnknownCharacter`."""
        return self.encode(self.separator.join(message["content"] for message in messages))

    def save(self, directory: str) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which Hugging Face libraries load as well."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        joined = self.separator.replace("\n", "\\n")
        template = "{{ messages | map(attribute='content') | join('" + joined + "') }}"
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD_TOKEN,
            "eos_token": END_TOKEN,
            "chat_template": template,
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer.json").write_text(json.dumps(self._layout(), ensure_ascii=False, indent=1))
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))

    def _symbol(self, token: int) -> str:
        return self.symbols[token - 2] if 2 <= token < self.vocab_size else _UNKNOWN

    def _layout(self) -> dict[str, object]:
        special = {
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        each = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": self.pad_token_id, "content": PAD_TOKEN, **special},
                {"id": self.eos_token_id, "content": END_TOKEN, **special},
            ],
            "normalizer": None,
            "pre_tokenizer": each,
            "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {
                "type": "WordLevel",
                "vocab": {PAD_TOKEN: self.pad_token_id, END_TOKEN: self.eos_token_id, **self._ids},
                "unk_token": UNKNOWN_TOKEN,
            },
        }
