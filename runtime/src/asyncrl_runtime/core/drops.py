"""What a prompt that is given up costs: the run's budgets, and the step that counted on its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from asyncrl_runtime.core.ledger import LedgerEntry, PromptLedger
from asyncrl_runtime.core.replay import ReplayBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPolicy:
    """How a step meets a drop (SC-2.77 to 2.79)."""

    replaces: bool = False
    """A spare prompt takes the slot; False: the step closes with fewer groups."""

    max_replacements: int = 1
    """Spares that one slot may use."""

    reserve_mark: int = 1
    """Prompts the reserve is kept at, at least."""


@dataclass(slots=True)
class StepAccounts:
    """Per target step: groups that will never come, spares that did, groups borrowed from later steps."""

    shortfall: Counter[int] = field(default_factory=Counter)
    unserved: Counter[int] = field(default_factory=Counter)
    """The part of the shortfall that was owed when the data ended: no drop, and no failure (SC-5.79)."""

    replaced: Counter[int] = field(default_factory=Counter)
    promoted: Counter[int] = field(default_factory=Counter)

    def target_groups(self, step: int, groups_per_step: int) -> int:
        """Groups the step can still get (SC-5.50). Read it anew after every await."""
        return groups_per_step - self.shortfall[step]

    def credit_unserved(self, step: int) -> None:
        """A group that is owed to the step and that no prompt is left for."""
        self.shortfall[step] += 1
        self.unserved[step] += 1

    def close(self, step: int) -> None:
        """Forget the step that was trained, and those before it (SC-5.53)."""
        for counts in self._maps().values():
            for key in [key for key in counts if key <= step]:
                del counts[key]

    def clear(self) -> None:
        """Forget all steps."""
        for counts in self._maps().values():
            counts.clear()

    def to_json(self) -> dict[str, dict[str, int]]:
        """As JSON values."""
        return {name: {str(k): n for k, n in counts.items() if n} for name, counts in self._maps().items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, int]]) -> StepAccounts:
        """From what `to_json` gave; a map that is missing is empty."""
        accounts = cls()
        for name, counts in accounts._maps().items():
            counts.update({int(step): n for step, n in value.get(name, {}).items()})
        return accounts

    def adopt(self, other: StepAccounts) -> None:
        """Become the other; whoever holds this one sees it."""
        for name, counts in self._maps().items():
            counts.clear()
            counts.update(other._maps()[name])

    def _maps(self) -> dict[str, Counter[int]]:
        return {
            "shortfall": self.shortfall,
            "unserved": self.unserved,
            "replaced": self.replaced,
            "promoted": self.promoted,
        }


@dataclass(slots=True, kw_only=True)
class FailureBudgets:
    """What a run may lose before it ends: prompts for their own fault, and drops in a row for the fleet's.

    They are separate: a bad dataset does not use up the outage allowance (SC-8.29). Counts survive a
    restart (SC-8.33).
    """

    max_skipped: int = 0
    max_consecutive: int = 0
    skipped: int = 0
    """Prompts given up for data failures, over the whole run."""

    infra_drops: int = 0
    consecutive: int = 0
    """Infra drops since the last commit."""

    most_consecutive: int = 0

    def spend_on_data(self) -> bool:
        """Count a prompt with spent data attempts; False if the budget is empty (SC-8.28)."""
        if self.skipped >= self.max_skipped:
            return False
        self.skipped += 1
        return True

    def spend_on_infra(self) -> bool:
        """Count a prompt with spent infra attempts; False if that is one in a row too many (SC-8.27)."""
        if self.consecutive >= self.max_consecutive:
            return False
        self.consecutive += 1
        self.infra_drops += 1
        self.most_consecutive = max(self.most_consecutive, self.consecutive)
        return True

    def committed(self) -> None:
        """A group arrived: the fleet works."""
        self.consecutive = 0

    def to_json(self) -> dict[str, int]:
        """The counts, without the bounds."""
        return {name: n for name, n in asdict(self).items() if not name.startswith("max_")}

    def restore(self, value: Mapping[str, int]) -> None:
        """Go on from saved counts; a count that is missing is 0."""
        for name in self.to_json():
            setattr(self, name, int(value.get(name, 0)))


def drop(
    entry: LedgerEntry,
    *,
    ledger: PromptLedger,
    buffer: ReplayBuffer,
    accounts: StepAccounts,
    policy: DropPolicy,
    trainer_version: int,
    gated: bool,
) -> LedgerEntry | None:
    """Give a prompt up; the spare that takes its slot, or None when its step shrinks (SC-5.40 to 5.42).

    One block without an await: ledger, reserve, promotion and shortfall change together. A step that a
    group was borrowed for is repaid by the spare, which goes to the lender's step. An unstamped group under
    a gated sampler is owed from then on.
    """
    target = entry.target_step
    spare: LedgerEntry | None = None
    if (
        policy.replaces
        and target is not None
        and entry.replacements < policy.max_replacements
        and ledger.reserve
    ):
        spare = ledger.draw_spare(target, replacements=entry.replacements + 1)
        lender = buffer.promote_ready_group(to_target_step=target) if target >= trainer_version else None
        if lender is not None:
            accounts.promoted[target] += 1
            spare.target_step = lender
    ledger.drop(entry.group_id)
    if spare is None:
        if target is not None:
            accounts.shortfall[target] += 1
        elif gated:
            ledger.owe(None)
    return spare
