"""What a sampler is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import BatchMeta
from asyncrl_runtime.core.replay import BufferFault, ReplayBuffer, Slot, batch_of


class Sampler(Protocol):
    """Decides what may be generated ahead of training, and what is trained on.

    Both pumps ask the same object; nobody else looks at its knobs (SC-3.1). A sampler holds the buffer's
    metadata and its cursor, nothing else, and never waits: the rollout pump asks `admissible` again
    whenever the trainer version or the window moves.
    """

    name: ClassVar[str]
    """As the manifest names it."""

    supports_buffer_checkpoint: ClassVar[bool]
    """Its ready groups may be restored from a checkpoint."""

    supports_training_claims: ClassVar[bool]
    """A snapshot may be taken while a step is open."""

    @property
    def is_on_policy(self) -> bool:
        """The policy admits no staleness."""
        ...

    @property
    def dispatch_index(self) -> int:
        """Admitted dispatch batches so far, less one; -1 at the start."""
        ...

    def admissible(self, trainer_version: int) -> bool:
        """Whether the next dispatch batch may start now. Changes nothing."""
        ...

    def admit(self, trainer_version: int) -> int | None:
        """Move the cursor; the stamp of the batch, or None for a sampler that does not stamp."""
        ...

    def select(
        self, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> BatchMeta | None:
        """Remove up to max eligible ready groups from the buffer; None if fewer than min are eligible."""
        ...

    def evict(self, current_train_weight: int) -> list[Slot]:
        """Remove the ready groups that no later `select` could take. The caller clears their rows."""
        ...

    def should_abort_inflight(self, start_weight_version: int, current_train_weight: int) -> bool:
        """Whether a rollout started at this version can never be selected any more."""
        ...

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Outstanding groups that the policy may need; None if any number will do."""
        ...

    def set_dispatch_index(self, resume_from_step: int) -> None:
        """Start counting for this step: the next stamp is resume_from_step."""
        ...

    def restore_dispatch_index(self, cursor: int) -> None:
        """Go on from a saved cursor, at least -1."""
        ...


REQUIRED_MEMBERS = (
    "admissible",
    "admit",
    "select",
    "evict",
    "should_abort_inflight",
    "is_on_policy",
    "required_buffer_capacity",
    "dispatch_index",
    "set_dispatch_index",
    "restore_dispatch_index",
)


@dataclass(eq=False)
class SamplerUnusable(RunError):
    """A custom sampler cannot be used."""

    target: str
    problem: str

    def __str__(self) -> str:
        return f"spec.asyncRL.sampler.target {self.target}: {self.problem}"


@dataclass(slots=True)
class BufferedSampler:
    """What the built-in samplers share: the buffer, the cursor, and the checks on a selection."""

    buffer: ReplayBuffer
    _cursor: int = -1

    name: ClassVar[str]
    supports_buffer_checkpoint: ClassVar[bool] = True
    supports_training_claims: ClassVar[bool] = True
    stamps: ClassVar[bool] = False
    gated: ClassVar[bool] = False
    oldest_first: ClassVar[bool] = False

    @property
    def dispatch_index(self) -> int:
        """Admitted dispatch batches so far, less one."""
        return self._cursor

    def set_dispatch_index(self, resume_from_step: int) -> None:
        """Start counting for this step."""
        if resume_from_step < 0:
            raise ValueError(f"resume_from_step is {resume_from_step}; it must be at least 0")
        self._cursor = resume_from_step - 1

    def restore_dispatch_index(self, cursor: int) -> None:
        """Go on from a saved cursor."""
        if cursor < -1:
            raise ValueError(f"the cursor is {cursor}; it must be at least -1")
        self._cursor = cursor

    def should_abort_inflight(self, start_weight_version: int, current_train_weight: int) -> bool:
        """Never: whatever was admitted stays selectable."""
        return False

    def select(
        self, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> BatchMeta | None:
        """All eligible groups up to max, or None if there are fewer than min (SC-3.6)."""
        if not 1 <= min_prompt_groups <= max_prompt_groups:
            raise ValueError(
                f"a selection of {min_prompt_groups} to {max_prompt_groups} groups was asked for; "
                "the bounds must be at least 1 and in order"
            )
        slots = self._take(current_train_weight, min_prompt_groups, max_prompt_groups)
        return batch_of(slots) if slots else None

    def _take(self, current: int, minimum: int, maximum: int) -> list[Slot]:
        raise NotImplementedError


@dataclass(slots=True)
class GatedSampler(BufferedSampler):
    """Admits `window + 1` dispatch batches ahead of the trainer at most (SC-3.30)."""

    window: int = 1

    gated: ClassVar[bool] = True

    @property
    def is_on_policy(self) -> bool:
        """Nothing runs ahead."""
        return self.window == 0

    def admissible(self, trainer_version: int) -> bool:
        """Whether the cursor is inside the window."""
        return self._cursor < trainer_version + self.window

    def admit(self, trainer_version: int) -> int | None:
        """Move the cursor."""
        if not self.admissible(trainer_version):
            raise BufferFault(
                f"batch {self._cursor + 1} was admitted at version {trainer_version} "
                f"with a window of {self.window}"
            )
        self._cursor += 1
        return self._cursor if self.stamps else None

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """`groups_per_step * (window + 1)`."""
        return groups_per_step * (self.window + 1)


def is_gated(sampler: Sampler) -> bool:
    """Whether it admits one dispatch batch per version, so that a lost group must come back (SC-1.77).

    A custom sampler says so by moving its cursor.
    """
    return bool(getattr(sampler, "gated", sampler.dispatch_index >= 0))


def is_oldest_first(sampler: Sampler) -> bool:
    """Whether it takes groups strictly by weight, so that one without a slot can be passed over for good."""
    return bool(getattr(sampler, "oldest_first", False))


def staleness_floor(current: int, window: int) -> int:
    """Oldest start weight that is still inside the window (SC-1.19)."""
    return max(0, current - window)
