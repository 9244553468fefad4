"""How estimators, optimizers, schedules and batching are carried over."""

from __future__ import annotations

from typing import Any

from asyncrl_api.base import camel
from asyncrl_runtime.app.nemo.conversions import Targets, copy
from asyncrl_runtime.app.nemo.state import Import

KNOBS: dict[str, tuple[tuple[str, ...], Any]] = {
    "use_leave_one_out_baseline": (("grpo", "gdpo"), True),
    "normalize_rewards": (("grpo", "gdpo"), True),
    "baseline_excludes_masked": (("grpo", "gdpo", "reinforce_plus_plus"), False),
    "reward_weights": (("gdpo",), None),
    "minus_baseline": (("reinforce_plus_plus",), True),
    "gae_lambda": (("gae",), 0.95),
    "gae_gamma": (("gae",), 1.0),
    "normalize_advantages": (("gae",), True),
    "gae_lambda_value": (("gae",), None),
    "gae_lambda_policy": (("gae",), None),
    "length_adaptive_alpha": (("gae",), 0),
}
"""Knob: estimators that read it, and its default (SC-11.20…25)."""

DEFAULT_ESTIMATOR = {"grpo": "grpo", "ppo": "gae"}
ADAMW = ("adamw", "adam", "fusedadam")
SAME_RESULT = ("foreach", "fused", "capturable")
"""Arguments of the optimizer that choose an implementation."""

SCHEDULE_NUMBERS = ("start_factor", "end_factor", "total_iters", "factor", "T_max", "eta_min")
OFF_WARMUP = 0.01
"""A warm-up that starts above this share of the rate is not taken for one from 0."""


def estimator(job: Import, path: str, value: Any, targets: Targets) -> None:
    """A knob of the advantage estimator: its own are kept, others must have their default."""
    knob, block = path.rpartition(".")[2], f"algorithm.{job.algorithm}.advEstimator"
    if knob == "name":
        _estimator_name(job, path, value, f"{block}.name")
        return
    name = job.get(f"{job.algorithm}.adv_estimator.name", DEFAULT_ESTIMATOR[job.algorithm])
    if knob not in KNOBS:
        job.lose(path, f"is not known: the knobs of estimators are {', '.join(KNOBS)}")
        return
    readers, default = KNOBS[knob]
    if name in readers:
        job.put(f"{block}.{camel(knob)}", value, path)
    elif value != default:
        job.fail(path, f"is {value!r}, and the estimator {name} does not read it: remove it")


def _estimator_name(job: Import, path: str, value: Any, target: str) -> None:
    if value == "raw_reward":
        job.fail(path, "is raw_reward, which gives the critic nothing to learn from: use gae, or grpo")
    else:
        job.put(target, value, path)


def optimizer(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Rate, decay, betas and eps of AdamW."""
    block = targets[0].removesuffix(".*")
    if not isinstance(value, dict):
        job.fail(path, f"is {value!r}, not a block with a name and kwargs")
        return
    name = str(value.get("name", "AdamW"))
    if name.rpartition(".")[2].lower() not in ADAMW:
        job.fail(f"{path}.name", f"is {name}: there is AdamW only")
        return
    for key in value.keys() - {"name", "kwargs"}:
        job.lose(f"{path}.{key}", "is not known: an optimizer has a name and kwargs")
    arguments = value.get("kwargs") or {}
    if not isinstance(arguments, dict):
        job.fail(f"{path}.kwargs", f"is {arguments!r}, not a block of arguments")
        return
    for key, setting in arguments.items():
        _optimizer_argument(job, f"{path}.kwargs.{key}", setting, block)


def _optimizer_argument(job: Import, path: str, value: Any, block: str) -> None:
    key = path.rpartition(".")[2]
    if key in ("lr", "weight_decay", "eps"):
        job.put(f"{block}.{camel(key)}", value, path)
    elif key == "betas" and isinstance(value, list) and len(value) == 2:
        for index, beta in enumerate(value):
            job.put(f"{block}.beta{index + 1}", beta, path)
    elif key == "betas":
        job.fail(path, f"is {value!r}, not a list of two numbers")
    elif key in SAME_RESULT:
        job.leave(path, "only chooses an implementation")
    elif value:
        job.lose(path, "AdamW is set by lr, weight_decay, betas and eps alone")


def scheduler(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Constant, linear or cosine, after a linear warm-up; anything else is an error."""
    block = targets[0].removesuffix(".*")
    parts = value if isinstance(value, list) else [value]
    if not all(map(_is_phase, parts)):
        job.fail(path, f"is {value!r}, not a schedule or a list of them with numbers as arguments")
        return
    phases = [(_shape(part), part.get("kwargs") or {}) for part in parts if "milestones" not in part]
    milestones = [step for part in parts for step in part.get("milestones") or ()]
    warmup = 0
    if phases and _is_warmup(*phases[0]):
        warmup = _warm_up(job, path, phases.pop(0)[1], milestones)
    if len(phases) > 1 or (len(milestones) > 1) or (milestones and not warmup):
        names = ", ".join(str(part.get("name")) for part in parts if "name" in part)
        job.fail(path, f"has the phases {names}: a schedule is one shape, with a linear warm-up before it")
        return
    if warmup:
        job.put(f"{block}.warmupSteps", warmup, path)
    for shape, arguments in phases:
        _after_warmup(job, path, shape, arguments, warmup, block)


def _is_phase(part: Any) -> bool:
    """A schedule with numbers as its arguments, or the steps at which the next one begins."""
    if not isinstance(part, dict):
        return False
    arguments, milestones = part.get("kwargs") or {}, part.get("milestones") or []
    if not isinstance(arguments, dict) or not isinstance(milestones, list):
        return False
    numbers = [*milestones, *(arguments[key] for key in SCHEDULE_NUMBERS if key in arguments)]
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers)


