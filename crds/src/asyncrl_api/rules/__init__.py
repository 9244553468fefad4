"""Rules V-1 to V-113 about one object: one table for the API server (CEL) and for Python."""

from collections.abc import Iterator
from dataclasses import dataclass

from asyncrl_api.derived import Derived
from asyncrl_api.job import AsyncRLJob
from asyncrl_api.rules.algorithm import ALGORITHM_RULES
from asyncrl_api.rules.changes import CHANGE_RULES
from asyncrl_api.rules.failures import FAILURE_RULES
from asyncrl_api.rules.inputs import INPUT_RULES
from asyncrl_api.rules.loss import LOSS_RULES
from asyncrl_api.rules.placement import PLACEMENT_RULES
from asyncrl_api.rules.sampler import SAMPLER_RULES
from asyncrl_api.rules.storage import STORAGE_RULES
from asyncrl_api.rules.table import Rule, nodes

RULES: tuple[Rule, ...] = (
    *ALGORITHM_RULES,
    *LOSS_RULES,
    *SAMPLER_RULES,
    *FAILURE_RULES,
    *STORAGE_RULES,
    *INPUT_RULES,
    *PLACEMENT_RULES,
    *CHANGE_RULES,
)


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that an object breaks."""

    rule: Rule
    path: str
    """Dotpath of the field to report it at."""

    message: str


def violations(job: AsyncRLJob, *, cluster: bool = False) -> Iterator[Violation]:
    """Give every rule that the object breaks by itself, in the order of the table.

    With `cluster`, rules that only a cluster asks for count too.
    """
    derived = Derived(job.spec)
    for rule in RULES:
        if rule.update or (rule.cluster and not cluster):
            continue
        for path, node in nodes(job, rule.where):
            if not rule.holds(node, derived):
                yield Violation(rule, rule.about or path + rule.field, rule.text(node, derived))


def change_violations(new: AsyncRLJob, old: AsyncRLJob) -> Iterator[Violation]:
    """Give every rule about changes that going from `old` to `new` breaks."""
    for rule in RULES:
        if not rule.update:
            continue
        before = dict(nodes(old, rule.where))
        for path, node in nodes(new, rule.where):
            if not rule.holds(node, before[path]):
                yield Violation(rule, rule.about or path + rule.field, rule.text(node, before[path]))
