"""The prompt ledger: who owns each prompt that was taken from the dataset."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import GroupId, PromptRef, SampleId, staging_key

EntryState = Literal["reserved", "admitted", "generating"]
Granularity = Literal["sibling", "prompt_group"]
"""What is redone when a group is incomplete: the missing siblings, or all of them (SC-1.71)."""

DiscardCause = Literal["evicted", "aborted", "truncated", "filtered", "left_over"]


@dataclass(frozen=True, slots=True)
class SealedSibling:
    """A finished completion whose row is in staging."""

    attempt: int
    """Attempt of its group that produced it."""

    start_version: int


@dataclass(slots=True)
class LedgerEntry:
    """A prompt whose group is neither committed nor given up (SC-9.59)."""

    group_id: GroupId
    prompt: PromptRef
    order: int
    """Place in the order in which prompts were taken."""

    state: EntryState = "reserved"
    attempt: int = -1
    """Number of the last attempt begun; -1 before the first."""

    target_step: int | None = None
    start_version: int | None = None
    relaunched: bool = False
    """It was aborted once and started again."""

    replacements: int = 0
    """Spares that its slot has used, itself included."""

    granularity: Granularity = "prompt_group"
    """Fixed when its first attempt begins; a changed configuration never reinterprets it (SC-9.70)."""

    sealed: dict[int, SealedSibling] = field(default_factory=dict)
    """Finished siblings by index, with token capture."""

    @property
    def staging(self) -> list[SampleId]:
        """Keys of all rows that it owns in staging (its receipt manifest)."""
        return [staging_key(self.group_id, done.attempt, i) for i, done in sorted(self.sealed.items())]

    @property
    def oldest_sealed(self) -> int | None:
        """Oldest start version of a finished sibling."""
        return min((done.start_version for done in self.sealed.values()), default=None)

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> LedgerEntry:
        """From what `to_json` gave."""
        fields = dict(value)
        fields["prompt"] = PromptRef(**fields["prompt"])  # type: ignore[arg-type]
        sealed: Mapping[str, Mapping[str, int]] = fields.pop("sealed", {})  # type: ignore[assignment]
        fields["sealed"] = {int(i): SealedSibling(**done) for i, done in sealed.items()}
        return cls(**fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class PromptCounts:
    """Prompts by where they are; `admitted` is the sum of the last four (CLI-41)."""

    admitted: int
    committed: int
    trained: int
    dropped: int
    discarded: int
    live: int
    discarded_by_cause: Mapping[str, int]

    @property
    def balanced(self) -> bool:
        """Every prompt is in exactly one class."""
        return self.admitted == self.trained + self.dropped + self.discarded + self.live


@dataclass(eq=False)
class LedgerUnbalanced(RunError):
    """A prompt was lost or counted twice (SC-9.61)."""

    counts: PromptCounts

    def __str__(self) -> str:
        return (
            f"the prompt ledger does not balance: {self.counts}; this is a defect of the runtime: "
            "please report it with the run folder"
        )


@dataclass(slots=True)
class PromptLedger:
    """Entries of unfinished prompts, the reserve of spare ones, and counts of all others."""

    entries: dict[GroupId, LedgerEntry] = field(default_factory=dict)
    reserve: deque[PromptRef] = field(default_factory=deque)
    """Spare prompts: taken from the dataset, not admitted, oldest first (SC-1.33)."""

    owed: list[int | None] = field(default_factory=list)
    """Groups that a gated sampler still has to get, outside its cursor: their target steps (SC-1.78)."""

    taken: int = 0
    orders: int = 0
    """Entries made so far."""

    committed: int = 0
    trained: int = 0
    dropped: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    mutations: int = 0
    """Counts every change (SC-1.63)."""

    def own(self, refs: Iterable[PromptRef]) -> list[LedgerEntry]:
        """Make entries for prompts that were just taken from the dataset."""
        refs = tuple(refs)
        entries = [self._enter(ref) for ref in refs]
        self.taken += len(refs)
        self.mutations += 1
        return entries

    def divert(self, refs: Iterable[PromptRef]) -> None:
        """Put prompts that were just taken from the dataset into the reserve (SC-1.34)."""
        refs = tuple(refs)
        self.reserve.extend(refs)
        self.taken += len(refs)
        self.mutations += 1

    def draw(self, prompts: int) -> list[LedgerEntry]:
        """Move spares into entries, to be admitted like new prompts (SC-5.55)."""
        self.mutations += 1
        return [self._enter(self.reserve.popleft()) for _ in range(prompts)]

    def draw_spare(self, target_step: int | None, *, replacements: int = 0) -> LedgerEntry:
        """Move one spare into an entry that needs no admission: for a dropped group, or for an owed one."""
        entry = self._enter(self.reserve.popleft())
        entry.state, entry.target_step, entry.replacements = "admitted", target_step, replacements
        self.mutations += 1
        return entry

    def put_back(self, entries: Iterable[LedgerEntry]) -> None:
        """Move prompts that are not admitted to the front of the reserve, in their order."""
        entries = tuple(entries)
        for entry in entries:
            del self.entries[entry.group_id]
        self.reserve.extendleft(entry.prompt for entry in reversed(entries))
        self.mutations += 1

    def owe(self, target_step: int | None) -> None:
        """A gated sampler has lost a group of an admitted batch (SC-5.49)."""
        self.owed.append(target_step)
        self.mutations += 1

    def settle_owed(self) -> int | None:
        """Strike the oldest owed group off; its target step."""
        self.mutations += 1
        return self.owed.pop(0)

    def strike_owed(self, groups: int | None = None) -> None:
        """Give owed groups up, the oldest first: so many, or all."""
        del self.owed[:groups]
        self.mutations += 1

    def _enter(self, ref: PromptRef) -> LedgerEntry:
        entry = LedgerEntry(f"e{ref.epoch}p{ref.position}", ref, self.orders)
        if entry.group_id in self.entries:
            raise RunError(f"prompt {ref.position} of epoch {ref.epoch} was taken twice")
        self.entries[entry.group_id] = entry
        self.orders += 1
        return entry

    def admit(self, entries: Iterable[LedgerEntry], target_step: int | None) -> None:
        """Stamp a dispatch batch."""
        for entry in entries:
            entry.state, entry.target_step = "admitted", target_step
        self.mutations += 1

    def begin_attempt(self, entry: LedgerEntry, start_version: int) -> int:
        """Count an attempt; returns its number."""
        entry.attempt += 1
        entry.state, entry.start_version = "generating", start_version
        self.mutations += 1
        return entry.attempt

    def seal(self, entry: LedgerEntry, sibling: int, *, attempt: int, start_version: int) -> None:
        """A sibling is finished and its row is in staging."""
        entry.sealed[sibling] = SealedSibling(attempt, start_version)
        self.mutations += 1

    def unseal(self, entry: LedgerEntry, siblings: Iterable[int] | None = None) -> None:
        """Finished siblings are to be redone: these, or all. Their rows are the caller's to clear."""
        for sibling in list(entry.sealed if siblings is None else siblings):
            del entry.sealed[sibling]
        self.mutations += 1

    def relaunch(self, entry: LedgerEntry) -> None:
        """An aborted prompt goes on under its stamp."""
        entry.state, entry.relaunched = "admitted", True
        self.mutations += 1

    def commit(self, group_id: GroupId) -> None:
        """The group is in the buffer now."""
        del self.entries[group_id]
        self.committed += 1
        self.mutations += 1

    def drop(self, group_id: GroupId) -> None:
        """Give a prompt up after its attempts are spent (SC-1.31)."""
        del self.entries[group_id]
        self.dropped += 1
        self.mutations += 1

    def discard(self, group_id: GroupId, cause: DiscardCause) -> None:
        """Give an unfinished prompt up without training on it."""
        del self.entries[group_id]
        self.discard_committed(1, cause)

    def discard_committed(self, groups: int, cause: DiscardCause) -> None:
        """Count committed groups that will not be trained on."""
        if groups:
            self.discarded[cause] += groups
            self.mutations += 1

    def reopen(
        self, group_id: GroupId, prompt: PromptRef, *, attempt: int, target_step: int | None
    ) -> LedgerEntry:
        """A committed group that cannot be kept becomes unfinished again (SC-9.64)."""
        entry = LedgerEntry(group_id, prompt, -1, "admitted", attempt, target_step)
        self.entries[group_id] = entry
        self.committed -= 1
        self.mutations += 1
        return entry

    def train(self, groups: int) -> None:
        """Groups of a step that closed."""
        self.trained += groups
        self.mutations += 1

    def adopt(self, other: PromptLedger) -> None:
        """Become the other ledger; whoever holds this one sees it."""
        for name in (
            "entries",
            "reserve",
            "owed",
            "taken",
            "orders",
            "committed",
            "trained",
            "dropped",
            "discarded",
        ):
            setattr(self, name, getattr(other, name))
        self.mutations += 1

    def counts(self, *, buffered: int, claimed: int, ended: bool = False) -> PromptCounts:
        """Prompts by class. With `ended`, what is still live counts as left over."""
        live = len(self.entries) + len(self.reserve) + buffered + claimed
        causes = dict(self.discarded)
        if ended and live:
            causes["left_over"] = causes.get("left_over", 0) + live
            live = 0
        return PromptCounts(
            admitted=self.taken,
            committed=self.committed,
            trained=self.trained,
            dropped=self.dropped,
            discarded=sum(causes.values()),
            live=live,
            discarded_by_cause={
                cause: causes.get(cause, 0)
                for cause in ("evicted", "aborted", "truncated", "filtered", "left_over")
            },
        )

    def check(self, *, buffered: int, claimed: int) -> None:
        """Raise unless every prompt is in exactly one class."""
        counts = self.counts(buffered=buffered, claimed=claimed)
        if not counts.balanced:
            raise LedgerUnbalanced(counts)

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {
            "entries": [entry.to_json() for entry in self.entries.values()],
            "reserve": [asdict(ref) for ref in self.reserve],
            "owed": list(self.owed),
            "taken": self.taken,
            "orders": self.orders,
            "committed": self.committed,
            "trained": self.trained,
            "dropped": self.dropped,
            "discarded": dict(self.discarded),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> PromptLedger:
        """From what `to_json` gave."""
        fields = dict(value)
        entries = [LedgerEntry.from_json(entry) for entry in fields.pop("entries")]  # type: ignore[union-attr]
        discarded = Counter(fields.pop("discarded"))  # type: ignore[arg-type]
        reserve = deque(PromptRef(**ref) for ref in fields.pop("reserve"))  # type: ignore[union-attr]
        return cls({e.group_id: e for e in entries}, reserve, discarded=discarded, **fields)  # type: ignore[arg-type]
