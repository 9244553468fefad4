"""How environments, data, loggers and folders are carried over."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from asyncrl_api.base import camel
from asyncrl_runtime.app.nemo.conversions import Targets
from asyncrl_runtime.app.nemo.state import Import

KINDS: dict[str, tuple[str, ...]] = {
    "arithmetic": ("reward",),
    "math": ("num_workers",),
    "reasoning_gym": (),
    "function": ("target", "arguments", "num_workers"),
}
"""Environment of ours, by the name that a task has: its settings."""

LOGGERS: dict[str, dict[str, str]] = {
    "wandb": {"project": "project", "entity": "entity", "name": "runName"},
    "tensorboard": {},
    "mlflow": {"tracking_uri": "trackingUri", "experiment_name": "experimentName"},
    "swanlab": {"project": "project"},
}
"""Logger: its settings by their names in the reference."""

DEFAULT_MOUNT = "/checkpoints"


def checkpoint_folder(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Mount path and folder below it; a relative path is one below the default mount path."""
    folder = PurePosixPath(str(value))
    mount, directory = targets
    if not folder.is_absolute() or len(folder.parts) < 3:
        job.put(directory, "/".join(part for part in folder.parts if part != "/"), path)
        job.note(path, f"{value} becomes a folder below {DEFAULT_MOUNT}, where the volume is mounted")
        return
    job.put(mount, str(folder.parent), path)
    job.put(directory, folder.name, path)


def log_folder(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Kept where the volume holds it; elsewhere it would be gone with its pod."""
    saved = job.get("checkpointing.checkpoint_dir")
    folder = PurePosixPath(str(value))
    if saved is None or not folder.is_relative_to(str(saved)):
        job.leave(path, f"{value} lies outside the checkpoint folder: logs go there, where a volume is")
        return
    inside = folder.relative_to(str(saved))
    base = PurePosixPath(str(saved))
    if not base.is_absolute() or len(base.parts) < 3:
        base = PurePosixPath(DEFAULT_MOUNT, *(part for part in base.parts if part != "/"))
    job.put(targets[0], str(base / inside), path)


def logger(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Switch and settings of one logger; what it has no field for is said."""
    key, block = path.rpartition(".")[2], targets[0].removesuffix(".*")
    name = block.rpartition(".")[2]
    if key == f"{name}_enabled":
        job.put(f"{block}.enabled", value, path)
        return
    for setting, inner in value.items() if isinstance(value, dict) else ():
        if inner is None:
            continue
        if setting in LOGGERS[name]:
            job.put(f"{block}.{LOGGERS[name][setting]}", inner, f"{path}.{setting}")
        else:
            job.leave(f"{path}.{setting}", f"spec.{block} has no such field")


def other_logging(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Anything else below `logger`."""
    job.leave(path, "spec.logging has no such field; GPUs are watched by the cluster")


def data_set(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The reference's data set classes have no counterpart."""
    if value != {}:
        job.lose(path, "data sets of the reference have no counterpart: name the source in spec.data")


def settle_environments(job: Import) -> None:
    """The gym services, or one environment per task."""
    block = job.get("env", {})
    if not isinstance(block, dict):
        return
    tasks = {key: value for key, value in block.items() if key != "should_use_nemo_gym"}
    gym = job.get("env.should_use_nemo_gym", False)
    services = tasks.pop("nemo_gym", None)
    if gym is True:
        _gym(job, services)
        for task in tasks:
            job.leave(f"env.{task}", "is not used on the gym path")
        return
    if services is not None:
        job.leave("env.nemo_gym", "is not used while env.should_use_nemo_gym is off")
    kinds = {task: _environment(job, task, value) for task, value in tasks.items()}
    found = {task: kind for task, kind in kinds.items() if kind is not None}
    if len(tasks) == 1:
        for task, (kind, settings) in found.items():
            job.put(f"environment.{kind}", settings, f"env.{task}")
        return
    for task, (kind, settings) in found.items():
        job.put(f"environment.byTask.{task}", {kind: settings}, f"env.{task}")


def _gym(job: Import, services: Any) -> None:
    found: dict[str, Any] = {}
    for key, value in services.items() if isinstance(services, dict) else ():
        if key == "config_paths":
            found["configPaths"] = value
        elif value is not None:
            found.setdefault("config", {})[key] = value
    job.put("environment.nemoGym", found, "env.nemo_gym" if services else "env.should_use_nemo_gym")


def _environment(job: Import, task: str, value: Any) -> tuple[str, dict[str, Any]] | None:
    """Our kind and its settings; None, and it is said, where it is not ours."""
    if task not in KINDS:
        kinds = ", ".join(KINDS)
        job.lose(f"env.{task}", f"is no environment of this runtime ({kinds}): write a function of your own")
        return None
    settings = {}
    for key, setting in value.items() if isinstance(value, dict) else ():
        if key in KINDS[task]:
            settings[camel(key)] = setting
        elif setting is not None:
            job.lose(f"env.{task}.{key}", f"spec.environment.{camel(task)} has no such field")
    return camel(task), settings
