"""Prompts from a data set of the hub, or from a local folder or file of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl_runtime.adapters.sources.rows import RowFields, check_position, digest, prompt_of_row
from asyncrl_runtime.core.errors import SourceFailure
from asyncrl_runtime.core.records import Prompt, PromptRef

MAX_SHOWN_ROWS = 10


class HubPrompts:
    """A split of a data set, in its stored order.

    `name` is a hub id, a folder written by `Dataset.save_to_disk`, or a folder that `load_dataset` reads.
    With HF_HUB_OFFLINE=1 only the local cache is used.
    """

    def __init__(
        self,
        name: str,
        *,
        split: str,
        subset: str | None = None,
        revision: str | None = None,
        fields: RowFields = RowFields(),  # noqa: B008
    ) -> None:
        self.name = f"hub/{name}"
        self._where = f"data set {name}, split {split}"
        self._fields = fields
        self._rows = _load(name, split=split, subset=subset, revision=revision, where=self._where)
        self._check()
        self.fingerprint = digest(
            {
                "hub": name,
                "split": split,
                "content": self._rows._fingerprint,
                "rows": len(self._rows),
                "fields": [fields.prompt, fields.answer, fields.task],
            }
        )

    def __len__(self) -> int:
        return len(self._rows)

    async def fetch(self, refs: Sequence[PromptRef]) -> list[Prompt]:
        """The prompts at these positions; reads in a thread."""
        for ref in refs:
            check_position(self._where, ref, len(self))
        return await asyncio.to_thread(lambda: [self._at(ref) for ref in refs])

    def _at(self, ref: PromptRef) -> Prompt:
        try:
            return prompt_of_row(self._rows[ref.position], self._fields, ref)
        except ValueError as error:
            raise SourceFailure(self._where, f"row {ref.position} {error}") from error

    def _check(self) -> None:
        columns = self._rows.column_names
        if self._fields.prompt not in columns:
            found = ", ".join(columns)
            raise SourceFailure(
                self._where, f"lacks the column {self._fields.prompt!r} (it has: {found}); set promptField"
            )
        if not len(self._rows):
            raise SourceFailure(self._where, "holds no prompts")


def _load(name: str, *, split: str, subset: str | None, revision: str | None, where: str) -> Any:
    import datasets

    datasets.disable_progress_bars()
    folder = Path(name)
    try:
        if (folder / "dataset_dict.json").exists():
            splits = datasets.load_from_disk(name)
            if split not in splits:
                raise SourceFailure(
                    where, f"is absent; the folder holds {', '.join(map(str, splits))}; set split"
                )
            return splits[split]
        if (folder / "dataset_info.json").exists() and (folder / "state.json").exists():
            return datasets.load_from_disk(name)
        return datasets.load_dataset(name, subset, split=split, revision=revision)
    except (OSError, ValueError, ConnectionError, datasets.exceptions.DatasetsError) as error:
        problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        way_out = "name a hub id, or a folder that exists on this machine, or fill the hub's cache beforehand"
        raise SourceFailure(where, f"cannot be loaded: {problem}; {way_out}") from error
