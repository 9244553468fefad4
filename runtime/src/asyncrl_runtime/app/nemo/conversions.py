"""How single settings are carried over. Each takes (import, path in the file, value, paths below `spec`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from asyncrl_api.base import camel
from asyncrl_api.paths import find
from asyncrl_runtime.app.nemo.state import Import

Targets = tuple[str, ...]
Convert = Callable[[Import, str, Any, Targets], None]

COLLECTIVE = ("nccl", "collective", "nccl_collective")
FAIL_FAST = ("fail_fast", "fail", "raise", "abort", "error")
PARALLEL_SIZES = {
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "context_parallel_size": "context",
    "expert_model_parallel_size": "expert",
}
BINARY_POWERS = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))


def copy(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The same value, in every target."""
    for target in targets:
        job.put(target, value, path)


def keyed(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The same key below the target, with all that it holds."""
    job.put(f"{targets[0]}.{path.rpartition('.')[2]}", value, path)


def later(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Read together with other settings when everything has been seen (`settle`)."""


def drop(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Nothing is lost without it."""


def only(wanted: Any, otherwise: str) -> Convert:
    """Dropped where it has the one value that this runtime knows; an error elsewhere."""

    def convert(job: Import, path: str, value: Any, targets: Targets) -> None:
        if isinstance(value, bool) != isinstance(wanted, bool) or value != wanted:
            job.fail(path, f"is {value!r}: {otherwise}")

    return convert


def refuse(text: str) -> Convert:
    """Always an error."""

    def convert(job: Import, path: str, value: Any, targets: Targets) -> None:
        job.fail(path, text)

    return convert


def report(text: str) -> Convert:
    """Not carried over, and nothing that is learned depends on it."""

    def convert(job: Import, path: str, value: Any, targets: Targets) -> None:
        job.leave(path, text)

    return convert


def report_loss(text: str) -> Convert:
    """Not carried over, and the run is another one without it; nothing to say of an empty value."""

    def convert(job: Import, path: str, value: Any, targets: Targets) -> None:
        if value not in ({}, [], ""):
            job.lose(path, text)

    return convert


def unless_empty(convert: Convert) -> Convert:
    """Dropped where it is empty or off, which is the reference's default."""

    def inner(job: Import, path: str, value: Any, targets: Targets) -> None:
        if value not in ("", False) and value != {}:
            convert(job, path, value, targets)

    return inner


def one_of(*choices: str, way_out: str) -> Convert:
    """The same word, if it is one that we know; else an error."""

    def convert(job: Import, path: str, value: Any, targets: Targets) -> None:
        if value in choices:
            copy(job, path, value, targets)
        else:
            job.fail(path, f"is {value!r}, not one of {', '.join(choices)}: {way_out}")

    return convert


def noted(text: str) -> Convert:
    """The same value; that its meaning has moved a little is said."""

    def convert(job: Import, path: str, value: Any, targets: Targets) -> None:
        copy(job, path, value, targets)
        job.note(path, text)

    return convert


def renamed(job: Import, path: str, value: Any, targets: Targets) -> None:
    """A key of a block that moved as a whole: `interval_s` is `intervalSeconds` there."""
    target = targets[0].removesuffix("*") + _key(path.rpartition(".")[2])
    if find(target) is None:
        job.lose(path, f"is not known: spec.{targets[0].removesuffix('.*')} has no such key")
    elif value is not None:
        job.put(target, value, path)


def _key(name: str) -> str:
    return camel(re.sub(r"_s$", "_seconds", name))


def epochs(job: Import, path: str, value: Any, targets: Targets) -> None:
    """A positive number or null; -1 means nothing here."""
    if isinstance(value, int) and value <= 0:
        steps = f"{job.algorithm}.max_num_steps"
        job.fail(path, f"is {value}: set a positive number, or null with {steps} as the bound")
    else:
        copy(job, path, value, targets)


def milliseconds(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Seconds from milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        job.fail(path, f"is {value!r}, not a number of milliseconds")
    else:
        copy(job, path, value / 1000, targets)


def store_bytes(job: Import, path: str, value: Any, targets: Targets) -> None:
    """A quantity from bytes, for the one store that reads it."""
    if job.get("data_plane.backend") == "mooncake_cpu":
        _as_quantity(job, path, value, 1, targets)


def gibibytes(job: Import, path: str, value: Any, targets: Targets) -> None:
    """A quantity from a number of GiB."""
    _as_quantity(job, path, value, 2**30, targets)


def _as_quantity(job: Import, path: str, value: Any, unit: int, targets: Targets) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        job.fail(path, f"is {value!r}, not a positive number")
        return
    copy(job, path, quantity(round(value * unit)), targets)


def quantity(size: int) -> str:
    """Bytes as a manifest writes them: 4294967296 is `4Gi`."""
    for power, suffix in BINARY_POWERS:
        if size % power == 0:
            return f"{size // power}{suffix}"
    return str(size)


def duration(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Seconds from DD:HH:MM:SS."""
    parts = str(value).split(":")
    if len(parts) != 4 or not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        job.fail(path, f"is {value!r}, which does not have the form DD:HH:MM:SS")
        return
    days, hours, minutes, seconds = map(int, parts)
    copy(job, path, ((days * 24 + hours) * 60 + minutes) * 60 + seconds, targets)


def batch_size(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Dropped if it is what one RL step makes."""
    prompts = job.get(f"{job.algorithm}.num_prompts_per_step", 32)
    generations = job.get(f"{job.algorithm}.num_generations_per_prompt", 16)
    numbers = isinstance(prompts, int) and isinstance(generations, int)
    if not numbers or value != prompts * generations:
        made = f"{prompts} prompts × {generations} generations" + (
            f" = {prompts * generations}" if numbers else ""
        )
        job.fail(path, f"is {value}, and one RL step makes {made}: an RL step is one batch, make them equal")


def parallel_size(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Ranks over which a copy of the model is spread; the key says in which way."""
    way = PARALLEL_SIZES[path.rpartition(".")[2]]
    job.put(f"{targets[0].rpartition('.')[0]}.{way}", value, path)


def same_backend(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The critic uses the policy's trainer."""
    policy = job.get("policy.megatron_cfg.enabled", False)
    if value != policy:
        problem = f"is {value}, and policy.megatron_cfg.enabled is {policy}"
        job.fail(path, f"{problem}: the critic uses the policy's trainer, make them equal")


def same_length(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The critic reads what the policy wrote."""
    policy = job.get("policy.max_total_sequence_length", 512)
    if value != policy:
        problem = f"is {value}, and policy.max_total_sequence_length is {policy}"
        job.fail(path, f"{problem}: the critic reads whole sequences of the policy, make them equal")


def same_tokenizer(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The critic reads the policy's tokens."""
    own = _tokenizer_name(value)
    policy = _tokenizer_name(job.get("policy.tokenizer")) or job.get("policy.model_name")
    if own is not None and own != policy:
        problem = f"is {own!r}, and the policy's is {policy!r}"
        job.fail(path, f"{problem}: the critic reads the policy's tokens, make them equal")


def _tokenizer_name(value: Any) -> Any:
    return value.get("name") if isinstance(value, dict) else value


def tokenizer(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Its name; a chat template of its own has no place."""
    name = _tokenizer_name(value)
    if name is not None:
        copy(job, path, name, targets)
    for key, setting in value.items() if isinstance(value, dict) else ():
        if key != "name" and setting is not None:
            job.lose(f"{path}.{key}", "the tokenizer is used as its files describe it: change it there")


def refit_transport(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Collective transports; for others the runtime chooses."""
    if str(value).lower() in COLLECTIVE:
        copy(job, path, "NCCL", targets)
    else:
        job.lose(path, f"{value} has no counterpart: the transport is chosen by the runtime (Auto)")


def dropped_data(job: Import, path: str, value: Any, targets: Targets) -> None:
    """0 for failing fast; skipping needs a number that the file does not hold."""
    if str(value).lower() in FAIL_FAST:
        copy(job, path, 0, targets)
    else:
        job.lose(path, f"{value} sets no bound here: choose a number and set it in spec.{targets[0]}")


def sampler_argument(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Keyword argument of a custom sampler; the built-in ones take none."""
    name = job.get("async_rl.sampler.name", "in_order")
    if name == "custom":
        keyed(job, path, value, targets)
    else:
        job.fail(path, f"is no knob of the sampler {name}: remove it, or use name custom and a target")


def saved_rollouts(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Built-in samplers rely on saved rollouts where the store can save them."""
    custom = job.get("async_rl.sampler.name") == "custom"
    unsaved = custom or job.get("data_plane.backend") == "mooncake_cpu"
    if value is False and not unsaved and job.get("checkpointing.enabled", True):
        job.fail(path, "is False, and finished rollouts would not survive a restart: set it true")
    else:
        copy(job, path, value, targets)
