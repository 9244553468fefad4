"""What a checkpoint's rollout state becomes under the job that resumes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from asyncrl_runtime.core.drops import StepAccounts
from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.ledger import LedgerEntry, PromptLedger
from asyncrl_runtime.core.records import STAGING, GroupMeta, PromptRef, SampleId

SCHEMA_VERSION = 1


@dataclass(eq=False)
class RestoreRefused(RunError):
    """A checkpoint is whole and does not fit the job (SC-9.83)."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"checkpoint {self.path} does not fit this job: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The controller's state at one instant, as a checkpoint stores it (SC-9.25)."""

    steps: int
    trainer_version: int
    content_version: int
    consumed_groups: int
    total_valid_tokens: int
    policy_optimizer_steps: int
    groups_per_step: int
    generations: int
    sampler: str
    cursor: int
    data: Mapping[str, int]
    dataset: Mapping[str, object]
    """Name, length and fingerprint of the prompt source."""

    ledger: Mapping[str, object]
    index: tuple[GroupMeta, ...]
    """Ready groups in buffer order; their rows are in the data-plane snapshot."""

    rolled_back_groups: int = 0
    """Groups of the index that held no room when it was read: the open step's, and open restore debt."""

    accounts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Shortfall, replacements and promotions of steps that are not closed."""

    budgets: Mapping[str, int] = field(default_factory=dict)
    """Prompts given up so far, by budget (SC-8.33)."""

    fleet: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Restart attempts by shard."""

    tallies: Mapping[str, object] = field(default_factory=dict)
    """Sums over the steps so far that only reports show: tokens, staleness, seconds."""

    has_rollouts: bool = True
    """Index, ledger entries and rows are authoritative; False when the sampler cannot restore them."""

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, object], *, path: str) -> Cut:
        """From what `to_json` gave. Raises RestoreRefused for another schema."""
        fields = dict(value)
        version = fields.pop("schema_version", None)
        if version != SCHEMA_VERSION:
            raise RestoreRefused(
                path, f"its schema version is {version}, and this release reads {SCHEMA_VERSION}"
            )
        fields["index"] = tuple(_group_from_json(group) for group in fields["index"])  # type: ignore[union-attr]
        return cls(**fields)  # type: ignore[arg-type]


