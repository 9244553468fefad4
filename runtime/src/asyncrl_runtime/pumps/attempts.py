"""Attempts that are registered in flight, and ending those that nobody needs any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl_runtime.core.errors import RolloutFailure
from asyncrl_runtime.core.records import GroupRecord
from asyncrl_runtime.core.replay import Slot


@dataclass(slots=True, eq=False)
class Attempt:
    """A rollout that is registered in flight."""

    slot: Slot
    task: asyncio.Task[GroupRecord]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the task is done, or given up on."""

    aborted: bool = False
    straddled: bool = False

    def __post_init__(self) -> None:
        self.task.add_done_callback(lambda _: self.ended.set())


@dataclass(frozen=True, slots=True)
class Aborted:
    """How many attempts were aborted, and how many of them did not end in time."""

    attempts: int = 0
    detached: int = 0


async def abort(attempts: Sequence[Attempt], *, grace_seconds: float) -> Aborted:
    """Cancel these attempts and wait for their end (SC-5.35).

    One that does not end in time is detached: its late result is nobody's. Raises what a cancelled
    rollout raised instead of ending, unless it is an ordinary failure (SC-5.36).
    """
    if not attempts:
        return Aborted()
    for attempt in attempts:
        attempt.aborted = True
        attempt.task.cancel()
    _, stuck = await asyncio.wait([attempt.task for attempt in attempts], timeout=grace_seconds)
    for attempt in attempts:
        attempt.ended.set()
    errors = [
        error
        for attempt in attempts
        if attempt.task.done()
        and not attempt.task.cancelled()
        and isinstance(error := attempt.task.exception(), Exception)
        and not isinstance(error, RolloutFailure)
    ]
    if errors:
        raise ExceptionGroup("rollouts failed while they were aborted", errors)
    await asyncio.sleep(0)
    return Aborted(len(attempts), len(stuck))
