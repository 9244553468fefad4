"""Which engine stands behind `generation.backend`, `training.backend` and the refit transport."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_runtime.adapters.advantages import ColumnAdvantages
from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.ray.cluster import GENERATION, TRAINING, Cluster, Role
from asyncrl_runtime.adapters.torch.advantage_worker import AdvantageWorkers
from asyncrl_runtime.adapters.torch.broadcast_sync import BroadcastSync
from asyncrl_runtime.adapters.torch.entry import Bound, torch_server
from asyncrl_runtime.adapters.torch.files_sync import FilesSync
from asyncrl_runtime.adapters.torch.generator import TorchGenerator
from asyncrl_runtime.adapters.torch.settings import (
    Device,
    EngineSettings,
    OptimizerSettings,
    TorchModelSettings,
    TrainerSettings,
    engine_args,
)
from asyncrl_runtime.adapters.torch.shape import DecoderShape
from asyncrl_runtime.adapters.torch.shared_memory_sync import SharedMemorySync
from asyncrl_runtime.adapters.torch.trainer import TorchTrainer
from asyncrl_runtime.adapters.transfer_queue.plane import TransferQueuePlane
from asyncrl_runtime.adapters.workers import ForkHosts, Hosts
from asyncrl_runtime.algorithms.from_spec import loss_settings, stage_settings
from asyncrl_runtime.ports.advantage import AdvantageStage
from asyncrl_runtime.ports.data_plane import DataPlane
from asyncrl_runtime.ports.generator import Generator, Sampling
from asyncrl_runtime.ports.prompts import Tokenizer
from asyncrl_runtime.ports.trainer import Trainer
from asyncrl_runtime.ports.weight_sync import WeightSync

STARTUP = "spec.lifecycle.startupDeadlineSeconds"
STALL = "spec.lifecycle.stallDeadlineSeconds"


def shard_sampling(spec: JobSpec) -> Sampling:
    """How training completions are sampled."""
    asked = spec.generation.sampling
    return Sampling(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        max_new_tokens=asked.max_new_tokens or spec.model.max_total_sequence_length,
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        stop_strings=tuple(asked.stop_strings or ()),
    )


def torch_model(spec: JobSpec, tokenizer: Tokenizer, *, gpus: int) -> TorchModelSettings:
    """The policy as the torch adapters take it."""
    init, name = spec.model.init, spec.model.name
    shape = None
    if init is not None:
        heads = init.num_attention_heads
        shape = DecoderShape(
            vocab_size=init.vocab_size or tokenizer.vocab_size,
            hidden_size=init.hidden_size,
            num_layers=init.num_hidden_layers,
            num_heads=heads,
            num_kv_heads=init.num_key_value_heads or heads,
            head_dim=init.hidden_size // heads,
            intermediate_size=init.intermediate_size or 4 * init.hidden_size,
            max_positions=spec.model.max_total_sequence_length,
            qkv_bias=init.architecture == "qwen2",
            tied_embeddings=init.tie_word_embeddings,
        )
    pretrained = spec.checkpointing.pretrained_checkpoint
    device: Device = "cuda" if gpus else "cpu"
    return TorchModelSettings(
        folder=pretrained.path if pretrained else name,
        shape=None if pretrained else shape,
        seed=Derived(spec).valid_algorithm.seed,
        dtype=spec.model.dtype,
        device=device,
    )


def _decoder(tokenizer: Tokenizer) -> Callable[[list[int]], str]:
    """Runs in a shard's process."""
    return tokenizer.decode


def host_for(spec: JobSpec) -> Hosts:
    """Forks of this process where the data plane is in it, and else the actors of a Ray cluster."""
    return ForkHosts(torch_server) if spec.data_plane.backend == "inProcess" else ray_cluster(spec)


def ray_cluster(spec: JobSpec) -> Cluster:
    """The cluster that RAY_ADDRESS names, or one that is started on this machine."""
    generation, training = spec.generation, spec.training
    shards = Role(generation.shards, gpus=generation.gpus_per_shard, size_setting="spec.generation.shards")
    ranks = Role(
        training.hosts,
        gpus=training.gpus_per_host,
        workers=max(1, training.gpus_per_host),
        size_setting="spec.training.hosts",
    )
    return Cluster(
        {TRAINING: ranks} if generation.colocated else {GENERATION: shards, TRAINING: ranks},
        address=os.environ.get("RAY_ADDRESS") or None,
        num_cpus=(os.cpu_count() or 1) + spec.data_plane.num_storage_units + 1,
        start_seconds=spec.lifecycle.startup_deadline_seconds,
        setting=STARTUP,
    )


def data_plane(spec: JobSpec, hosts: Hosts) -> DataPlane:
    """Rows in this process, or in the actors of a TransferQueue."""
    asked = spec.data_plane
    if asked.backend == "inProcess":
        return InProcessPlane(asked.storage_capacity)
    return TransferQueuePlane(
        host=hosts.data_plane(),
        storage_units=asked.num_storage_units,
        capacity_rows=asked.storage_capacity,
        start_seconds=spec.lifecycle.startup_deadline_seconds,
        setting=STARTUP,
    )


