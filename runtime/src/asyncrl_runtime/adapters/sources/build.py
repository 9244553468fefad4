"""From `spec.data` to prompt sources."""

from __future__ import annotations

from pathlib import Path

from asyncrl_api.spec.data import DataSpec, HubSource, JsonlSource
from asyncrl_api.spec.data import PromptSource as SourceSpec
from asyncrl_runtime.adapters.sources.generated import GeneratedPrompts
from asyncrl_runtime.adapters.sources.rows import RowFields
from asyncrl_runtime.ports.prompts import PromptSource


def training_prompts(spec: DataSpec, *, folder: Path | None = None) -> PromptSource:
    """Open the training prompts; blocks while a file is checked. Raises `SourceFailure`.

    Relative paths are looked for in `folder`, the manifest's, before the working directory.
    """
    return open_source(spec.source, seed=spec.seed, split="train", folder=folder)


def validation_prompts(spec: DataSpec, *, folder: Path | None = None) -> PromptSource | None:
    """Open the validation prompts, if there are any; blocks like `training_prompts`."""
    if spec.validation is None:
        return None
    return open_source(spec.validation, seed=spec.seed + 1, split="validation", folder=folder)


def open_source(spec: SourceSpec, *, seed: int, split: str, folder: Path | None = None) -> PromptSource:
    """Open one source. `seed` and `split` apply where the source names none."""
    if (generated := spec.generated) is not None:
        own = seed if generated.seed is None else generated.seed
        return GeneratedPrompts(generated.task, generated.num_digits, generated.num_prompts, own)
    if (jsonl := spec.jsonl) is not None:
        from asyncrl_runtime.adapters.sources.jsonl import JsonlPrompts

        return JsonlPrompts(_located(jsonl.path, folder), _fields(jsonl))
    if (hub := spec.hub) is not None:
        from asyncrl_runtime.adapters.sources.hub import HubPrompts

        return HubPrompts(
            _located(hub.name, folder),
            split=hub.split or split,
            subset=hub.subset,
            revision=hub.revision,
            fields=_fields(hub),
        )
    if (gym := spec.reasoning_gym) is not None:
        from asyncrl_runtime.adapters.sources.reasoning_gym import ReasoningGymPrompts

        own = seed if gym.seed is None else gym.seed
        return ReasoningGymPrompts(gym.dataset, size=gym.size, seed=own, config=gym.config)
    raise ValueError("exactly one of jsonl, hub, reasoningGym and generated must be set")


def _located(name: str, folder: Path | None) -> str:
    beside = None if folder is None else folder / name
    return str(beside) if beside is not None and beside.exists() else name


def _fields(spec: JsonlSource | HubSource) -> RowFields:
    return RowFields(spec.prompt_field, spec.answer_field, spec.task_field)
