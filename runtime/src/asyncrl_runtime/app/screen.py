"""What a person sees while a run goes on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from asyncrl_runtime.app.build import Parts
from asyncrl_runtime.app.summary import Status, Tally


class Screen(Protocol):
    """A terminal, a pipe, or nothing."""

    def phase(self, phase: str, doing: str) -> None:
        """The run entered a phase."""
        ...

    def step(self, parts: Parts, metrics: Mapping[str, float], seconds: float, bound: int | None) -> None:
        """A step has ended."""
        ...

    def refresh(self, parts: Parts | None, phase: str) -> None:
        """A second has passed."""
        ...

    def say(self, text: str) -> None:
        """One line that must be seen."""
        ...

    def end(self, status: Status, parts: Parts, tally: Tally, seconds: float, folder: Path) -> None:
        """The run has ended."""
        ...

    def fail(self, error: Exception, *, verbose: bool) -> None:
        """The last line: what happened and the way out."""
        ...


class LineScreen:
    """One line per step, no control codes."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet

    def phase(self, phase: str, doing: str) -> None:
        """Say what takes time."""
        if not self._quiet:
            self.say(f"{phase}: {doing}")

    def step(self, parts: Parts, metrics: Mapping[str, float], seconds: float, bound: int | None) -> None:
        """Step, reward, staleness, buffer, pace."""
        if self._quiet:
            return
        steps, total = parts.progress.steps, parts.max_steps
        left = seconds / steps * (total - steps) if steps else 0.0
        limit = "" if bound is None else f"/{bound}"
        reward = metrics.get("train/reward_raw", metrics.get("train/reward", float("nan")))
        self.say(
            f"step {steps}/{total}  reward {reward:.3f}  "
            f"lag max {metrics['train/staleness/lag_max']:.0f}{limit}  "
            f"buffer {parts.buffer.ready} ready {len(parts.rollout.inflight)} in flight "
            f"of {parts.buffer.capacity}  "
            f"idle {100 * metrics['train/trainer_idle_fraction']:.0f} %  "
            f"{metrics['timing/train/total_step_time']:.2f} s/step  ETA {left:.0f} s"
        )

    def refresh(self, parts: Parts | None, phase: str) -> None:
        """Nothing between steps."""

    def say(self, text: str) -> None:
        """Print and flush."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def end(self, status: Status, parts: Parts, tally: Tally, seconds: float, folder: Path) -> None:
        """How it ended, and where the results are."""
        reward = "no step" if tally.reward_mean is None else f"reward {tally.reward_mean:.3f}"
        self.say(f"{status}: {parts.progress.steps} steps in {seconds:.1f} s, {reward}; results in {folder}")

    def fail(self, error: Exception, *, verbose: bool) -> None:
        """On stderr, the traceback only where it was asked for."""
        if verbose:
            traceback.print_exception(error, file=sys.stderr)
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()


def open_screen(*, quiet: bool) -> Screen:
    """The screen that fits where the output goes."""
    return LineScreen(quiet=quiet)
