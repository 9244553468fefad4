"""MLflow, on a tracking server or in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from asyncrl_runtime.ports.metrics import MetricRecord

MAX_BATCH = 1000
"""Metrics that one call of the server takes."""

RUN_TAG = "asyncrl.run"


class MlflowSink:
    """A run that attempts go on with: found again by its tag.

    Blocks on the network; see `BackgroundSink`.
    """

    name = "mlflow"

    def __init__(
        self,
        *,
        tracking_uri: str | None,
        experiment: str,
        run_name: str,
        folder: Path,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """`folder` holds the store where neither the argument nor MLFLOW_TRACKING_URI names a place."""
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or folder.absolute().as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        runs = self._client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{run_name}'", max_results=1)
        if runs:
            self.run_id = runs[0].info.run_id
            self._client.update_run(self.run_id, status="RUNNING")
        else:
            tags = {RUN_TAG: run_name, **{f"asyncrl.{key}": text for key, text in (facts or {}).items()}}
            created = self._client.create_run(experiment_id, run_name=run_name, tags=tags)
            self.run_id = created.info.run_id
        self._open = True

    def log(self, record: MetricRecord) -> None:
        """Send a record. Characters that MLflow refuses in names become underscores."""
        stamp = int(record.time * 1000)
        metrics = [
            self._metric(re.sub(r"[^\w\-. /:]", "_", name), value, stamp, record.index)
            for name, value in record.values.items()
        ]
        for first in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[first : first + MAX_BATCH])

    def close(self) -> None:
        """End the run. Idempotent."""
        if self._open:
            self._open = False
            self._client.set_terminated(self.run_id)