def generators(spec: JobSpec, tokenizer: Tokenizer, hosts: Hosts) -> list[Generator]:
    """One torch engine per shard, each in a process of its own."""
    generation = spec.generation
    settings = EngineSettings(
        model=torch_model(spec, tokenizer, gpus=generation.gpus_per_shard),
        max_sequence_tokens=spec.model.max_total_sequence_length,
        end_token_ids=(tokenizer.eos_token_id,),
        decoder=(_decoder, (tokenizer,)) if generation.sampling.stop_strings else None,
        **engine_args(generation.engine_args or {}),
    )
    start = Bound(spec.lifecycle.startup_deadline_seconds, STARTUP)
    probe = Bound(
        spec.async_rl.generation_fleet_health.probe_timeout_seconds,
        "spec.asyncRL.generationFleetHealth.probeTimeoutSeconds",
    )
    request = Bound(spec.lifecycle.stall_deadline_seconds, STALL)
    return [
        TorchGenerator(
            index,
            settings,
            host=hosts.shard(index),
            start_bound=start,
            request_bound=request,
            probe_bound=probe,
        )
        for index in range(generation.shards)
    ]


def trainer_settings(spec: JobSpec, tokenizer: Tokenizer, *, total_updates: int) -> TrainerSettings:
    """The trainer as the torch adapters take it; the spec is resolved."""
    training, sampling, facts = spec.training, spec.generation.sampling, Derived(spec)
    optimizer, scheduler = training.optimizer, training.scheduler
    packing, dynamic = training.sequence_packing, training.dynamic_batching
    return TrainerSettings(
        model=torch_model(spec, tokenizer, gpus=training.gpus_per_host),
        precision=training.precision or spec.model.dtype,
        loss=loss_settings(spec),
        optimizer=OptimizerSettings(
            lr=optimizer.lr,
            weight_decay=optimizer.weight_decay,
            betas=(optimizer.beta1, optimizer.beta2),
            epsilon=optimizer.eps,
            schedule=scheduler.name,
            warmup_steps=scheduler.warmup_steps,
            total_steps=scheduler.decay_steps or total_updates,
            min_lr=scheduler.min_lr,
            max_grad_norm=training.max_grad_norm,
        ),
        micro_batch_rows=training.micro_batch_size,
        logprob_batch_rows=training.logprob_batch_size,
        micro_batch_tokens=next((m.micro_batch_tokens for m in (packing, dynamic) if m.enabled), None),
        packing=packing.enabled,
        pad_to_multiple=training.make_sequence_length_divisible_by,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        reference=not facts.skips_reference_logprobs,
        seed=facts.valid_algorithm.seed,
    )


def trainer(
    spec: JobSpec, plane: DataPlane, tokenizer: Tokenizer, hosts: Hosts, *, total_updates: int
) -> Trainer:
    """The torch trainer: a process for each GPU of its hosts, or one for each host without."""
    ranks = spec.training.hosts * max(1, spec.training.gpus_per_host)
    return TorchTrainer(
        trainer_settings(spec, tokenizer, total_updates=total_updates),
        plane,
        hosts=[hosts.trainer(rank) for rank in range(ranks)],
        start_bound=Bound(spec.lifecycle.startup_deadline_seconds, STARTUP),
        call_bound=Bound(spec.lifecycle.stall_deadline_seconds, STALL),
    )


def weight_sync(
    spec: JobSpec, learner: Trainer, shards: Sequence[Generator], *, directory: Path
) -> WeightSync:
    """How weights reach the shards; `directory` is for those that travel as files."""
    refit = spec.async_rl.refit
    bound = Bound(
        refit.deadline_seconds or spec.lifecycle.stall_deadline_seconds,
        "spec.asyncRL.refit.deadlineSeconds" if refit.deadline_seconds else STALL,
    )
    torch_trainer, members = cast(TorchTrainer, learner), [cast(TorchGenerator, shard) for shard in shards]
    ends = (lambda: torch_trainer.worker), (lambda: members)
    match Derived(spec).refit_transport:
        case "SharedMemory":
            return SharedMemorySync(*ends, bound=bound)
        case "Files":
            return FilesSync(*ends, directory=directory, bound=bound)
        case _:
            return BroadcastSync(*ends, bound=bound)


def advantage_stage(spec: JobSpec) -> AdvantageStage:
    """The advantage stage in `asyncRL.advantageWorkers` processes, or in threads of the controller."""
    lifecycle = spec.lifecycle
    return ColumnAdvantages(
        stage_settings(spec),
        has_previous_logprobs=not Derived(spec).skips_previous_logprobs,
        runner=AdvantageWorkers(
            spec.async_rl.advantage_workers,
            start_bound=Bound(lifecycle.startup_deadline_seconds, STARTUP),
            call_bound=Bound(lifecycle.stall_deadline_seconds, STALL),
        ),
    )
