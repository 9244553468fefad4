"""A plan while it is being made."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from asyncrl_api.status import AttemptStatus, JobStatus, Phase
from asyncrl_operator.core.actions import Action, Plan, Tell
from asyncrl_operator.core.conditions import MAX_MESSAGE, Conditions, shortened
from asyncrl_operator.core.facts import Exit, Pod, RayCluster, Report, Snapshot
from asyncrl_operator.manifests.names import attempt_name

ACTIVE = ("Queued", "Provisioning", "Initializing", "Running", "Degraded", "Checkpointing")
TERMINAL = ("Succeeded", "Failed")


@dataclass(slots=True)
class Draft:
    """The status as it will be, and what is to be done."""

    seen: Snapshot
    now: datetime
    status: JobStatus
    conditions: Conditions
    actions: list[Action] = field(default_factory=list)
    again: timedelta | None = None
    gone: bool = False

    @classmethod
    def of(cls, seen: Snapshot, now: datetime) -> Draft:
        """As it stands."""
        generation = seen.job.identity.generation
        conditions = Conditions.of(seen.job.status.conditions, generation=generation, now=now)
        return cls(seen, now, seen.job.status, conditions)

    def update(self, **fields: Any) -> None:
        """Replace parts of the status."""
        self.status = self.status.model_copy(update=fields)

    def say(self, phase: Phase, reason: str = "", message: str = "") -> None:
        """Where the job stands."""
        text = shortened(message, MAX_MESSAGE)
        self.update(phase=phase, reason=reason or None, message=text or None)

    def do(self, *actions: Action) -> None:
        """Ask for actions, in order."""
        self.actions.extend(actions)

    def tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Leave an event."""
        self.do(Tell(reason, message, warning))

    def look_again(self, seconds: float) -> None:
        """No later than this."""
        wait = timedelta(seconds=max(0.0, seconds))
        self.again = wait if self.again is None else min(self.again, wait)

    @property
    def phase(self) -> Phase | None:
        """Where the job stands."""
        return self.status.phase

    @property
    def attempt(self) -> AttemptStatus | None:
        """The attempt that runs, or ran last."""
        return self.status.attempt

    @property
    def cluster(self) -> RayCluster | None:
        """That of the attempt, if it is this job's."""
        name = self.attempt.ray_cluster_name if self.attempt else None
        return next((c for c in self.own_clusters if c.name == name), None)

    @property
    def own_clusters(self) -> list[RayCluster]:
        """All that belong to the job."""
        return [c for c in self.seen.clusters if c.job_uid == self.seen.job.identity.uid]

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Of the attempt."""
        number = self.attempt.number if self.attempt else None
        return tuple(pod for pod in self.seen.pods if pod.attempt == number)

    @property
    def head(self) -> Pod | None:
        """The attempt's head pod; the first one where KubeRay has made another."""
        heads = [pod for pod in self.pods if pod.role == "controller"]
        first = next((pod for pod in heads if pod.uid == self.seen.first_head), None)
        return first or min(heads, key=lambda pod: pod.created, default=None)

    @property
    def report(self) -> Report | None:
        """The newest report, if it is of the attempt's head pod."""
        report, head = self.seen.report, self.head
        return report if report is not None and head is not None and report.pod_uid == head.uid else None

    @property
    def orderly_exit(self) -> Exit | None:
        """How the controller ended its run, if it has."""
        container = self.head.container("controller") if self.head is not None else None
        exit = container.exit if container is not None else None
        return exit if exit is not None and exit.code == 0 else None

    @property
    def next_attempt(self) -> int:
        """Number of the attempt that follows."""
        return ((self.attempt.number if self.attempt else None) or 0) + 1

    def has_secret(self, attempt: int) -> bool:
        """Whether an attempt's Secret exists."""
        return ("Secret", attempt_name(self.seen.job.identity.name, attempt)) in self.seen.children

    def plan(self) -> Plan:
        """What came out."""
        final = self.status.model_copy(
            update={
                "conditions": self.conditions.listed(),
                "observed_generation": self.seen.job.identity.generation,
            }
        )
        return Plan(tuple(self.actions), final, self.again, self.gone)
