"""Places besides Prometheus to which metrics and samples go."""

from typing import Annotated

from annotated_types import Le
from pydantic import Field

from asyncrl_api.base import HOT, ApiModel, DefaultsTo, Natural, Natural64, Path, Size, Word


class TensorboardSpec(ApiModel):
    """TensorBoard event files in `logDir`."""

    enabled: bool = False
    """Write them."""


class WandbSpec(ApiModel):
    """Weights & Biases."""

    enabled: bool = False
    """Log there."""

    project: Word = "asyncrl"
    """Project."""

    entity: Word | None = None
    """Team or user. Unset: that of the key."""

    run_name: Annotated[Word | None, DefaultsTo("the job's name")] = None
    """Name of the run; attempts go on in the same one."""


class MlflowSpec(ApiModel):
    """MLflow."""

    enabled: bool = False
    """Log there."""

    tracking_uri: Path | None = None
    """Tracking server. Unset: MLFLOW_TRACKING_URI of the controller."""

    experiment_name: Word = "asyncrl"
    """Experiment."""


class SwanlabSpec(ApiModel):
    """SwanLab."""

    enabled: bool = False
    """Log there."""

    project: Word = "asyncrl"
    """Project."""


class LoggingSpec(ApiModel):
    """Where metrics and samples are written besides Prometheus."""

    log_dir: Annotated[
        Path | None,
        DefaultsTo("logs in the checkpoint folder, else a temporary folder; the run folder on one machine"),
    ] = None
    """Folder for files that loggers write."""

    tensorboard: TensorboardSpec = Field(default_factory=TensorboardSpec)
    """TensorBoard event files in `logDir`."""

    wandb: WandbSpec = Field(default_factory=WandbSpec)
    """Weights & Biases."""

    mlflow: MlflowSpec = Field(default_factory=MlflowSpec)
    """MLflow."""

    swanlab: SwanlabSpec = Field(default_factory=SwanlabSpec)
    """SwanLab."""

    sample_every: Annotated[Natural64, HOT] = 0
    """Steps between dumps of the trained samples as JSON lines (prompt, completion, reward, lag, masks). 0:
    none."""

    sample_max_size: Annotated[Size, HOT] = "64Mi"
    """Largest dump of one step; further samples are left out."""

    num_val_samples_to_print: Annotated[Natural, Le(1000), HOT] = 0
    """Validation samples to write into the log each time."""
