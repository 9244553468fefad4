"""`asyncrl validate`: what a manifest asks for and what follows from it, without building anything."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl_api.derived import Derived
from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.parse import ManifestInvalid, Problem, parse
from asyncrl_api.resolve import resolve
from asyncrl_api.spec.checkpointing import CheckpointingSpec
from asyncrl_api.warnings import warnings_for
from asyncrl_runtime.app.manifest import ManifestError, load_manifest, render
from asyncrl_runtime.app.support import unbuilt_settings

OK, INVALID = 0, 2
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_CLUSTER_REFUSES = "note: a cluster refuses it: "
_DIGIT_SYMBOLS, _TEXT_SYMBOLS = 16, 98


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the policy in its processes; None where weights would have to be read first."""

    parameters: int
    model_bytes: int
    """Of one shard."""

    trainer_bytes: int
    """Weights, gradients and two moments in float32, and the reference's weights if there is one."""

    kv_cache_bytes: int
    """Of one shard with every slot of the buffer's rows full."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A manifest that is valid, and where it can be carried out: here, on a cluster, or both."""

    job: AsyncRLJob
    """Resolved."""

    not_here: tuple[str, ...]
    """Settings that `asyncrl run` refuses, each with its place and the way out."""

    not_on_a_cluster: tuple[str, ...]
    """What only a cluster refuses."""

    @property
    def places(self) -> str:
        """Where it can run, in words."""
        if self.not_here:
            return "a cluster only"
        return "this machine only" if self.not_on_a_cluster else "this machine and a cluster"


def validate_command(path: Path, sets: list[str], *, as_json: bool, verbose: bool) -> int:
    """Print the facts, or everything that is wrong."""
    try:
        verdict = examine(path, sets)
    except ManifestError as error:
        if verbose:
            traceback.print_exception(error, file=sys.stderr)
        if as_json:
            sys.stdout.write(json.dumps({"valid": False, "problems": error.lines}, indent=2) + "\n")
        sys.stderr.write(f"{error}\n")
        return INVALID
    if as_json:
        _write_json(verdict)
    else:
        _write_text(path, verdict)
    return OK


def examine(path: Path, sets: Sequence[str] = ()) -> Verdict:
    """Check a manifest by the rules of a cluster and by those of this machine.

    What only a cluster asks for, such as a volume for checkpoints, is an error where only a cluster can
    carry the job out.

    Raises:
        ManifestError: nothing can carry it out; everything that is wrong is in it.
    """
    raw, positions = load_manifest(path, sets)
    everywhere = _problems(raw, cluster=True)
    here = _problems(raw, cluster=False) if everywhere else ()
    on_a_cluster = render([problem for problem in everywhere if problem not in here], positions)
    if here:
        raise ManifestError((*render(here, positions), *map(_CLUSTER_REFUSES.__add__, on_a_cluster)))
    job = resolve(parse(raw))
    not_here = unbuilt_settings(job)
    if on_a_cluster and not_here:
        asked = ", ".join(problem.path for problem in not_here)
        raise ManifestError((*on_a_cluster, f"note: only a cluster can carry it out, because of {asked}"))
    return Verdict(job, render(not_here, positions), on_a_cluster)


def _problems(raw: object, *, cluster: bool) -> tuple[Problem, ...]:
    try:
        parse(raw, cluster=cluster)
    except ManifestInvalid as invalid:
        return invalid.problems
    return ()


def _write_json(verdict: Verdict) -> None:
    told = {
        "valid": True,
        **manifest_facts(verdict.job),
        "runs on": verdict.places,
        "warnings": [str(warning) for warning in warnings_for(verdict.job, cluster=True)],
        "not carried out by asyncrl run": verdict.not_here,
        "not accepted by a cluster": verdict.not_on_a_cluster,
    }
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def _write_text(path: Path, verdict: Verdict) -> None:
    facts = {**manifest_facts(verdict.job), "runs on": verdict.places}
    width = max(len(name) for name in facts)
    lines = [f"{path} is valid: AsyncRLJob {verdict.job.metadata.name}"]
    lines += [f"  {name:<{width}}  {value}" for name, value in facts.items()]
    here = warnings_for(verdict.job)
    lines += [f"warning: {warning}" for warning in here]
    lines += [
        f"warning, on a cluster: {warning}"
        for warning in warnings_for(verdict.job, cluster=True)
        if warning not in here
    ]
    if verdict.not_here:
        lines.append("note: asyncrl run on this machine does not carry out these settings:")
    lines += [f"  {line}" for line in verdict.not_here]
    lines += map(_CLUSTER_REFUSES.__add__, verdict.not_on_a_cluster)
    sys.stdout.write("\n".join(lines) + "\n")


