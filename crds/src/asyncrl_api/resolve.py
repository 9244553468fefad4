"""Fills every default that depends on other fields, once per attempt (SC-2.9, SC-2.10)."""

from typing import Any, TypeVar

from pydantic import BaseModel

from asyncrl_api.derived import DEFAULT_GLOBAL_SEGMENT_SIZE, DEFAULT_LOCAL_BUFFER_SIZE, Derived
from asyncrl_api.job import AsyncRLJob, JobSpec
from asyncrl_api.spec.algorithm import AlgorithmSpec
from asyncrl_api.spec.async_rl import AsyncRLSpec
from asyncrl_api.spec.data import DataSpec, PromptSource
from asyncrl_api.spec.loss import (
    LossSpec,
    ValueBatching,
    ValueOptimizer,
    ValueParallelism,
    ValueScheduler,
    ValueSpec,
)
from asyncrl_api.spec.operations import NodeQuarantineSpec
from asyncrl_api.spec.pods import PodFields, ResourceRequirements
from asyncrl_api.spec.training import MicroBatching, TrainingSpec

METRICS_PORT = 8090
CONTROLLER_RESOURCES = {"cpu": "2", "memory": "8Gi"}
POD_RESOURCES = {"cpu": "1", "memory": "4Gi"}
CPUS_PER_GPU = 4
GIBIBYTES_PER_GPU = 32

Block = TypeVar("Block", bound=BaseModel)
Value = TypeVar("Value")
Role = TypeVar("Role", bound=PodFields)


def resolve(job: AsyncRLJob, *, cluster: bool = False) -> AsyncRLJob:
    """Fill the derived defaults of a valid job; what is set stays. Resolving twice changes nothing.

    Left open, since more than the manifest is needed: the tokenizer and vocabulary of `model.init`,
    `scheduler.decaySteps`, `rewardWeights`, `logging.logDir`, and the operator's image.
    `cluster` says that the job runs in pods, where metrics are served by default.
    """
    spec, facts = job.spec, Derived(job.spec)
    training = _training(spec, facts)
    blocks = {
        "model": _model(spec),
        "data": _data(spec.data),
        "algorithm": _algorithm(spec.algorithm),
        "loss": _loss(spec.loss, facts),
        "training": training,
        "value": spec.value and _value(spec.value, spec, training),
        "validation": _validation(spec, facts),
        "async_rl": _async_rl(spec.async_rl, facts),
        "data_plane": _data_plane(spec),
        "checkpointing": filled(spec.checkpointing, directory=job.metadata.name),
        "logging": _logging(job),
        "controller": _pods(spec.controller, spec.image, CONTROLLER_RESOURCES),
        "generation": _generation(spec, facts),
        "node_quarantine": _node_quarantine(spec.node_quarantine),
        "observability": filled(spec.observability, metrics_port=METRICS_PORT if cluster else 0),
    }
    return job.model_copy(update={"spec": spec.model_copy(update=blocks)})


def resolved(value: Value | None) -> Value:
    """A field that `resolve` has filled."""
    if value is None:
        raise ValueError("the spec is not resolved")
    return value


def filled(block: Block, **defaults: Any) -> Block:
    """Copy a block with the given values where it has none."""
    missing = {name: value for name, value in defaults.items() if getattr(block, name) is None}
    return block.model_copy(update=missing) if missing else block


def _model(spec: JobSpec) -> BaseModel:
    init = spec.model.init
    if init is not None:
        init = filled(
            init,
            intermediate_size=4 * init.hidden_size,
            num_key_value_heads=init.num_attention_heads,
        )
    return filled(spec.model.model_copy(update={"init": init}), tokenizer=spec.model.name)


def _data(data: DataSpec) -> DataSpec:
    source = _prompts(data.source, "train", data.seed)
    validation = data.validation and _prompts(data.validation, "validation", data.seed + 1)
    return data.model_copy(update={"source": source, "validation": validation})


def _prompts(source: PromptSource, split: str, seed: int) -> PromptSource:
    kinds = {
        "hub": source.hub and filled(source.hub, split=split),
        "reasoning_gym": source.reasoning_gym and filled(source.reasoning_gym, seed=seed),
        "generated": source.generated and filled(source.generated, seed=seed),
    }
    return source.model_copy(update=kinds)


def _algorithm(algorithm: AlgorithmSpec) -> AlgorithmSpec:
    grpo, ppo = algorithm.grpo, algorithm.ppo
    if grpo is not None:
        knobs = {
            "grpo": ("use_leave_one_out_baseline", "normalize_rewards", "baseline_excludes_masked"),
            "gdpo": ("use_leave_one_out_baseline", "normalize_rewards", "baseline_excludes_masked"),
            "reinforce_plus_plus": ("minus_baseline", "baseline_excludes_masked"),
            "opd": (),
        }[grpo.adv_estimator.name]
        defaults = {knob: knob != "baseline_excludes_masked" for knob in knobs}
        grpo = grpo.model_copy(update={"adv_estimator": filled(grpo.adv_estimator, **defaults)})
    if ppo is not None:
        estimator = filled(
            ppo.adv_estimator,
            gae_lambda=0.95,
            gae_gamma=1.0,
            length_adaptive_alpha=0.0,
            normalize_advantages=True,
        )
        ppo = filled(ppo, critic_ppo_epochs=ppo.ppo_epochs).model_copy(update={"adv_estimator": estimator})
    return algorithm.model_copy(update={"grpo": grpo, "ppo": ppo})


