"""Settings of the resource that this runtime does not carry out yet. Asking for one is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.parse import Problem, value_at
from asyncrl_api.resolve import resolve
from asyncrl_runtime.app.manifest import ManifestError, load_manifest, render


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """One setting that is not built, and how to do without."""

    path: str
    """Dotpath below `spec`."""

    asked: Callable[[JobSpec], bool]
    """Whether a resolved spec asks for it."""

    way_out: str
    controller: Literal["never", "under faults", "always"] = "never"
    """Whether the controller would have to carry it out: then a simulation cannot do without it either."""


def _uses_sizes(s: JobSpec) -> bool:
    sizes = s.training.parallelism
    return max(sizes.tensor, sizes.pipeline, sizes.context, sizes.expert) > 1


UNBUILT: tuple[Unbuilt, ...] = (
    Unbuilt("model.isVlm", lambda s: s.model.is_vlm, "set it to false"),
    Unbuilt("environment.nemoGym", lambda s: s.environment.nemo_gym is not None, "use another environment"),
    Unbuilt(
        "algorithm.ppo", lambda s: s.algorithm.ppo is not None, "use algorithm.grpo", controller="always"
    ),
    Unbuilt(
        "algorithm.grpo.advEstimator.name",
        lambda s: s.algorithm.grpo is not None and s.algorithm.grpo.adv_estimator.name == "opd",
        "use grpo, gdpo or reinforce_plus_plus",
    ),
    Unbuilt("onPolicyDistillation", lambda s: s.on_policy_distillation is not None, "remove it"),
    Unbuilt("checkpointing.saveConsolidated", lambda s: s.checkpointing.save_consolidated, "set it to false"),
    Unbuilt(
        "asyncRL.generationRouter.enabled",
        lambda s: s.async_rl.generation_router.enabled,
        "set it to false",
    ),
    Unbuilt(
        "dataPlane.backend",
        lambda s: s.data_plane.backend not in ("inProcess", "simple"),
        "use inProcess or simple",
    ),
    Unbuilt(
        "checkpointing.pretrainedCheckpoint.format",
        lambda s: (
            s.checkpointing.pretrained_checkpoint is not None
            and s.checkpointing.pretrained_checkpoint.format == "megatron"
        ),
        "use safetensors",
    ),
    Unbuilt(
        "checkpointing.modelSaveFormat",
        lambda s: s.checkpointing.model_save_format == "megatron",
        "use safetensors",
    ),
    Unbuilt("checkpointing.isAsync", lambda s: s.checkpointing.is_async, "set it to false"),
    Unbuilt("logging.swanlab.enabled", lambda s: s.logging.swanlab.enabled, "use another logger"),
    Unbuilt("generation.backend", lambda s: s.generation.backend != "torch", "use torch"),
    Unbuilt("generation.colocated", lambda s: s.generation.colocated, "set it to false", controller="always"),
    Unbuilt("generation.gpusPerShard", lambda s: s.generation.gpus_per_shard > 1, "set it to 0 or 1"),
    Unbuilt("generation.hostsPerShard", lambda s: s.generation.hosts_per_shard > 1, "set it to 1"),
    Unbuilt("generation.kvCacheDtype", lambda s: s.generation.kv_cache_dtype != "auto", "use auto"),
    Unbuilt("training.backend", lambda s: s.training.backend != "torch", "use torch"),
    Unbuilt("training.parallelism", _uses_sizes, "set every size to 1"),
    Unbuilt(
        "training.offloadOptimizerForLogprob",
        lambda s: bool(s.training.offload_optimizer_for_logprob),
        "set it to false",
    ),
    Unbuilt("training.routerReplay", lambda s: s.training.router_replay, "set it to false"),
)


def unbuilt_settings(job: AsyncRLJob, table: Iterable[Unbuilt] = UNBUILT) -> list[Problem]:
    """The settings of a resolved job that this runtime does not carry out."""
    return [_problem(job, entry) for entry in table if entry.asked(job.spec)]


def _problem(job: AsyncRLJob, entry: Unbuilt) -> Problem:
    path = f"spec.{entry.path}"
    value = value_at(job, path)
    shown = f" {value}".lower() if isinstance(value, bool) else f" {value}"
    asked = shown if isinstance(value, bool | int | float | str) else ""
    message = f"{path}{asked} is not carried out by this version of the runtime: {entry.way_out}"
    return Problem(path, "unbuilt", message, value)


def refuse_unbuilt(
    job: AsyncRLJob, path: Path, sets: Iterable[str] = (), *, cluster: bool = False
) -> AsyncRLJob:
    """Resolve a job that was read from `path`; `cluster` says that it runs in pods.

    Raises:
        ManifestError: it asks for settings that are not built; all of them are in it.
    """
    resolved = resolve(job, cluster=cluster)
    problems = unbuilt_settings(resolved)
    if problems:
        _, positions = load_manifest(path, sets)
        raise ManifestError(render(problems, positions))
    return resolved
