"""The advantage stage's own process."""

from __future__ import annotations

from asyncrl_runtime.algorithms.settings import StageSettings
from asyncrl_runtime.algorithms.stage import StageInput, StageOutput, run_stage


class AdvantageService:
    """Runs the stage, one chunk at a time."""

    def run(self, batch: StageInput, settings: StageSettings) -> StageOutput:
        """See `run_stage`."""
        return run_stage(batch, settings)
