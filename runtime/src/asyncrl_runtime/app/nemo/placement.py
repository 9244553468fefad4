"""How backends, nodes and GPUs are carried over; several settings make one."""

from __future__ import annotations

from asyncrl_runtime.app.nemo.conversions import PARALLEL_SIZES, Targets
from asyncrl_runtime.app.nemo.state import Import

RESOURCES = "policy.generation.colocated.resources"
VLLM_SIZES = {"tensor_parallel_size": "tensorParallel", "pipeline_parallel_size": "pipelineParallel"}
NODES, GPUS = "cluster.num_nodes", "cluster.gpus_per_node"


def settle_backend(job: Import) -> None:
    """The trainer: exactly one is enabled in the reference."""
    megatron = job.get("policy.megatron_cfg.enabled", False)
    dtensor = job.get("policy.dtensor_cfg.enabled", False)
    if bool(megatron) == bool(dtensor):
        found = "both enabled" if megatron else "neither enabled"
        job.fail("policy", f"megatron_cfg and dtensor_cfg are {found}: enable one of them")
    elif megatron:
        job.put("training.backend", "megatron", "policy.megatron_cfg.enabled")
    else:
        job.put("training.backend", "torch", "policy.dtensor_cfg.enabled")


def settle_split(job: Import) -> None:
    """Divide the cluster's nodes or GPUs between generation and training."""
    nodes, gpus = _required(job, NODES), _required(job, GPUS)
    if nodes is None or gpus is None:
        return
    if job.get("policy.generation.colocated.enabled", False):
        _shards(job, nodes, gpus, GPUS)
        _training(job, nodes, gpus)
        return
    taken_nodes = job.whole(f"{RESOURCES}.num_nodes", 1)
    taken_gpus = _required(job, f"{RESOURCES}.gpus_per_node")
    if taken_nodes is None or taken_gpus is None:
        return
    _shards(job, taken_nodes, taken_gpus, f"{RESOURCES}.gpus_per_node")
    if nodes == 1:
        left = gpus - taken_nodes * taken_gpus
        words = f"{GPUS} {gpus} − {taken_nodes * taken_gpus} for generation = {left} GPUs for training"
        _training(job, 1, left, words)
    else:
        left = nodes - taken_nodes
        words = f"{NODES} {nodes} − {taken_nodes} for generation = {left} nodes for training"
        _training(job, left, gpus, words)


def _required(job: Import, path: str) -> int | None:
    if job.get(path) is None:
        job.fail(path, "is not set: give the number, GPUs are split between generation and training")
        return None
    return job.whole(path)


def _training(job: Import, hosts: int, gpus: int, words: str = "") -> None:
    if hosts <= 0 or gpus <= 0:
        job.fail(RESOURCES, f"leaves nothing to train on: {words}; raise cluster or lower resources")
        return
    job.put("training.hosts", hosts, NODES)
    job.put("training.gpusPerHost", gpus, GPUS)


def _shards(job: Import, nodes: int, gpus: int, source: str) -> None:
    """Shards of as many GPUs as the engine's parallel sizes ask for."""
    sizes = engine_sizes(job)
    if sizes is None:
        return
    per_shard, total = sizes[0] * sizes[1], nodes * gpus
    if total % per_shard:
        job.fail(
            source, f"{nodes} nodes × {gpus} GPUs ÷ {per_shard} GPUs of a shard leaves {total % per_shard}"
        )
        return
    if per_shard > gpus and per_shard % gpus:
        job.fail(source, f"{per_shard} GPUs of a shard ÷ {gpus} GPUs of a node leaves {per_shard % gpus}")
        return
    job.put("generation.shards", total // per_shard, source)
    job.put("generation.gpusPerShard", per_shard, source)
    job.put("generation.hostsPerShard", max(1, per_shard // gpus), source)
    if job.get("policy.generation.backend", "vllm") == "megatron":
        job.put("generation.tensorParallel", sizes[0], source)
        job.put("generation.pipelineParallel", sizes[1], source)


def engine_sizes(job: Import) -> tuple[int, int] | None:
    """GPUs over which an engine splits layers, and its stages; None after an error."""
    if job.get("policy.generation.backend", "vllm") != "megatron":
        block, names = "policy.generation.vllm_cfg", tuple(VLLM_SIZES)
    else:
        own = "policy.generation.mcore_generation_config"
        names = tuple(PARALLEL_SIZES)[:2]
        block = own if any(job.get(f"{own}.{name}") for name in names) else "policy.megatron_cfg"
    tensor, pipeline = (job.whole(f"{block}.{name}", 1) for name in names)
    return None if tensor is None or pipeline is None else (tensor, pipeline)


def settle_store(job: Import) -> None:
    """A store that cannot save rollouts needs that said, since ours saves them by default."""
    if job.get("data_plane.backend") == "mooncake_cpu" and job.get("checkpointing.save_data_plane") is None:
        job.put("checkpointing.saveDataPlane", False, "data_plane.backend")


def engine_argument(job: Import, path: str, value: object, targets: Targets) -> None:
    """Parallel sizes have fields of their own; the rest goes to the engine as it is."""
    key = path.rpartition(".")[2]
    if key in VLLM_SIZES:
        job.put(f"generation.{VLLM_SIZES[key]}", value, path)
    elif value is not None:
        job.put(f"{targets[0]}.{key}", value, path)
        job.note(path, f"is handed to the engine as it is, in spec.{targets[0]}")