def _group_from_json(value: Mapping[str, object]) -> GroupMeta:
    fields = dict(value)
    fields["prompt"] = PromptRef(**fields["prompt"])  # type: ignore[arg-type]
    for name in ("sample_ids", "lengths", "weight_versions", "reward_components"):
        fields[name] = tuple(fields[name])  # type: ignore[arg-type]
    return GroupMeta(**fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What to put where."""

    ready: tuple[GroupMeta, ...]
    """Groups that go back into the buffer, in order."""

    ledger: PromptLedger
    accounts: StepAccounts
    cursor: int | None
    """Exact dispatch index, or None: start counting at the restored step."""

    data: Mapping[str, int] | None
    """Position in the prompts, or None: they are others than before, and begin at the beginning (SC-9.88)."""

    clear: tuple[str, ...]
    """Rows that are not kept."""

    notes: tuple[str, ...]


def plan_restore(
    cut: Cut,
    *,
    path: str,
    sampler: str,
    stamps: bool,
    capacity: int,
    groups_per_step: int,
    generations: int,
    dataset: Mapping[str, object],
    drop_incomplete_targets: bool = False,
) -> RestorePlan:
    """Decide what is kept, what is generated again, and where the cursor stands.

    Changes nothing; raises RestoreRefused before anything was touched.
    """
    _check_fit(cut, path, groups_per_step, generations, dataset)
    data = cut.data if not _changes(cut, dataset) else None
    ledger = PromptLedger.from_json(cut.ledger)
    if not cut.has_rollouts:
        return _generated_again(ledger, data, clear=(), note="no buffered groups were saved")
    if sampler != cut.sampler:
        for group in cut.index:
            ledger.reopen(group.group_id, group.prompt, attempt=group.attempt, target_step=None)
        note = (
            f"the sampler changed from {cut.sampler} to {sampler}: "
            f"{len(ledger.entries)} prompts are generated again"
        )
        return _generated_again(ledger, data, clear=_rows(cut.index), note=note)
    accounts = StepAccounts.from_json(cut.accounts)
    stamped = stamps or any(group.target_step is not None for group in cut.index)
    kept, given_back, notes = _kept(
        cut, ledger, accounts, path, stamped, capacity, groups_per_step, drop_incomplete_targets
    )
    for group in given_back:
        ledger.reopen(group.group_id, group.prompt, attempt=group.attempt, target_step=group.target_step)
    for entry in ledger.entries.values():
        if entry.state == "generating":
            entry.state = "admitted"
    if stamped:
        _check_steps(cut, kept, ledger, accounts, path, groups_per_step)
    return RestorePlan(
        ready=tuple(kept),
        ledger=ledger,
        accounts=accounts,
        cursor=cut.cursor,
        data=data,
        clear=_rows(given_back),
        notes=tuple(notes),
    )


def _check_fit(
    cut: Cut, path: str, groups_per_step: int, generations: int, dataset: Mapping[str, object]
) -> None:
    for name, saved, now in (
        ("numPromptsPerStep", cut.groups_per_step, groups_per_step),
        ("numGenerationsPerPrompt", cut.generations, generations),
    ):
        if saved != now:
            raise RestoreRefused(path, f"{name} was {saved} when it was saved and is {now} now: set it back")
    owned = len(cut.index) + sum(len(cut.ledger[name]) for name in ("entries", "reserve"))  # type: ignore[arg-type]
    changed = _changes(cut, dataset)
    if owned and changed:
        facts = ", ".join(f"{key} {cut.dataset.get(key)} → {dataset.get(key)}" for key in changed)
        raise RestoreRefused(
            path,
            f"the prompts changed ({facts}) while {owned} of the old ones are unfinished: "
            "restore the old data",
        )


def _changes(cut: Cut, dataset: Mapping[str, object]) -> list[str]:
    return [key for key in ("name", "length", "fingerprint") if cut.dataset.get(key) != dataset.get(key)]


def _kept(
    cut: Cut,
    ledger: PromptLedger,
    accounts: StepAccounts,
    path: str,
    stamped: bool,
    capacity: int,
    groups_per_step: int,
    drop_incomplete: bool,
) -> tuple[list[GroupMeta], list[GroupMeta], list[str]]:
    if stamped:
        unfinished = sum(entry.state != "reserved" for entry in ledger.entries.values())
        if len(cut.index) + unfinished > capacity:
            raise RestoreRefused(
                path,
                f"it holds {len(cut.index) + unfinished} groups that belong to steps and "
                f"spec.asyncRL.maxBufferedRollouts is {capacity}: raise it to {len(cut.index) + unfinished}",
            )
        if not drop_incomplete:
            return list(cut.index), [], []
        ready = Counter(group.target_step for group in cut.index)
        whole = {
            step
            for step, groups in ready.items()
            if step is None or groups >= accounts.target_groups(step, groups_per_step)
        }
        kept = [g for g in cut.index if g.target_step in whole]
        given_back = [g for g in cut.index if g.target_step not in whole]
        return kept, given_back, [f"{len(given_back)} groups of incomplete steps are generated again"]
    limit = capacity + cut.rolled_back_groups
    if len(cut.index) <= limit:
        return list(cut.index), [], []
    order = {group.group_id: place for place, group in enumerate(cut.index)}
    freshest = sorted(cut.index, key=lambda g: (g.start_weight, order[g.group_id]))[-limit:]
    keep = {group.group_id for group in freshest}
    given_back = [replace(g, target_step=None) for g in cut.index if g.group_id not in keep]
    return (
        [g for g in cut.index if g.group_id in keep],
        given_back,
        [f"{len(given_back)} groups above maxBufferedRollouts {capacity} are generated again"],
    )


def _check_steps(
    cut: Cut,
    kept: list[GroupMeta],
    ledger: PromptLedger,
    accounts: StepAccounts,
    path: str,
    groups_per_step: int,
) -> None:
    """Every admitted step must own exactly its groups, and none may lie above the cursor (SC-9.60, 9.76)."""
    ready = Counter(group.target_step for group in kept)
    unfinished = Counter(e.target_step for e in ledger.entries.values() if e.state != "reserved")
    unfinished.update(ledger.owed)
    highest = max((t for t in [*ready, *unfinished] if t is not None), default=cut.cursor)
    if highest > cut.cursor:
        raise RestoreRefused(path, f"it holds groups of step {highest} above its cursor {cut.cursor}")
    for step in range(cut.trainer_version, cut.cursor + 1):
        lost = accounts.shortfall[step]
        if ready[step] + unfinished[step] + lost != groups_per_step:
            raise RestoreRefused(
                path,
                f"step {step} owns {ready[step]} ready and {unfinished[step]} unfinished groups, with {lost} "
                f"lost, instead of {groups_per_step}",
            )


def _generated_again(
    ledger: PromptLedger, data: Mapping[str, int] | None, *, clear: tuple[str, ...], note: str
) -> RestorePlan:
    """Keep no group: prompts wait for a new admission, without stamps; nothing is owed any more."""
    ledger.strike_owed()
    for entry in ledger.entries.values():
        entry.state, entry.target_step, entry.replacements = "reserved", None, 0
    return RestorePlan(
        ready=(), ledger=ledger, accounts=StepAccounts(), cursor=None, data=data, clear=clear, notes=(note,)
    )


def check_inventory(cut: Cut, held: Collection[SampleId], *, path: str) -> None:
    """Rows and index must name the same groups (SC-9.83). Raises RestoreRefused.

    A staging row that an entry names and that is missing only costs its sibling, see `reconcile_staging`.
    """
    known = {sample for group in cut.index for sample in group.sample_ids}
    canonical = {key for key in held if not key.startswith(STAGING)}
    if canonical != known:
        raise RestoreRefused(
            path,
            f"its data plane lacks {len(known - canonical)} rows of its index and holds "
            f"{len(canonical - known)} that the index does not know",
        )


def reconcile_staging(ledger: PromptLedger, held: Collection[SampleId]) -> tuple[str, ...]:
    """Demote finished siblings without a row to missing; the staging rows that nobody needs (SC-9.74)."""
    named = set()
    for entry in ledger.entries.values():
        keys = dict(zip(sorted(entry.sealed), entry.staging, strict=True))
        gone = [i for i, key in keys.items() if key not in held or entry.granularity == "prompt_group"]
        if gone:
            ledger.unseal(entry, gone)
        named.update(entry.staging)
    return tuple(sorted(key for key in held if key.startswith(STAGING) and key not in named))


def _rows(groups: tuple[GroupMeta, ...] | list[GroupMeta]) -> tuple[str, ...]:
    return tuple(sample for group in groups for sample in group.sample_ids)


def entries_in_order(ledger: PromptLedger) -> list[LedgerEntry]:
    """Unfinished prompts in the order in which they were taken."""
    return sorted(ledger.entries.values(), key=lambda entry: entry.order)
