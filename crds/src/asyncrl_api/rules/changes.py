"""Rules about the name and about changes to a living job: V-106 to V-113."""

import re
from collections.abc import Iterator
from typing import Any

from asyncrl_api.base import keys_of
from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.rules.table import WHOLE_OBJECT, Rule
from asyncrl_api.spec.algorithm import AlgorithmSpec
from asyncrl_api.spec.model import ModelSpec
from asyncrl_api.spec.operations import LifecycleSpec

FINISHED = ("Succeeded", "Failed")
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
MAX_NAME_LENGTH = 40

COLD_CHECKPOINT_KEYS = ("volume", "mountPath", "directory", "pretrainedCheckpoint")
GENERATION_SIZES = (
    "backend",
    "gpusPerShard",
    "hostsPerShard",
    "?tensorParallel",
    "pipelineParallel",
    "colocated",
    "segmentSize",
)
SIZES = (
    "rayVersion",
    "gpuResourceName",
    "dataPlane.backend",
    "dataPlane.numStorageUnits",
    *(f"generation.{key}" for key in GENERATION_SIZES),
    "training.hosts",
    "training.gpusPerHost",
    "training.parallelism",
    "training.segmentSize",
)
PLACES = ("scheduling.provider", "scheduling.queueName", "scheduling.gang")


def _same(path: str) -> str:
    return f"self.{path} == oldSelf.{path}"


def _same_if_set(path: str) -> str:
    """CEL for a field that may be absent; the optional syntax would break the cost limit."""
    return f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {_same(path)})"


def _same_below(block: str, key: str) -> str:
    """CEL for a field that may be absent in a block that may be absent."""
    new, old = (f"(has({side}.{block}) && has({side}.{block}.{key}))" for side in ("self", "oldSelf"))
    return f"{new} == {old} && (!{new} || {_same(f'{block}.{key}')})"


def _fields_that_freeze() -> Iterator[str]:
    for key, _, field in keys_of(JobSpec):
        if key == "lifecycle":
            for inner, _, part in keys_of(LifecycleSpec):
                if inner != "ttlSecondsAfterFinished":
                    same = _same_if_set if part.default is None else _same
                    yield same(f"spec.lifecycle.{inner}")
        elif field.is_required() or field.default is not None:
            yield _same(f"spec.{key}")
        else:
            yield _same_if_set(f"spec.{key}")


def _model_is_kept(new: ModelSpec, old: ModelSpec) -> bool:
    length = {"max_total_sequence_length": old.max_total_sequence_length}
    return new.model_copy(update=length) == old


def _algorithm(block: AlgorithmSpec) -> tuple[Any, ...]:
    grpo, ppo = block.grpo, block.ppo
    sizes = [(each.num_prompts_per_step, each.num_generations_per_prompt) for each in (grpo, ppo) if each]
    warmup = (ppo.policy_training_start_step, ppo.warm_start_value_checkpoint) if ppo else None
    return grpo is None, ppo is None, sizes, warmup


def _checkpoint_place(s: JobSpec) -> tuple[Any, ...]:
    place = s.checkpointing
    return place.volume, place.mount_path, place.directory, place.pretrained_checkpoint


def _identity(s: JobSpec) -> tuple[Any, ...]:
    critic = (s.value.name, s.value.revision) if s.value else (None, None)
    excluded = s.rollout_checkpointing.extra_fingerprint_excluded_paths
    return s.training.backend, s.managed_by, excluded, critic


def _sizes(s: JobSpec) -> tuple[Any, ...]:
    generation, training, scheduling = s.generation, s.training, s.scheduling
    return (
        (s.ray_version, s.gpu_resource_name, s.data_plane.backend, s.data_plane.num_storage_units),
        (generation.backend, generation.gpus_per_shard, generation.hosts_per_shard),
        (generation.tensor_parallel, generation.pipeline_parallel),
        (generation.colocated, generation.segment_size),
        (training.hosts, training.gpus_per_host, training.parallelism, training.segment_size),
        s.value.parallelism if s.value else None,
        (scheduling.provider, scheduling.queue_name, scheduling.gang),
    )


def _finished_stays(new: AsyncRLJob, old: AsyncRLJob) -> bool:
    if old.status is None or old.status.phase not in FINISHED:
        return True
    ttl = {"ttl_seconds_after_finished": old.spec.lifecycle.ttl_seconds_after_finished}
    lifecycle = new.spec.lifecycle.model_copy(update=ttl)
    return new.spec.model_copy(update={"lifecycle": lifecycle}) == old.spec


