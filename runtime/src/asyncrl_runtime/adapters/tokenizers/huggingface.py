"""Tokenizers of the hub, read from `tokenizer.json` without transformers or torch."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl_runtime.adapters.tokenizers.chat_template import ChatTemplate
from asyncrl_runtime.core.errors import DataFailure, RunError

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
"""All that loads a tokenizer again, here and in the engines."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class TokenizerFailure(RunError):
    """A tokenizer cannot be used."""

    tokenizer: str
    problem: str

    def __str__(self) -> str:
        return f"tokenizer {self.tokenizer} {self.problem}"


@dataclass(eq=False)
class UnrenderablePrompt(DataFailure):
    """A tokenizer cannot express a prompt."""

    tokenizer: str
    problem: str

    def __str__(self) -> str:
        return f"tokenizer {self.tokenizer} cannot render the prompt: {self.problem}"


class HuggingFaceTokenizer:
    """A fast tokenizer of a folder or the hub's cache.

    The pad token is the tokenizer's own; without one its end token pads, which is safe because pads are
    always masked. Raises `TokenizerFailure` if the files are missing, or there is no end token.
    """

    def __init__(self, name: str, *, revision: str | None = None) -> None:
        from tokenizers import Tokenizer

        self.name = name
        self._folder = find_folder(name, revision)
        path = self._folder / "tokenizer.json"
        if not path.exists():
            way_out = "save it once with transformers' save_pretrained, which writes that file"
            raise TokenizerFailure(name, f"has no tokenizer.json in {self._folder}; {way_out}")
        try:
            self._core = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise TokenizerFailure(name, f"has a tokenizer.json that cannot be read: {error}") from error
        self._core.no_truncation()
        self._core.no_padding()
        config = _read_json(self._folder / "tokenizer_config.json")
        special = {**_special_tokens(_read_json(self._folder / "special_tokens_map.json"))}
        special.update(_special_tokens(config))
        self.vocab_size = max(self._core.get_vocab(with_added_tokens=True).values()) + 1
        self.eos_token_id = self._end_token(special)
        self.pad_token_id = self._pad_token(special)
        self._template = self._chat_template(config, special)

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text, without special tokens."""
        return self._core.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self._core.decode(list(token_ids), skip_special_tokens=True)

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a chat up to where the policy's turn begins.

        Without a chat template, the contents a line each, with the tokenizer's own special tokens (such as a
        begin token). Raises `UnrenderablePrompt` where the template refuses the messages.
        """
        if self._template is None:
            text = "\n".join(message["content"] for message in messages)
            return self._core.encode(text, add_special_tokens=True).ids
        try:
            return self.encode(self._template.render(messages))
        except ValueError as error:
            raise UnrenderablePrompt(self.name, str(error)) from error

    def save(self, directory: str) -> None:
        """Copy the files that load it again."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (self._folder / name).exists():
                shutil.copyfile(self._folder / name, folder / name)

    def _end_token(self, special: Mapping[str, str]) -> int:
        token = special.get("eos_token")
        number = None if token is None else self._core.token_to_id(token)
        if number is None:
            what = (
                "names no end token"
                if token is None
                else f"names an end token {token!r} that it does not hold"
            )
            raise TokenizerFailure(self.name, f"{what}; set eos_token in its tokenizer_config.json")
        return number

    def _pad_token(self, special: Mapping[str, str]) -> int:
        token = special.get("pad_token")
        number = None if token is None else self._core.token_to_id(token)
        if number is None:
            log.warning("tokenizer %s has no pad token; its end token pads, masked", self.name)
            return self.eos_token_id
        return number

    def _chat_template(self, config: Mapping[str, object], special: Mapping[str, str]) -> ChatTemplate | None:
        file = self._folder / "chat_template.jinja"
        source = file.read_text() if file.exists() else config.get("chat_template")
        if isinstance(source, list):
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("default")
        if not isinstance(source, str):
            return None
        try:
            return ChatTemplate(source, special)
        except ValueError as error:
            raise TokenizerFailure(self.name, f"cannot be used: {error}") from error


def find_folder(name: str, revision: str | None) -> Path:
    """A folder as it is, else the hub's cache, else the hub itself. Raises `TokenizerFailure`."""
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/", "~")):
        raise TokenizerFailure(name, "is no folder; name one that exists, or a hub id")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def locate(local_files_only: bool) -> Path:
        found = snapshot_download(
            name, revision=revision, allow_patterns=list(FILES), local_files_only=local_files_only
        )
        return Path(found)

    try:
        try:
            folder = locate(local_files_only=True)
            return folder if (folder / "tokenizer.json").exists() else locate(local_files_only=False)
        except LocalEntryNotFoundError:
            return locate(local_files_only=False)
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        way_out = "name a folder, or fill the hub's cache on this machine beforehand"
        raise TokenizerFailure(
            name, f"was found neither as a folder nor on the hub: {reason}; {way_out}"
        ) from error


def _read_json(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise TokenizerFailure(str(path.parent), f"has a broken {path.name}: {error}") from error
    return found if isinstance(found, dict) else {}


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """Named special tokens; each is a string, or an object with `content`."""
    found = {}
    for key, value in config.items():
        token = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(token, str):
            found[key] = token
    return found
