"""Prompts from a JSON-lines file."""

from __future__ import annotations

import asyncio
import hashlib
import json
from array import array
from collections.abc import Sequence
from pathlib import Path

from asyncrl_runtime.adapters.sources.rows import RowFields, check_position, digest, prompt_of_row
from asyncrl_runtime.core.errors import SourceFailure
from asyncrl_runtime.core.records import Prompt, PromptRef

MAX_SHOWN_LINES = 10


class JsonlPrompts:
    """One prompt a line; empty lines are skipped. The file is checked once and read by offset after that.

    Raises `SourceFailure` naming the file, and the broken lines by number, when opened.
    """

    def __init__(self, path: str | Path, fields: RowFields = RowFields()) -> None:  # noqa: B008
        self._path = Path(path)
        self._fields = fields
        self.name = f"jsonl/{self._path.name}"
        self._offsets = array("Q")
        self._lines = array("Q")
        content = self._scan()
        self.fingerprint = digest({"jsonl": content, "fields": [fields.prompt, fields.answer, fields.task]})

    def __len__(self) -> int:
        return len(self._offsets)

    async def fetch(self, refs: Sequence[PromptRef]) -> list[Prompt]:
        """The prompts at these positions; reads in a thread."""
        for ref in refs:
            check_position(str(self._path), ref, len(self))
        return await asyncio.to_thread(self._read, tuple(refs))

    def _scan(self) -> str:
        """Index the lines, check each, and return the SHA-256 of the content."""
        content = hashlib.sha256()
        broken: list[str] = []
        num_broken = 0
        offset = 0
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    content.update(line)
                    if line.strip():
                        self._offsets.append(offset)
                        self._lines.append(number)
                        problem = self._problem(line)
                        num_broken += problem is not None
                        if problem is not None and len(broken) < MAX_SHOWN_LINES:
                            broken.append(f"line {number} {problem}")
                    offset += len(line)
        except OSError as error:
            raise SourceFailure(str(self._path), f"cannot be read: {error.strerror or error}") from error
        if broken:
            more = f"; and {num_broken - len(broken)} more" if num_broken > len(broken) else ""
            raise SourceFailure(str(self._path), "; ".join(broken) + more)
        if not self._offsets:
            raise SourceFailure(str(self._path), "holds no prompts")
        return content.hexdigest()

    def _problem(self, line: bytes) -> str | None:
        try:
            self._parse(line, PromptRef(0, 0))
        except ValueError as error:
            return str(error)
        return None

    def _parse(self, line: bytes, ref: PromptRef) -> Prompt:
        try:
            row = json.loads(line)
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8 text") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from None
        return prompt_of_row(row, self._fields, ref)

    def _read(self, refs: Sequence[PromptRef]) -> list[Prompt]:
        prompts = []
        number = 0
        try:
            with self._path.open("rb") as file:
                for ref in refs:
                    number = self._lines[ref.position]
                    file.seek(self._offsets[ref.position])
                    prompts.append(self._parse(file.readline(), ref))
        except OSError as error:
            raise SourceFailure(str(self._path), f"cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            problem = f"line {number} {error}; the file was changed while the run is using it"
            raise SourceFailure(str(self._path), problem) from error
        return prompts