def _shape(part: dict[str, Any]) -> str:
    return str(part.get("name")).rpartition(".")[2]


def _is_warmup(shape: str, arguments: dict[str, Any]) -> bool:
    start, end = arguments.get("start_factor", 1 / 3), arguments.get("end_factor", 1.0)
    return shape == "LinearLR" and start < end == 1


def _warm_up(job: Import, path: str, arguments: dict[str, Any], milestones: list[Any]) -> int:
    """Updates of the warm-up."""
    steps = arguments.get("total_iters", 5)
    if milestones and milestones[0] != steps:
        problem = f"warms up over {steps} updates, and the next phase begins at {milestones[0]}"
        job.fail(path, f"{problem}: make them equal")
    start = arguments.get("start_factor", 1 / 3)
    if start > OFF_WARMUP:
        job.lose(path, f"the warm-up starts at {start:g} of the rate there, and at 0 here")
    return steps


def _after_warmup(
    job: Import, path: str, shape: str, arguments: dict[str, Any], warmup: int, block: str
) -> None:
    asked = job.get(f"{path.rpartition('.')[0]}.optimizer.kwargs.lr")
    rate = asked if isinstance(asked, int | float) else 1e-6
    if shape == "ConstantLR" and arguments.get("factor", 1 / 3) == 1:
        found: dict[str, Any] = {"name": "constant"}
    elif shape == "LinearLR" and arguments.get("start_factor", 1 / 3) == 1:
        found = {
            "name": "linear",
            "decaySteps": warmup + arguments.get("total_iters", 5),
            "minLr": rate * arguments.get("end_factor", 1.0),
        }
    elif shape == "CosineAnnealingLR" and "T_max" in arguments:
        found = {
            "name": "cosine",
            "decaySteps": warmup + arguments["T_max"],
            "minLr": arguments.get("eta_min", 0.0),
        }
    else:
        job.fail(path, f"{shape} with {arguments} is not a constant, linear or cosine schedule")
        return
    for key, value in found.items():
        job.put(f"{block}.{key}", value, path)


def batching(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Whether sequences are packed or grouped, and how many tokens make a batch."""
    block = targets[0].removesuffix(".*")
    if not isinstance(value, dict):
        job.fail(path, f"is {value!r}, not a block with enabled")
        return
    enabled = value.get("enabled", False)
    job.put(f"{block}.enabled", enabled, f"{path}.enabled")
    if not enabled:
        return
    tokens = value.get("train_mb_tokens")
    if tokens is not None:
        job.put(f"{block}.microBatchTokens", tokens, f"{path}.train_mb_tokens")
    for key, setting in value.items():
        if key in ("enabled", "train_mb_tokens") or setting is None:
            continue
        if key != "logprob_mb_tokens":
            job.lose(f"{path}.{key}", "packing is set by enabled and train_mb_tokens alone")
        elif setting != tokens:
            job.lose(f"{path}.{key}", "log-prob passes use the same number of tokens as training")


def precision(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The trainer's arithmetic, and the format in which weights are loaded and served."""
    copy(job, path, value, (*targets, "model.dtype"))


def distillation(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The block is there when it is on."""
    if value is True:
        job.spec.setdefault(targets[0], {})
        job.origins.setdefault(targets[0], path)


def teachers(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Teachers run on the training GPUs."""
    if path.endswith(".enabled") and value:
        job.fail(path, "is on: teachers run on the training GPUs, turn it off")


def old_async(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The old block as a whole: null is how it should be, and its keys have places of their own."""
    if not isinstance(value, dict):
        job.fail(path, f"is {value!r}, not a block: set it to null, and use async_rl")


def synchronous(job: Import, path: str, value: Any, targets: Targets) -> None:
    """Off is a lead of 0; on leaves the lead to its own key."""
    job.put("asyncRL.sampler.name", "in_order", path)
    if value is False:
        job.put(targets[0], 0, path)


def trajectory_age(job: Import, path: str, value: Any, targets: Targets) -> None:
    """The lead of the sampler that takes batches in order."""
    job.put("asyncRL.sampler.name", "in_order", path)
    copy(job, path, value, targets)