def _loss(loss: LossSpec, facts: Derived) -> LossSpec:
    return filled(
        loss,
        use_importance_sampling_correction=facts.corrects,
        reference_policy_kl_penalty=facts.kl_penalty,
    )


def _training(spec: JobSpec, facts: Derived) -> TrainingSpec:
    training = spec.training
    tokens = training.micro_batch_size * spec.model.max_total_sequence_length
    training = training.model_copy(
        update={
            "sequence_packing": filled(training.sequence_packing, micro_batch_tokens=tokens),
            "dynamic_batching": filled(training.dynamic_batching, micro_batch_tokens=tokens),
        }
    )
    training = filled(training, precision=spec.model.dtype, offload_optimizer_for_logprob=facts.is_ppo)
    return _pods(training, spec.image, _pod_resources(training.gpus_per_host))


def _value(value: ValueSpec, spec: JobSpec, training: TrainingSpec) -> ValueSpec:
    """The critic, with what it does not say taken from policy and trainer."""
    own_weights = value.name is not None
    return filled(
        value,
        name=spec.model.name,
        revision=None if own_weights else spec.model.revision,
        precision=training.precision,
        micro_batch_size=training.micro_batch_size,
        logprob_batch_size=training.logprob_batch_size,
        make_sequence_length_divisible_by=training.make_sequence_length_divisible_by,
        max_grad_norm=training.max_grad_norm,
    ).model_copy(
        update={
            "parallelism": _following(value.parallelism or ValueParallelism(), training.parallelism),
            "optimizer": _following(value.optimizer or ValueOptimizer(), training.optimizer),
            "scheduler": _following(value.scheduler or ValueScheduler(), training.scheduler),
            "sequence_packing": _batching(value.sequence_packing, training.sequence_packing),
            "dynamic_batching": _batching(value.dynamic_batching, training.dynamic_batching),
        }
    )


def _following(block: Block, leader: BaseModel) -> Block:
    """Fill a block from one with the same fields. `decaySteps` counts other updates and is left."""
    names = [name for name in block.__class__.model_fields if name != "decay_steps"]
    return filled(block, **{name: getattr(leader, name) for name in names})


def _batching(block: ValueBatching | None, leader: MicroBatching) -> ValueBatching:
    return _following(block or ValueBatching(), leader)


def _validation(spec: JobSpec, facts: Derived) -> BaseModel:
    sampling = spec.generation.sampling
    block = spec.validation.model_copy(
        update={
            "sampling": filled(
                spec.validation.sampling,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
            )
        }
    )
    return filled(block, period_steps=facts.validation_period_steps, at_start=facts.validates_at_start)


def _async_rl(block: AsyncRLSpec, facts: Derived) -> AsyncRLSpec:
    knobs: dict[str, dict[str, Any]] = {
        "in_order": {"max_lookahead_versions": facts.lookahead},
        "weight_fifo": {"max_staleness_versions": facts.staleness},
        "ready_first": {"max_staleness_versions": facts.staleness},
        "windowed": {"max_staleness_versions": facts.staleness, "sample_freshest_first": False},
        "custom": {},
    }
    sampler = filled(block.sampler, **knobs[facts.sampler])
    return filled(
        block.model_copy(update={"sampler": sampler}),
        min_groups_for_streaming_train=facts.min_groups,
        max_buffered_rollouts=facts.buffer_size,
    )


def _data_plane(spec: JobSpec) -> BaseModel:
    if spec.data_plane.backend != "mooncake_cpu":
        return spec.data_plane
    return filled(
        spec.data_plane,
        global_segment_size=DEFAULT_GLOBAL_SEGMENT_SIZE,
        local_buffer_size=DEFAULT_LOCAL_BUFFER_SIZE,
    )


def _logging(job: AsyncRLJob) -> BaseModel:
    logging = job.spec.logging
    return logging.model_copy(update={"wandb": filled(logging.wandb, run_name=job.metadata.name)})


def _generation(spec: JobSpec, facts: Derived) -> BaseModel:
    generation = spec.generation
    sampling = filled(generation.sampling, max_new_tokens=spec.model.max_total_sequence_length)
    pods = _pod_resources(generation.gpus_per_shard // generation.hosts_per_shard)
    generation = filled(
        generation.model_copy(update={"sampling": sampling}), tensor_parallel=facts.tensor_parallel
    )
    return _pods(generation, spec.image, pods)


def _pod_resources(gpus: int) -> dict[str, str]:
    """What a pod of a role asks for: cores and memory by the GPUs that it has."""
    if gpus == 0:
        return POD_RESOURCES
    return {"cpu": str(CPUS_PER_GPU * gpus), "memory": f"{GIBIBYTES_PER_GPU * gpus}Gi"}


def _pods(role: Role, image: str | None, requests: dict[str, str]) -> Role:
    resources = filled(role.resources, requests=requests)
    resources = filled(resources, limits=_limits(resources))
    return filled(role, image=image, node_selector={}).model_copy(update={"resources": resources})


def _limits(resources: ResourceRequirements) -> dict[str, str]:
    """Memory as requested; cores are left unlimited."""
    return {name: amount for name, amount in (resources.requests or {}).items() if name == "memory"}


def _node_quarantine(block: NodeQuarantineSpec) -> NodeQuarantineSpec:
    signals = tuple(
        filled(signal, value="True") if signal.kind == "Condition" else signal
        for signal in block.node_signals
    )
    return block.model_copy(update={"node_signals": signals})
