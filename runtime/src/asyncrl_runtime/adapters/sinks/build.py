"""From `spec.logging` to sinks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from asyncrl_api.spec.logging import LoggingSpec
from asyncrl_runtime.adapters.sinks.fanout import BackgroundSink, FanOut
from asyncrl_runtime.adapters.sinks.jsonl import JsonlSink
from asyncrl_runtime.ports.metrics import MetricSink


def open_sinks(
    spec: LoggingSpec,
    *,
    run_folder: Path,
    job_name: str,
    job_facts: Mapping[str, str],
    metrics_port: int,
    resumed_step: int | None = None,
) -> FanOut:
    """`metrics.jsonl` always; the others as the manifest asks.

    `job_facts` are the labels of asyncrl_job_info (name, sampler, algorithm, version). Raises `PortTaken`.
    """
    folder = Path(spec.log_dir) if spec.log_dir else run_folder
    sinks: list[MetricSink] = [JsonlSink(run_folder / "metrics.jsonl", resumed_step=resumed_step)]
    if metrics_port:
        from asyncrl_runtime.adapters.sinks.prometheus import PrometheusSink

        sinks.append(PrometheusSink(metrics_port, job=job_facts))
    if spec.tensorboard.enabled:
        sinks.append(BackgroundSink("tensorboard", lambda: _tensorboard(folder, resumed_step)))
    if spec.wandb.enabled:
        sinks.append(BackgroundSink("wandb", lambda: _wandb(spec, folder, job_name)))
    if spec.mlflow.enabled:
        sinks.append(BackgroundSink("mlflow", lambda: _mlflow(spec, folder, job_name, job_facts)))
    if spec.swanlab.enabled:
        sinks.append(BackgroundSink("swanlab", lambda: _swanlab(spec, folder, job_name)))
    return FanOut(sinks)


def _tensorboard(folder: Path, resumed_step: int | None) -> MetricSink:
    from asyncrl_runtime.adapters.sinks.tensorboard import TensorboardSink

    return TensorboardSink(folder / "tensorboard", resumed_step=resumed_step)


def _wandb(spec: LoggingSpec, folder: Path, job_name: str) -> MetricSink:
    from asyncrl_runtime.adapters.sinks.wandb import WandbSink

    settings = spec.wandb
    return WandbSink(
        project=settings.project,
        entity=settings.entity,
        run_name=settings.run_name or job_name,
        folder=folder,
    )


def _mlflow(spec: LoggingSpec, folder: Path, job_name: str, facts: Mapping[str, str]) -> MetricSink:
    from asyncrl_runtime.adapters.sinks.mlflow import MlflowSink

    settings = spec.mlflow
    return MlflowSink(
        tracking_uri=settings.tracking_uri,
        experiment=settings.experiment_name,
        run_name=job_name,
        folder=folder / "mlruns",
        facts=facts,
    )


def _swanlab(spec: LoggingSpec, folder: Path, job_name: str) -> MetricSink:
    from asyncrl_runtime.adapters.sinks.swanlab import SwanlabSink

    return SwanlabSink(project=spec.swanlab.project, run_name=job_name, folder=folder / "swanlog")
