"""From a manifest's object to a job, or to everything that is wrong with it at once (API-2, SC-2.5)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.rules import Violation, change_violations, violations

UNSET = object()


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a manifest."""

    path: str
    """Dotpath as the user wrote it, with indices of list entries. Empty: the manifest as a whole."""

    kind: str
    """Id of a rule such as V-41, else missing, unknown, renamed, type, choice, bound, length or form."""

    message: str
    """What is wrong and the bound, a colon, the way out."""

    value: object = UNSET
    """What was there; `UNSET` if nothing was."""

    nearest: str | None = None
    """For an unknown key: the known one that was most likely meant."""

    def __str__(self) -> str:
        if self.kind.startswith("V-"):
            return f"{self.path}: [{self.kind}] {self.message}"
        return self.message


@dataclass(eq=False)
class ManifestInvalid(Exception):
    """A manifest breaks the schema or rules."""

    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def parse(raw: object, *, cluster: bool = False) -> AsyncRLJob:
    """Check a manifest's object and give the job with the schema's defaults.

    With `cluster`, rules count too that only a cluster asks for.

    Raises:
        ManifestInvalid: it breaks the schema or rules; all problems are in it.
    """
    job, problems = _read(raw, cluster)
    if job is None or problems:
        raise ManifestInvalid(tuple(problems))
    return job


def parse_change(new: object, old: AsyncRLJob, *, cluster: bool = True) -> AsyncRLJob:
    """Check a manifest that is to replace a job: its own rules, and those about changes.

    Raises:
        ManifestInvalid: it breaks the schema or rules; all problems are in it.
    """
    job, problems = _read(new, cluster)
    if job is not None:
        problems += [_of_rule(broken, job) for broken in change_violations(job, old)]
    if job is None or problems:
        raise ManifestInvalid(tuple(problems))
    return job


def _read(raw: object, cluster: bool) -> tuple[AsyncRLJob | None, list[Problem]]:
    """The job as far as it can be read, and what is wrong with it."""
    if not isinstance(raw, Mapping):
        found = "empty" if raw is None else f"a {type(raw).__name__}"
        message = f"the manifest is {found}, not an object: begin with apiVersion, kind, metadata and spec"
        return None, [Problem("", "type", message, raw)]
    cleaned = without_nulls(raw, AsyncRLJob)
    try:
        job = AsyncRLJob.model_validate(cleaned, by_alias=True, by_name=False)
    except ValidationError as error:
        from asyncrl_api import problems  # only a wrong manifest pays for reading the models' docs

        return problems.explain_errors(cleaned, error, lambda part: _broken_rules(part, cluster))
    return job, _broken_rules(job, cluster)


def _broken_rules(job: AsyncRLJob, cluster: bool) -> list[Problem]:
    return [_of_rule(broken, job) for broken in violations(job, cluster=cluster)]


def _of_rule(broken: Violation, job: AsyncRLJob) -> Problem:
    return Problem(broken.path, broken.rule.id, broken.message, value_at(job, broken.path))


def value_at(job: AsyncRLJob, path: str) -> object:
    """Value at a dotpath of a job, with defaults; `UNSET` where nothing is."""
    from asyncrl_api.rules.table import snake

    node: Any = job
    for step in path.replace("[", ".").replace("]", "").split("."):
        if isinstance(node, Mapping):
            node = node.get(step, UNSET)
        elif isinstance(node, tuple):
            node = node[int(step)]
        else:
            node = getattr(node, snake(step), UNSET)
    return UNSET if node is None else node


def without_nulls(raw: Any, model: type[BaseModel]) -> Any:
    """Leave keys out whose value is null, except where null is a value."""
    if not has_null(raw):
        return raw
    from asyncrl_api.nulls import prune

    return prune(raw, model)


def has_null(raw: Any) -> bool:
    """Whether null occurs anywhere."""
    return any(value is None for value in _leaves(raw))


def _leaves(raw: Any) -> Iterator[Any]:
    if isinstance(raw, Mapping):
        for value in raw.values():
            yield from _leaves(value)
    elif isinstance(raw, list | tuple):
        for value in raw:
            yield from _leaves(value)
    else:
        yield raw
