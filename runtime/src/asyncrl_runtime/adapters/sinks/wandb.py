"""Weights & Biases; offline unless a key is there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from asyncrl_runtime.core.metric_table import METRICS
from asyncrl_runtime.ports.metrics import MetricRecord


class WandbSink:
    """A run that attempts go on with: its id comes from project and name.

    Blocks while it starts; see `BackgroundSink`. Without WANDB_API_KEY it writes files for `wandb sync`.
    """

    name = "wandb"

    def __init__(self, *, project: str, entity: str | None, run_name: str, folder: Path) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        online = bool(os.environ.get("WANDB_API_KEY"))
        self._run = wandb.init(
            project=project,
            entity=entity,
            name=run_name,
            id=hashlib.sha256(f"{entity}/{project}/{run_name}".encode()).hexdigest()[:16],
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE") or ("online" if online else "offline"),  # type: ignore[arg-type]
            resume="allow" if online else None,
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        for prefix, axis in sorted({(m.name.split("/")[0], m.axis) for m in METRICS}):
            if axis != "step":
                self._run.define_metric(f"{prefix}/*", step_metric=axis)

    def log(self, record: MetricRecord) -> None:
        """Hand a record to the service process."""
        self._run.log({**record.values, record.axis: record.index, "time": record.time})

    def close(self) -> None:
        """Finish the run. Idempotent."""
        self._run.finish()
