"""The stall watchdog: notices that nothing moves any more, and says where everything stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.ports.environment import Environment
from asyncrl_runtime.ports.metrics import MetricRecord, MetricSink
from asyncrl_runtime.pumps.busy import Busy
from asyncrl_runtime.pumps.gauges import rollout_gauges
from asyncrl_runtime.pumps.observer import Observer
from asyncrl_runtime.pumps.train import TrainPump


@dataclass(eq=False)
class Stalled(RunError):
    """No group was committed and no step completed for too long (SC-8.46)."""

    idle_seconds: float
    timeout_seconds: float
    inflight: int
    committed: int
    step: int
    dump: str
    """The file that the stacks were written to."""

    def __str__(self) -> str:
        return (
            f"no group was committed and no step completed for {self.idle_seconds:.0f} s "
            f"(spec.asyncRL.stallWatchdog.stallTimeoutSeconds {self.timeout_seconds:g}): step {self.step}, "
            f"{self.committed} groups committed, {self.inflight} in flight; what every task waits for is in "
            f"{self.dump}; run the job again, it goes on from its newest checkpoint"
        )


@dataclass(eq=False)
class EnvironmentUnhealthy(RunError):
    """An environment says that it cannot judge, or says nothing (SC-8.12)."""

    environment: str
    problem: str

    def __str__(self) -> str:
        return (
            f"environment {self.environment} is not well: {self.problem}; repair it, or set "
            "spec.asyncRL.stallWatchdog.stallAction to warn to go on without asking"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogSettings:
    """How often it looks, and what a stall leads to (SC-2.90 to 2.93)."""

    interval_seconds: float
    stall_timeout_seconds: float
    action: Literal["warn", "abort"]
    checks_environments: bool


@dataclass(slots=True, kw_only=True, eq=False)
class Watchdog:
    """Looks at fixed intervals, on its own; it never waits for what it watches.

    Progress is a commit or a completed step. A wedge with nothing in flight is a stall as well.
    """

    settings: WatchdogSettings
    train: TrainPump
    environment: Environment
    busy: Busy
    metrics: MetricSink
    observer: Observer
    wall_clock: Callable[[], float]
    dump: Callable[[str], str]
    """Writes the stacks of all tasks and threads; the path of the file."""

    check_fleet: Callable[[], None] = lambda: None
    """Raises when too few shards serve. Asked after the tick's numbers are out (SC-8.47)."""

    gauges: Callable[[], Mapping[str, float]] = dict
    """More numbers of the tick."""

    ticks: int = field(default=0, init=False)
    stalled: bool = field(default=False, init=False)
    loop_lag_seconds: float = field(default=0.0, init=False)
    _seen: tuple[int, int] = field(default=(-1, -1), init=False)
    _moved_at: float = field(default=0.0, init=False)
    _environment_problem: str | None = field(default=None, init=False)

    @property
    def idle_seconds(self) -> float:
        """Time since the last commit or step, or since the end of what excused its absence."""
        return max(0.0, asyncio.get_running_loop().time() - max(self._moved_at, self.busy.until))

    async def run(self) -> None:
        """Tick until cancelled. Raises Stalled and EnvironmentUnhealthy where the action is abort."""
        loop = asyncio.get_running_loop()
        self._seen, self._moved_at = self._progress(), loop.time()
        due = loop.time()
        while True:
            due += self.settings.interval_seconds
            await asyncio.sleep(due - loop.time())
            self.loop_lag_seconds = max(0.0, loop.time() - due)
            due = max(due, loop.time() - self.settings.interval_seconds)
            await self.tick()

    async def tick(self) -> None:
        """Look once: progress, environments, numbers, and then whether the run may go on."""
        self.ticks += 1
        stall = self._look()
        if self.settings.checks_environments:
            await self._ask_environment()
        self._publish()
        self.check_fleet()
        if stall is not None and self.settings.action == "abort":
            raise stall
        if self._environment_problem is not None and self.settings.action == "abort":
            raise EnvironmentUnhealthy(self.environment.name, self._environment_problem)

    def _progress(self) -> tuple[int, int]:
        """Either of the two changing is progress (SC-8.1)."""
        return self.train.rollout.counters.committed, self.train.progress.steps

    def _look(self) -> Stalled | None:
        rollout = self.train.rollout
        progress = self._progress()
        if progress != self._seen:
            self._seen, self._moved_at = progress, asyncio.get_running_loop().time()
        done = self.train.progress.steps >= self.train.settings.max_steps
        idle = self.idle_seconds
        was, self.stalled = self.stalled, not done and idle > self.settings.stall_timeout_seconds
        if not self.stalled:
            return None
        dump = "" if was else self.dump(f"nothing has moved for {idle:.0f} s")
        stall = Stalled(
            idle,
            self.settings.stall_timeout_seconds,
            len(rollout.inflight),
            rollout.counters.committed,
            self.train.progress.steps,
            dump,
        )
        self.observer.event(
            "stalled",
            idle_seconds=round(idle, 1),
            inflight=stall.inflight,
            committed=stall.committed,
            step=stall.step,
            action=self.settings.action,
            **({"dump": dump} if dump else {}),
        )
        return stall

    async def _ask_environment(self) -> None:
        """No answer within a tick is the answer that it is not well (SC-8.11)."""
        seconds = self.settings.interval_seconds
        try:
            async with asyncio.timeout(seconds):
                problem = await self.environment.health()
        except TimeoutError:
            problem = f"its health check did not answer within {seconds:g} s"
        except Exception as error:  # noqa: BLE001 - whatever it raises is its state
            problem = f"its health check raised {type(error).__name__}: {error}"
        if problem is not None and problem != self._environment_problem:
            self.observer.event("environment_unhealthy", environment=self.environment.name, reason=problem)
        if problem is None and self._environment_problem is not None:
            self.observer.event("environment_healthy", environment=self.environment.name)
        self._environment_problem = problem

    def _publish(self) -> None:
        rollout, train = self.train.rollout, self.train
        values = {
            **rollout_gauges(rollout),
            "rollout/inflight": len(rollout.inflight),
            "rollout/inflight_generations": len(rollout.inflight) * rollout.groups.generations,
            "rollout/idle_s": self.idle_seconds,
            "rollout/train_steps": train.progress.steps,
            "rollout/gate_open": float(rollout.groups.gate.is_open),
            "claim/groups": len(train.claims),
            "watchdog/stalled": float(self.stalled),
            "watchdog/loop_lag": self.loop_lag_seconds,
            **self.gauges(),
        }
        if self.settings.checks_environments:
            values[f"env/{self.environment.name}/healthy"] = float(self._environment_problem is None)
        self.metrics.log(MetricRecord("tick", self.ticks, self.wall_clock(), values))
