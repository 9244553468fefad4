"""Carries over a whole file of the reference: every key by its row, then what several keys say together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl_api.paths import find, nearest
from asyncrl_runtime.app.nemo.chain import Reference
from asyncrl_runtime.app.nemo.placement import settle_backend, settle_split, settle_store
from asyncrl_runtime.app.nemo.rows import ALGORITHMS
from asyncrl_runtime.app.nemo.samplers import settle_sampler
from asyncrl_runtime.app.nemo.state import Import
from asyncrl_runtime.app.nemo.surroundings import settle_environments
from asyncrl_runtime.app.nemo.table import INDEX

FINGERPRINT = "rollout_checkpointing.extra_fingerprint_excluded_paths"
FINGERPRINT_FIELD = "rolloutCheckpointing.extraFingerprintExcludedPaths"


def carry_over(reference: Reference) -> Import:
    """Make a manifest's spec of a file, as far as that can be done; what could not is in the result."""
    present = [name for name in ALGORITHMS if reference.value.get(name) is not None]
    job = Import(reference, present[0] if present else ALGORITHMS[0])
    if len(present) != 1:
        found = "both are" if present else "none is"
        job.fail("", f"exactly one of the blocks grpo and ppo says how to learn, and {found} there")
        return job
    job.spec["algorithm"] = {job.algorithm: {}}
    for block, field in (("value", "value"), ("value_loss_fn", "valueLoss")):
        if isinstance(reference.value.get(block), Mapping):
            job.spec[field] = {}
            job.origins[field] = block
    _walk(job, "", reference.value)
    settle_backend(job)
    settle_split(job)
    settle_store(job)
    settle_sampler(job)
    settle_environments(job)
    _settle_fingerprint(job)
    return job


def _walk(job: Import, block: str, value: Mapping[str, Any]) -> None:
    reason = _inert(job, block)
    for key, entry in value.items():
        path = f"{block}.{key}" if block else key
        if reason is None or key == "enabled":
            _visit(job, path, entry)
    if reason is not None and value.keys() - {"enabled"}:
        job.leave(block, reason)


def _visit(job: Import, path: str, value: Any) -> None:
    match = INDEX.find(path)
    if match is not None and (value is not None or match.row.sees_null):
        match.row.convert(job, path, value, match.targets)
    if (match is not None and not match.row.descends) or value is None:
        return
    if path not in INDEX.blocks:
        _unknown(job, path)
    elif isinstance(value, Mapping):
        _walk(job, path, value)
    elif match is None:
        job.fail(path, f"is {value!r}, not a block of keys")


def _unknown(job: Import, path: str) -> None:
    holder, _, key = path.rpartition(".")
    near = nearest(key, INDEX.known_below(holder))
    meant = f"{holder}.{near}".removeprefix(".") if near and near != "*" else None
    job.lose(path, f"is not known{f'; did you mean {meant}?' if meant else ''}")


def _inert(job: Import, block: str) -> str | None:
    """Why nothing below a block counts; None if it does."""
    engine = job.get("policy.generation.backend", "vllm")
    if block.endswith((".megatron_cfg", ".dtensor_cfg")) and not job.get(f"{block}.enabled", False):
        return "is not used, since it is not enabled"
    if block == "policy.generation.vllm_cfg" and engine != "vllm":
        return f"is not used by the engine {engine}"
    if block == "policy.generation.mcore_generation_config" and engine != "megatron":
        return f"is not used by the engine {engine}"
    if block == "on_policy_distillation" and not job.get(f"{block}.enabled", False):
        return "is not used, since it is not enabled"
    if block == f"{job.algorithm}.async_{job.algorithm}" and job.get(f"{block}.enabled", True) is False:
        return "is not used, since it is not enabled"
    return None


def rename_path(path: str) -> str | None:
    """A path of the reference, maybe with `*` or `**` at its end, as one below `spec`; None without one."""
    block, _, rest = path.partition(".*")
    match = INDEX.exact.get(block)
    if match is not None and len(match.targets) == 1:
        target = match.targets[0].removesuffix(".*")
        return target + path.removeprefix(block)
    targets = {
        each.targets[0]
        for source, each in INDEX.exact.items()
        if source.startswith(f"{block}.") and len(each.targets) == 1
    }
    if not path.removeprefix(block) or rest.strip("*") or not targets:
        return None
    shared = _shared_block(targets)
    return f"{shared}{path.removeprefix(block)}" if shared and find(shared) else None


def _shared_block(paths: set[str]) -> str:
    """The innermost block that holds all of the paths."""
    steps = [path.split(".")[:-1] for path in paths]
    shared = []
    for level in zip(*steps, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _settle_fingerprint(job: Import) -> None:
    paths = job.get(FINGERPRINT)
    if paths is None:
        return
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        job.fail(FINGERPRINT, f"is {paths!r}, not a list of dotpaths")
        return
    kept = []
    for path in paths:
        ours = rename_path(path)
        if ours is None:
            job.lose(FINGERPRINT, f"{path} has no counterpart, so that it cannot be left out")
        else:
            kept.append(ours)
    job.put(FINGERPRINT_FIELD, kept, FINGERPRINT)
