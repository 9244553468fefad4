"""Chat templates as the hub's tokenizers carry them: Jinja in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the policy's part, renders as its body."""

    tags = {"generation"}  # noqa: RUF012  read by Jinja as a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Give the statements of the block in its place."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. Raises `ValueError` on a broken one, and where it refuses the messages."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        functions: dict[str, Any] = environment.globals
        functions["raise_exception"] = _refuse
        functions["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"its chat template is broken: {error}") from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Text of the chat up to where the policy's turn begins."""
        plain = [dict(message) for message in messages]
        try:
            return self._template.render(
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except TemplateError as error:
            raise ValueError(f"its chat template refuses the messages: {error}") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
