"""Where prompts come from."""

from typing import Annotated, Literal

from annotated_types import Le

from asyncrl_api.base import WARM, ApiModel, Count, DefaultsTo, FreeForm, Name, Natural, Natural64, Path, Word


class JsonlSource(ApiModel):
    """Prompts from a JSON-lines file, one object a line."""

    path: Path
    """Path of the file in the controller container; mount it with `controller.volumes`."""

    prompt_field: Word = "prompt"
    """Key of the prompt: a string, or a list of chat messages."""

    answer_field: Word = "answer"
    """Key of the reference answer that the environment scores against. Rows may lack it."""

    task_field: Word = "task"
    """Key of the task name, which picks the entry of `environment.byTask` and of the granularity overrides.
    Rows may lack it."""


class HubSource(ApiModel):
    """Prompts from a data set of the model hub."""

    name: Name
    """Hub id of the data set."""

    subset: Word | None = None
    """Configuration of the data set, where it has several."""

    split: Annotated[Word | None, DefaultsTo("train (source), validation (validation)")] = None
    """Split to read."""

    revision: Word | None = None
    """Hub revision of the data set. Pin it: a changed data set is refused on resume."""

    prompt_field: Word = "prompt"
    """Column of the prompt."""

    answer_field: Word = "answer"
    """Column of the reference answer. May be absent."""

    task_field: Word = "task"
    """Column of the task name. May be absent."""


class ReasoningGymSource(ApiModel):
    """Prompts made by a reasoning-gym generator."""

    dataset: Word
    """Name of the generator. It is also the task name of its rows."""

    size: Count = 10000
    """Prompts to make; one epoch."""

    seed: Annotated[Natural64 | None, DefaultsTo("data.seed (source), data.seed + 1 (validation)")] = None
    """Seed of the generator."""

    config: FreeForm | None = None
    """Further arguments of the generator, passed on as they are."""


class GeneratedSource(ApiModel):
    """Built-in synthetic prompts that need no download, for the `arithmetic` environment."""

    task: Literal["add", "copy", "reverse", "sort"] = "add"
    """What the model is asked to do with the digits. It is also the task name of the rows."""

    num_digits: Annotated[Count, Le(18)] = 1
    """Digits per operand (`add`) or per sequence (the others)."""

    num_prompts: Count = 4096
    """Prompts to make; one epoch."""

    seed: Annotated[Natural64 | None, DefaultsTo("data.seed (source), data.seed + 1 (validation)")] = None
    """Seed of the generator."""


class PromptSource(ApiModel):
    """Prompts: exactly one kind."""

    jsonl: JsonlSource | None = None
    """Prompts from a JSON-lines file, one object a line."""

    hub: HubSource | None = None
    """Prompts from a data set of the model hub."""

    reasoning_gym: ReasoningGymSource | None = None
    """Prompts made by a reasoning-gym generator."""

    generated: GeneratedSource | None = None
    """Built-in synthetic prompts that need no download, for the `arithmetic` environment."""


class DataSpec(ApiModel):
    """Where prompts come from, for training and for validation."""

    source: PromptSource
    """Training prompts. Order and length must stay the same over the life of the job, since recovery refers
    to prompts by position."""

    validation: Annotated[PromptSource | None, WARM] = None
    """Validation prompts. Unset: no validation runs."""

    shuffle: bool = True
    """Visit training prompts in a new order each epoch."""

    seed: Natural64 = 42
    """Seed of the order."""

    num_workers: Annotated[Natural, Le(64), WARM] = 1
    """Processes that prepare prompts ahead of dispatch. 0: in the controller."""
