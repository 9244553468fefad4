"""The records that prompts, completions and committed groups are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

GroupId = str
SampleId = str
FinishReason = Literal["stop", "length"]

_LABEL_LENGTH = 80


@dataclass(frozen=True, slots=True)
class PromptRef:
    """Where a prompt stands: its position in the dataset, and the epoch it was taken in."""

    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """One dataset item."""

    ref: PromptRef
    messages: tuple[Mapping[str, str], ...]
    """Chat messages with `role` and `content`. A plain text prompt is one `user` message."""

    answer: str | None = None
    """Reference answer that the environment scores against."""

    task: str | None = None
    """Task name, which picks the environment."""

    loss_multiplier: float = 1.0
    """Weight of its rows in the loss; 0 keeps them out."""

    extra: Mapping[str, object] = field(default_factory=dict)
    """The other keys of its row, as the source has them."""

    @property
    def text(self) -> str:
        """The last message's content: what was asked."""
        return self.messages[-1]["content"]

    @property
    def label(self) -> str:
        """The prompt as messages name it: where it stands, and how it ends."""
        text = self.text if len(self.text) <= _LABEL_LENGTH else f"…{self.text[1 - _LABEL_LENGTH :]}"
        return f"{self.ref.position} of epoch {self.ref.epoch} ({text!r})"


@dataclass(slots=True)
class Completion:
    """The finished product of one sibling. Lists are per token of prompt, completion and observations."""

    token_ids: list[int]
    token_mask: list[int]
    """1 on tokens that the policy generated."""

    logprobs: list[float]
    """Log-prob of the sampled distribution on generated tokens, 0 elsewhere."""

    weight_versions: list[int]
    """Weight version that produced each generated token, -1 elsewhere."""

    prompt_tokens: int
    text: str
    """All generated text, turns joined by a newline."""

    reward: float
    reward_components: dict[str, float] = field(default_factory=dict)
    truncated: bool = False
    """Stopped by the length limit (or its observation was cut to fit)."""

    flagged: bool = False
    """The environment asked to keep it out of the loss."""

    turns: int = 1
    max_turns_reached: bool = False
    generation_seconds: float = 0.0
    environment_seconds: float = 0.0

    @property
    def generated_tokens(self) -> int:
        """Tokens that the policy generated."""
        return sum(self.token_mask)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The completions of one prompt group, before they are committed."""

    prompt: Prompt
    completions: tuple[Completion, ...]


def sample_id(group_id: GroupId, attempt: int, sibling: int) -> SampleId:
    """The key of a row: unique over attempts, so a late row can never pass for a new one (SC-1.6)."""
    return f"{group_id}_a{attempt}_g{sibling}"


STAGING = "staging/"
"""What the keys of staging rows begin with; those of canonical rows never do."""


def staging_key(group_id: GroupId, attempt: int, sibling: int) -> SampleId:
    """The key of a finished sibling's row while its group is not committed (SC-1.56)."""
    return STAGING + sample_id(group_id, attempt, sibling)


@dataclass(frozen=True, slots=True)
class GroupMeta:
    """What the controller keeps of a committed group; the rows themselves are in the data plane."""

    group_id: GroupId
    attempt: int
    prompt: PromptRef
    sample_ids: tuple[SampleId, ...]
    lengths: tuple[int, ...]
    """Tokens per row."""

    weight_versions: tuple[int, ...]
    """Start weight per row."""

    generated_tokens: int
    start_weight: int
    end_weight: int
    straddled: bool
    target_step: int | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Rollout metrics that travel with the group (SC-12.30)."""

    reward_components: tuple[str, ...] = ()
    """Names of the reward components that its rows carry."""


@dataclass(frozen=True, slots=True)
class BatchMeta:
    """Metadata of a set of committed groups, in selection order; rows of a group are contiguous."""

    groups: tuple[GroupMeta, ...]

    @property
    def sample_ids(self) -> list[SampleId]:
        """Keys of all rows."""
        return [sample for group in self.groups for sample in group.sample_ids]

    @property
    def group_ids(self) -> list[GroupId]:
        """The group of each row."""
        return [group.group_id for group in self.groups for _ in group.sample_ids]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [length for group in self.groups for length in group.lengths]

    def __add__(self, other: BatchMeta) -> BatchMeta:
        return BatchMeta(self.groups + other.groups)