def manifest_facts(job: AsyncRLJob) -> dict[str, object]:
    """What is derived from a resolved job, in words with units."""
    spec, facts = job.spec, Derived(job.spec)
    sizes = model_sizes(spec)
    generation, training = spec.generation, spec.training
    return {
        "algorithm": f"{'ppo' if facts.is_ppo else 'grpo'}, estimator {facts.estimator}",
        "step": (
            f"{facts.num_prompts_per_step} prompts × {facts.num_generations_per_prompt} completions = "
            f"{facts.train_batch_size} rows, in chunks of at least {facts.min_groups} groups"
        ),
        "steps": _steps(spec, facts),
        "sampler": facts.sampler,
        "buffer": f"{facts.buffer_size} groups; {facts.capacity_formula}",
        "correction": "on" if facts.corrects else "off",
        "GPU split": f"{facts.generation_gpus} for generation, {facts.training_gpus} for training",
        "generation": (
            f"{generation.shards} {generation.backend} shard(s), {generation.gpus_per_shard} GPU(s) each"
        ),
        "training": f"{training.backend}, {facts.num_training_ranks} rank(s)",
        "weight transfer": facts.refit_transport,
        "data plane": f"{spec.data_plane.backend}, {facts.required_storage_rows} rows needed",
        "policy": "read from its weights" if sizes is None else f"{sizes.parameters:,} parameters",
        "memory": "unknown before the weights are read" if sizes is None else _memory(sizes),
        "checkpoints": _checkpoints(spec),
    }


def model_sizes(spec: JobSpec) -> Sizes | None:
    """Sizes of a model given by its shape."""
    init = spec.model.init
    if init is None:
        return None
    width, layers = init.hidden_size, init.num_hidden_layers
    inner = init.intermediate_size or 4 * width
    heads = init.num_attention_heads
    kv_width = (init.num_key_value_heads or heads) * (width // heads)
    vocabulary = init.vocab_size or (_DIGIT_SYMBOLS if spec.data.source.generated else _TEXT_SYMBOLS)
    bias = width + 2 * kv_width if init.architecture == "qwen2" else 0
    layer = 2 * width * width + 2 * width * kv_width + bias + 3 * width * inner + 2 * width
    parameters = vocabulary * width * (1 if init.tie_word_embeddings else 2) + layers * layer + width
    model = _BYTES[spec.model.dtype]
    copies = 4 if Derived(spec).skips_reference_logprobs else 5
    rows = spec.async_rl.max_inflight_prompts * Derived(spec).num_generations_per_prompt
    per_shard = -(-rows // spec.generation.shards)
    kv_bytes = 2 * layers * kv_width * model * spec.model.max_total_sequence_length * per_shard
    return Sizes(parameters, parameters * model, parameters * copies * 4, kv_bytes)


def _steps(spec: JobSpec, facts: Derived) -> str:
    algorithm, source = facts.algorithm, spec.data.source
    assert algorithm is not None
    known = source.generated or source.reasoning_gym
    size = getattr(known, "num_prompts", None) or getattr(known, "size", None)
    epochs = algorithm.max_num_epochs
    if size is None or epochs is None:
        return f"at most {algorithm.max_num_steps}"
    allowed = epochs * (size // facts.num_prompts_per_step)
    asked = algorithm.max_num_steps
    return f"{min(asked, allowed)} (asked for {asked}, the data allows {allowed})"


def _memory(sizes: Sizes) -> str:
    return (
        f"model {_size(sizes.model_bytes)} per shard, weights, gradients and optimizer of the trainer "
        f"{_size(sizes.trainer_bytes)}, KV cache up to {_size(sizes.kv_cache_bytes)} per shard"
    )


def _checkpoints(spec: JobSpec) -> str:
    saving = spec.checkpointing
    if not saving.enabled:
        return "off"
    also = f", and every {saving.ft_save_period} for restarts" if saving.ft_save_period else ""
    return f"every {saving.save_period} step(s){also}; {_kept(saving)}"


def _kept(saving: CheckpointingSpec) -> str:
    """What retention leaves (SC-9.40)."""
    top, latest = saving.keep_top_k, saving.ft_keep_latest_k
    if top is None and latest is None:
        return "all kept"
    if top is None:
        kept = f"those of every {saving.save_period} step(s) kept"
    elif saving.metric_name is None:
        kept = f"the newest {top} kept"
    else:
        kept = f"the best {top} by {saving.metric_name} and the newest kept"
    return kept if latest is None else f"{kept}, besides the newest {latest}"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
