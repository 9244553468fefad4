"""What `asyncrl chaos` does to a run: one table of words, and a seeded plan of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from asyncrl_api.job import JobSpec
from asyncrl_runtime.core.errors import RunError


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One word of the scenario."""

    word: str
    help: str
    lacking: Callable[[JobSpec], str | None] = lambda spec: None
    """Why a job cannot go on after it, or has nothing it could happen to."""


def _watched_shards(spec: JobSpec) -> str | None:
    health = spec.async_rl.generation_fleet_health
    if spec.generation.shards < 2:
        return "the job has one shard, and nothing is left without it"
    if not health.enabled:
        return "asyncRL.generationFleetHealth.enabled is false, so lost shards stay lost"
    if health.on_dead_shard != "restart":
        return f"asyncRL.generationFleetHealth.onDeadShard is {health.on_dead_shard}: lost shards stay lost"
    return None


def _saves(spec: JobSpec) -> str | None:
    return (
        None if spec.checkpointing.enabled else "checkpointing.enabled is false, so a new start begins anew"
    )


def _keeps_several(spec: JobSpec) -> str | None:
    keep = spec.checkpointing.keep_top_k
    return _saves(spec) or (
        "checkpointing.keepTopK is 1, so no older checkpoint could stand in" if keep == 1 else None
    )


def _snapshots(spec: JobSpec) -> str | None:
    interval = spec.rollout_checkpointing.snapshot_attempt_interval_seconds
    return _saves(spec) or (
        "rolloutCheckpointing.snapshotAttemptIntervalSeconds is not set, so there are no snapshots"
        if interval is None
        else None
    )


def _advantages(spec: JobSpec) -> str | None:
    workers = spec.async_rl.advantage_workers
    return _saves(spec) if workers else "asyncRL.advantageWorkers is 0: the controller works them out itself"


def _workers(spec: JobSpec) -> str | None:
    return None if spec.environment.function else "the job has no environment with processes of its own"


KINDS: tuple[FaultKind, ...] = (
    FaultKind("kill-shard", "SIGKILL one generation shard", _watched_shards),
    FaultKind("freeze-shard", "SIGSTOP one generation shard for good", _watched_shards),
    FaultKind("slow-shard", "stop and continue one shard ten times a second, for a few seconds"),
    FaultKind("kill-environment", "SIGKILL a worker of the environment", _workers),
    FaultKind("freeze-environment", "SIGSTOP a worker of the environment for good", _workers),
    FaultKind("freeze-trainer", "SIGSTOP the trainer for a second or two"),
    FaultKind("slow-trainer", "stop and continue the trainer ten times a second, for a few seconds"),
    FaultKind("kill-trainer", "SIGKILL the trainer; the job is started again", _saves),
    FaultKind(
        "kill-advantages",
        "SIGKILL an advantage worker; if that ends the start, the job is started again",
        _advantages,
    ),
    FaultKind("freeze-run", "SIGSTOP the controller for a second or two"),
    FaultKind("kill-run", "SIGKILL the controller; the job is started again", _saves),
    FaultKind("stop-run", "SIGTERM the controller; the job is started again", _saves),
    FaultKind(
        "corrupt-checkpoint",
        "change a byte of the newest checkpoint and SIGKILL the controller; the job is started again",
        _keeps_several,
    ),
    FaultKind(
        "corrupt-snapshot",
        "change a byte of the newest rollout snapshot and SIGKILL the controller; the job is started again",
        _snapshots,
    ),
)
WORDS = tuple(kind.word for kind in KINDS)


@dataclass(eq=False)
class UnknownFault(RunError):
    """A word that names no fault."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        verb = "is no fault" if len(self.words) == 1 else "are no faults"
        return f"--faults: {', '.join(self.words)} {verb}; there are {', '.join(WORDS)}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    word: str
    after_seconds: float
    """Of work of the run, since the fault before it."""

    choice: float
    """Which of the candidates, 0 to 1."""

    seconds: float
    """How long, where it passes."""


def kinds_for(spec: JobSpec, asked: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Words that a job can survive, and why the others are left out. Raises UnknownFault."""
    unknown = tuple(word for word in asked if word not in WORDS)
    if unknown:
        raise UnknownFault(unknown)
    wanted = [kind for kind in KINDS if not asked or kind.word in asked]
    lacking = {kind.word: problem for kind in wanted if (problem := kind.lacking(spec)) is not None}
    return [kind.word for kind in wanted if kind.word not in lacking], lacking


def plan(seed: int, words: Iterable[str], *, count: int, mean_gap_seconds: float) -> list[Fault]:
    """`count` faults at random distances; the same seed gives the same plan."""
    rng, words = random.Random(f"chaos/{seed}"), list(words)
    return [
        Fault(
            word=rng.choice(words),
            after_seconds=min(rng.expovariate(1 / mean_gap_seconds), 4 * mean_gap_seconds),
            choice=rng.random(),
            seconds=rng.uniform(0.5, 2.0),
        )
        for _ in range(count if words else 0)
    ]
