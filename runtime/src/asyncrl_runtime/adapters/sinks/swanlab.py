"""SwanLab; offline unless a key is there."""

from __future__ import annotations

import os
from pathlib import Path

from asyncrl_runtime.ports.metrics import MetricRecord


class SwanlabSink:
    """A run of SwanLab. Its package is not part of the product's own requirements.

    Blocks while it starts; see `BackgroundSink`. Without SWANLAB_API_KEY it writes files for `swanlab sync`.
    """

    name = "swanlab"

    def __init__(self, *, project: str, run_name: str, folder: Path) -> None:
        try:
            import swanlab
        except ImportError as error:
            raise RuntimeError(
                "its package is not installed; add swanlab to the image, or switch spec.logging.swanlab off"
            ) from error
        mode = "cloud" if os.environ.get("SWANLAB_API_KEY") else "offline"
        self._swanlab = swanlab
        swanlab.init(project=project, experiment_name=run_name, logdir=str(folder), mode=mode)
        self._open = True

    def log(self, record: MetricRecord) -> None:
        """Hand a record over. Each axis counts its own steps; names of two axes never meet."""
        self._swanlab.log(dict(record.values), step=record.index)

    def close(self) -> None:
        """Finish the run. Idempotent."""
        if self._open:
            self._open = False
            self._swanlab.finish()
