"""From `spec.model` and `spec.data` to a tokenizer."""

from __future__ import annotations

from asyncrl_api.spec.data import DataSpec
from asyncrl_api.spec.model import ModelSpec
from asyncrl_runtime.adapters.tokenizers.character import DIGIT_SYMBOLS, TEXT_SYMBOLS, CharacterTokenizer
from asyncrl_runtime.ports.prompts import Tokenizer


def load_tokenizer(model: ModelSpec, data: DataSpec) -> Tokenizer:
    """The tokenizer that the model names, else that of its weights, else the built-in one.

    May read files and the hub, so call it off the loop. Raises `TokenizerFailure`.
    """
    name = model.tokenizer or model.name
    if name is None:
        return built_in_tokenizer(data)
    from asyncrl_runtime.adapters.tokenizers.huggingface import HuggingFaceTokenizer

    return HuggingFaceTokenizer(name, revision=model.revision)


def built_in_tokenizer(data: DataSpec) -> CharacterTokenizer:
    """16 tokens if every prompt is generated, else printable ASCII."""
    sources = [data.source] if data.validation is None else [data.source, data.validation]
    generated = all(source.generated is not None for source in sources)
    return CharacterTokenizer(DIGIT_SYMBOLS if generated else TEXT_SYMBOLS)