CHANGE_RULES = (
    Rule(
        id="V-106",
        statement="The model is fixed (all but `maxTotalSequenceLength`).",
        where="model",
        cel=" && ".join(
            _same_if_set(key) for key in ("name", "revision", "tokenizer", "dtype", "isVlm", "init")
        ),
        holds=_model_is_kept,
        message="model is fixed for the life of the job, except maxTotalSequenceLength: make a new job, with "
        "checkpointing.pretrainedCheckpoint to go on from this one's weights",
        update=True,
    ),
    Rule(
        id="V-107",
        statement="Training prompts and their order are fixed.",
        where="data",
        field=".source",
        cel=" && ".join(_same_if_set(key) for key in ("source", "shuffle", "seed")),
        holds=lambda x, old: (x.source, x.shuffle, x.seed) == (old.source, old.shuffle, old.seed),
        message="data.source, shuffle and seed are fixed for the life of the job, since recovery refers to "
        "prompts by position: make a new job",
        update=True,
    ),
    Rule(
        id="V-108",
        statement="Algorithm, step size, group size and warm-up are fixed.",
        where="algorithm",
        cel="has(self.ppo) == has(oldSelf.ppo) && "
        + " && ".join(
            f"self.?{path}.orValue(0) == oldSelf.?{path}.orValue(0)"
            for path in (
                "grpo.?numPromptsPerStep",
                "grpo.?numGenerationsPerPrompt",
                "ppo.?numPromptsPerStep",
                "ppo.?numGenerationsPerPrompt",
                "ppo.?policyTrainingStartStep",
            )
        )
        + " && "
        + _same_below("ppo", "warmStartValueCheckpoint"),
        holds=lambda x, old: _algorithm(x) == _algorithm(old),
        message="the algorithm, numPromptsPerStep, numGenerationsPerPrompt, policyTrainingStartStep and "
        "warmStartValueCheckpoint are fixed for the life of the job, since saved rollouts depend on them: "
        "make a new job",
        update=True,
    ),
    Rule(
        id="V-109",
        statement="Where checkpoints live is fixed.",
        field=".checkpointing.volume",
        cel=" && ".join(_same_if_set(f"checkpointing.{key}") for key in COLD_CHECKPOINT_KEYS),
        holds=lambda x, old: _checkpoint_place(x) == _checkpoint_place(old),
        message="checkpointing.volume, mountPath, directory and pretrainedCheckpoint are fixed for the life "
        "of the job: make a new job on the same claim and directory to move it",
        update=True,
    ),
    Rule(
        id="V-110",
        statement="Trainer, critic's start, fingerprint exclusions and manager are fixed.",
        cel=" && ".join(
            (
                _same("training.backend"),
                _same("managedBy"),
                _same("rolloutCheckpointing.extraFingerprintExcludedPaths"),
                _same_below("value", "name"),
                _same_below("value", "revision"),
            )
        ),
        holds=lambda x, old: _identity(x) == _identity(old),
        message="training.backend, value.name, value.revision, "
        "rolloutCheckpointing.extraFingerprintExcludedPaths and managedBy are fixed for the life of the job: "
        "make a new job",
        update=True,
    ),
    Rule(
        id="V-111",
        statement="Sizes and places change only while the job is suspended, before and after.",
        cel="(self.suspend && oldSelf.suspend) || ("
        + " && ".join((*map(_same, SIZES), _same_below("value", "parallelism"), *map(_same, PLACES)))
        + ")",
        holds=lambda x, old: (x.suspend and old.suspend) or _sizes(x) == _sizes(old),
        message="a size or place of the running job was changed (rayVersion, gpuResourceName, "
        "dataPlane.backend or numStorageUnits, backend, GPUs, hosts, parallelism or segments of generation "
        "and training, scheduling.provider, queueName or gang): set suspend to true first, change it, then "
        "set suspend to false",
        update=True,
    ),
    Rule(
        id="V-112",
        statement="A finished job changes nothing but `ttlSecondsAfterFinished`.",
        where=WHOLE_OBJECT,
        cel="!has(oldSelf.status) || !has(oldSelf.status.phase)"
        f" || !(oldSelf.status.phase in {list(FINISHED)}) || ({' && '.join(_fields_that_freeze())})",
        holds=_finished_stays,
        message="the job has finished ({phase}) and only lifecycle.ttlSecondsAfterFinished may still change: "
        "make a new job",
        about="spec",
        values={"phase": ("self.status.phase", lambda x, old: old.status.phase)},
        update=True,
    ),
    Rule(
        id="V-113",
        statement="The name is a DNS-1035 label of at most 40 characters.",
        where=WHOLE_OBJECT,
        cel="size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        holds=lambda x, _: (
            len(x.metadata.name) <= MAX_NAME_LENGTH and NAME.fullmatch(x.metadata.name) is not None
        ),
        message="metadata.name {self.metadata.name} must start with a letter, hold only lower-case letters, "
        "digits and hyphens, and have at most 40 characters, since names of services and pods derive from "
        "it: rename the job",
        about="metadata.name",
    ),
)
