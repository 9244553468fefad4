"""What a person sees while a run goes on: a live view on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live

from asyncrl_runtime.app.build import Parts
from asyncrl_runtime.app.live import RunView, line, render, setup_line
from asyncrl_runtime.app.state import RunState
from asyncrl_runtime.app.summary import Status, Tally

HISTORY_STEPS = 256
ROUTINE = frozenset({"refit", "step_trained"})
"""Events of every step, which would hide the others."""


@dataclass(slots=True, kw_only=True, eq=False)
class Screen:
    """Shows a run. On a terminal the picture is drawn anew; elsewhere lines are printed."""

    quiet: bool = False
    live: Live | None = None
    to_stderr: bool = False
    """Keep stdout for what a script reads."""

    _phase: tuple[str, str] = field(default=("Pending", ""), init=False)
    _rewards: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY_STEPS), init=False)
    _best: float | None = field(default=None, init=False)
    _last: Mapping[str, float] = field(default_factory=dict, init=False)
    _began: tuple[float, int] | None = field(default=None, init=False)
    """Seconds and steps at the first step of this start, for the pace."""

    def phase(self, phase: str, doing: str) -> None:
        """The run entered a phase."""
        self._phase = (phase, doing)
        view = RunView(name="", phase=phase, progress=doing)
        if self.live is not None:
            self.live.update(render(view), refresh=True)
        elif not self.quiet:
            self._print(setup_line(view))

    def step(self, parts: Parts, metrics: Mapping[str, float], state: RunState) -> None:
        """A step has ended."""
        reward = metrics.get("train/reward_raw", metrics.get("train/reward"))
        if reward is not None:
            self._rewards.append(reward)
            self._best = reward if self._best is None else max(reward, self._best)
        self._last = metrics
        if self._began is None and state.seconds is not None:
            self._began = (state.seconds, parts.progress.steps)
        self._phase = (self._phase[0], "")
        if self.live is None and not self.quiet:
            self._print(line(self._view(parts, state)))

    def refresh(self, parts: Parts, state: RunState) -> None:
        """A second has passed."""
        if self.live is not None:
            self.live.update(render(self._view(parts, state)), refresh=True)

    def say(self, text: str) -> None:
        """One line that must be seen."""
        if self.live is not None:
            self.live.console.print(text, markup=False, highlight=False)
        else:
            self._print(text)

    def end(self, status: Status, parts: Parts, tally: Tally, seconds: float, folder: Path) -> None:
        """How it ended, and where the results are."""
        self.close()
        reward = "no step was trained" if tally.reward_mean is None else f"reward {tally.reward_mean:.3f}"
        self._print(f"{status}: {parts.progress.steps} steps, {reward}, {seconds:.1f} s; results in {folder}")

    def fail(self, error: Exception, *, verbose: bool) -> None:
        """The last line, on stderr; the traceback only where it was asked for."""
        self.close()
        if verbose:
            traceback.print_exception(error, file=sys.stderr)
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Give the terminal back. Idempotent."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _print(self, text: str) -> None:
        stream = sys.stderr if self.to_stderr else sys.stdout
        stream.write(text + "\n")
        stream.flush()

    def _view(self, parts: Parts, state: RunState) -> RunView:
        phase, doing = self._phase
        shards: dict[str, int] = {}
        for shard in state.shards:
            shards[shard.state] = shards.get(shard.state, 0) + 1
        return RunView(
            name=state.name,
            phase=phase,
            progress=doing,
            step=state.step,
            max_steps=state.max_steps,
            eta_seconds=self._eta(state),
            reward=self._rewards[-1] if self._rewards else None,
            best_reward=self._best,
            reward_history=tuple(self._rewards),
            validation={"accuracy": self._last["val/accuracy"]} if "val/accuracy" in self._last else {},
            staleness_p50=self._last.get("train/staleness/lag_p50"),
            staleness_p95=self._last.get("train/staleness/lag_p95"),
            staleness_max=self._last.get("train/staleness/lag_max"),
            staleness_bound=state.staleness_bound,
            buffer_ready=state.ready,
            buffer_inflight=state.inflight,
            buffer_capacity=state.capacity,
            shards=shards,
            generated_tokens_per_second=state.tokens_per_second,
            trained_tokens_per_second=self._last.get("timing/train/valid_tokens_per_sec_per_gpu"),
            trainer_idle_fraction=state.trainer_idle_fraction,
            events=tuple(e for e in parts.outside.recent_events() if e["kind"] not in ROUTINE)[-3:],
        )

    def _eta(self, state: RunState) -> float | None:
        if self._began is None or state.seconds is None or state.step <= self._began[1]:
            return None
        pace = (state.seconds - self._began[0]) / (state.step - self._began[1])
        return pace * (state.max_steps - state.step)


def open_screen(*, quiet: bool, as_json: bool = False) -> Screen:
    """The screen that fits where the output goes; with `as_json`, stdout stays clean."""
    if quiet or as_json or not sys.stdout.isatty():
        return Screen(quiet=quiet or as_json, to_stderr=as_json)
    live = Live(console=Console(), auto_refresh=False, transient=False)
    live.start()
    return Screen(live=live)
