"""Every row of the rename table: what a setting becomes, or what is said about it."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

import pytest
from support.nemo import carried, told

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.nulls import prune
from asyncrl_api.paths import find
from asyncrl_api.renames import new_place
from asyncrl_api.schema import is_nullable, unwrap
from asyncrl_runtime.app.nemo.conversions import copy, quantity
from asyncrl_runtime.app.nemo.table import TABLE
from asyncrl_runtime.app.nemo.walk import rename_path

COPIES = sorted(
    {
        (source.replace("<algo>", algorithm), row.targets[0].replace("<algo>", algorithm))
        for row in TABLE
        if row.convert is copy
        for source in row.sources
        for algorithm in ("grpo", "ppo")
        if algorithm == "grpo" or "<algo>" in source
    }
)
NEEDS = {
    "on_policy_distillation": {"on_policy_distillation.enabled": True},
    "value.megatron_cfg": {"value.megatron_cfg.enabled": True},
    "async_rl.sampler.target": {"async_rl.sampler.name": "custom"},
}
"""What else must be set for a row to count, by the start of its path."""


def sample(path):
    """A value that a field takes, and that is not its default."""
    place = find(path)
    bare, _ = unwrap(place.hint)
    origin = get_origin(bare)
    if origin is Literal:
        return get_args(bare)[-1]
    if origin is tuple:
        return ["3"] if unwrap(get_args(bare)[0])[0] is str else [3]
    if origin is dict:
        return {"a": "sibling"}
    return {bool: not place.field.default, int: 3, float: 0.25, str: "module:Class"}[bare]


def algorithm_of(source):
    return "ppo" if source.startswith(("ppo.", "value", "ppo")) else "grpo"


def needed(source):
    return {k: v for start, more in NEEDS.items() if source.startswith(start) for k, v in more.items()}


@pytest.mark.parametrize(("source", "target"), COPIES)
def test_a_plain_row_copies_a_value(source, target):
    value = sample(target)

    job = carried({**needed(source), source: value}, algorithm_of(source))

    assert job.made(target) == value
    assert (told(job.errors), told(job.lost)) == ([], [])


@pytest.mark.parametrize(("source", "target"), COPIES)
def test_a_plain_row_keeps_null_only_where_it_is_a_value(source, target):
    job = carried({**needed(source), source: None}, algorithm_of(source))

    node = prune({"spec": job.spec}, AsyncRLJob)["spec"]
    *blocks, key = target.split(".")
    for step in blocks:
        node = node.get(step, {})
    place = find(target)
    assert (key in node) == is_nullable(place.field, place.hint)
    assert node.get(key) is None
    assert told(job.errors) == []


@pytest.mark.parametrize(("source", "target"), COPIES)
def test_the_table_agrees_with_the_way_out_of_unknown_keys(source, target):
    place = new_place(f"spec.{source}")

    assert place is None or find(place) is None or place == target


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.id}-{row.sources[0]}")
def test_every_target_of_the_table_is_a_field(row):
    for target in row.targets:
        for algorithm in ("grpo", "ppo"):
            assert find(target.replace("<algo>", algorithm).removesuffix(".*")) is not None


@dataclass(frozen=True)
class Case:
    """One setting that is not copied as it is, and what becomes of it."""

    source: str
    value: Any
    made: dict = field(default_factory=dict)
    error: str | None = None
    lost: str | None = None
    left: str | None = None
    note: str | None = None
    also: dict = field(default_factory=dict)
    algorithm: str = "grpo"
    row: str | None = None
    """The row's source where it is not this one."""


MOONCAKE = {"data_plane.backend": "mooncake_cpu"}
MEGATRON = {"policy.megatron_cfg.enabled": True}
DTENSOR = {"policy.megatron_cfg.enabled": False, "policy.dtensor_cfg.enabled": True}
TEACHERS = {"on_policy_distillation.enabled": True}
WARMUP = {"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": {"start_factor": 0.001, "total_iters": 20}}
RESOURCES = "policy.generation.colocated.resources"
COSINE = {"name": "torch.optim.lr_scheduler.CosineAnnealingLR", "kwargs": {"T_max": 80, "eta_min": 1e-7}}
ADAMW = {
    "name": "torch.optim.AdamW",
    "kwargs": {"lr": 2e-6, "weight_decay": 0.1, "betas": [0.8, 0.9], "eps": 1e-7, "fused": True},
}


def model_cases(block, target, algorithm):
    """What policy and critic have alike."""
    made = {f"{target}.optimizer.{key}": value for key, value in (
        ("lr", 2e-6), ("weightDecay", 0.1), ("beta1", 0.8), ("beta2", 0.9), ("eps", 1e-7),
    )}  # fmt: skip
    on = {"enabled": True, "train_mb_tokens": 512}
    sizes = {"tensor": "tensor_model_parallel_size", "pipeline": "pipeline_model_parallel_size",
             "context": "context_parallel_size", "expert": "expert_model_parallel_size"}  # fmt: skip
    enabled = {f"{block}.megatron_cfg.enabled": True}
    return [
        Case(f"{block}.optimizer", ADAMW, made, left="only chooses", algorithm=algorithm),
        Case(f"{block}.optimizer", {"name": "torch.optim.SGD"}, error="AdamW only", algorithm=algorithm),
        Case(f"{block}.optimizer", {"kwargs": {"amsgrad": True}}, lost="AdamW is set", algorithm=algorithm),
        Case(f"{block}.optimizer", {"kwargs": {"betas": 1}}, error="two numbers", algorithm=algorithm),
        Case(f"{block}.optimizer", "adam", error="not a block", algorithm=algorithm),
        Case(f"{block}.scheduler", [WARMUP, COSINE, {"milestones": [20]}],
             {f"{target}.scheduler": {"name": "cosine", "warmupSteps": 20, "decaySteps": 100, "minLr": 1e-7}},
             algorithm=algorithm),
        Case(f"{block}.scheduler", COSINE,
             {f"{target}.scheduler": {"name": "cosine", "decaySteps": 80, "minLr": 1e-7}},
             algorithm=algorithm),
        Case(f"{block}.scheduler", {"name": "ConstantLR", "kwargs": {"factor": 1.0}},
             {f"{target}.scheduler": {"name": "constant"}}, algorithm=algorithm),
        Case(f"{block}.scheduler",
             {"name": "LinearLR", "kwargs": {"start_factor": 1.0, "end_factor": 0.5, "total_iters": 8}},
             {f"{target}.scheduler": {"name": "linear", "decaySteps": 8, "minLr": 1e-6}},
             also={f"{block}.optimizer": {"kwargs": {"lr": 2e-6}}}, algorithm=algorithm),
        Case(f"{block}.scheduler", {"name": "LinearLR", "kwargs": {"start_factor": 0.1, "total_iters": 8}},
             {f"{target}.scheduler": {"warmupSteps": 8}}, lost="starts at 0.1", algorithm=algorithm),
        Case(f"{block}.scheduler", [WARMUP, COSINE, {"milestones": [30]}], error="begins at 30",
             algorithm=algorithm),
        Case(f"{block}.scheduler", [COSINE, COSINE], error="one shape", algorithm=algorithm),
        Case(f"{block}.scheduler", {"name": "StepLR"}, error="is not a constant", algorithm=algorithm),
        Case(f"{block}.scheduler", "cosine", error="not a schedule", algorithm=algorithm),
        *(case for name, ours in (("dynamic_batching", "dynamicBatching"),
                                  ("sequence_packing", "sequencePacking"))
          for case in (
            Case(f"{block}.{name}", {**on, "logprob_mb_tokens": 512},
                 {f"{target}.{ours}": {"enabled": True, "microBatchTokens": 512}}, algorithm=algorithm),
            Case(f"{block}.{name}", {"enabled": False, "train_mb_tokens": 9},
                 {f"{target}.{ours}": {"enabled": False}}, algorithm=algorithm),
            Case(f"{block}.{name}", {**on, "logprob_mb_tokens": 64}, lost="same number", algorithm=algorithm),
            Case(f"{block}.{name}", {**on, "algorithm": "first_fit"}, lost="packing", algorithm=algorithm),
            Case(f"{block}.{name}", True, error="not a block", algorithm=algorithm),
          )),
        *(Case(f"{block}.megatron_cfg.{key}", 2, {f"{target}.parallelism.{ours}": 2}, also=enabled,
               algorithm=algorithm) for ours, key in sizes.items()),
    ]  # fmt: skip


def old(key, *cases):
    """An old name, at the top and in `async_rl`."""
    return [
        Case(f"{block}{key}", value, made, also=also, row=f"{block}{key}", **said)
        for block in ("", "async_rl.")
        for value, made, also, said in cases
    ]


ALGORITHM = [
    case
    for algo in ("grpo", "ppo")
    for case in (
        Case(f"{algo}.max_num_epochs", 4, {f"algorithm.{algo}.maxNumEpochs": 4}, algorithm=algo),
        Case(f"{algo}.max_num_epochs", -1, error="max_num_steps as the bound", algorithm=algo),
        Case(f"{algo}.max_num_epochs", 0, error="set a positive number", algorithm=algo),
        Case(f"{algo}.batch_multiplier", 1.0, algorithm=algo),
        Case(f"{algo}.batch_multiplier", 2.0, error="dynamic_sampling_max_gen_batches", algorithm=algo),
        Case(f"{algo}.num_val_generations_per_prompt", 4, error="val_num_generations", algorithm=algo),
        Case(f"{algo}.calculate_advantages_on_gpu", False, algorithm=algo),
        Case(f"{algo}.calculate_advantages_on_gpu", True, error="has no GPU", algorithm=algo),
        Case(f"{algo}.async_{algo}", "on", error="set it to null", algorithm=algo),
        Case(f"{algo}.async_{algo}", None, algorithm=algo),
        Case(f"{algo}.async_{algo}.enabled", False,
             {"asyncRL.sampler": {"name": "in_order", "maxLookaheadVersions": 0}}, algorithm=algo),
        Case(f"{algo}.async_{algo}.enabled", True, {"asyncRL.sampler": {"name": "in_order"}}, algorithm=algo),
        Case(f"{algo}.async_{algo}.max_trajectory_age_steps", 3, algorithm=algo,
             made={"asyncRL.sampler": {"name": "in_order", "maxLookaheadVersions": 3}}),
        Case(f"{algo}.async_{algo}.max_trajectory_age_steps", 3, left="not enabled", algorithm=algo,
             made={"asyncRL.sampler.maxLookaheadVersions": 0},
             also={f"{algo}.async_{algo}.enabled": False}),
    )
]  # fmt: skip
ESTIMATORS = [
    Case("grpo.adv_estimator.name", "gdpo", {"algorithm.grpo.advEstimator.name": "gdpo"},
         row="grpo.adv_estimator.*"),
    Case("grpo.adv_estimator.minus_baseline", True, row="grpo.adv_estimator.*",
         made={"algorithm.grpo.advEstimator.minusBaseline": None}),
    Case("grpo.adv_estimator.minus_baseline", False, error="does not read it", row="grpo.adv_estimator.*"),
    Case("grpo.adv_estimator.gae_lambda", 0.5, error="does not read it", row="grpo.adv_estimator.*"),
    Case("grpo.adv_estimator.decay", 0.5, lost="not known", row="grpo.adv_estimator.*"),
    Case("grpo.adv_estimator.baseline_excludes_masked", True,
         {"algorithm.grpo.advEstimator.baselineExcludesMasked": True}),
    Case("grpo.adv_estimator.baseline_excludes_masked", True, error="does not read it",
         also={"grpo.adv_estimator.name": "opd"}),
    Case("ppo.adv_estimator.gae_lambda_value", 1.0, {"algorithm.ppo.advEstimator.gaeLambdaValue": 1.0},
         row="ppo.adv_estimator.*", algorithm="ppo"),
    Case("ppo.adv_estimator.name", "raw_reward", error="use gae", row="ppo.adv_estimator.*",
         algorithm="ppo"),
    *(Case(f"grpo.{key}", False, {f"algorithm.grpo.advEstimator.{ours}": False})
      for key, ours in (("normalize_rewards", "normalizeRewards"),
                        ("use_leave_one_out_baseline", "useLeaveOneOutBaseline"))),
    *(Case(f"grpo.{key}", False, error="keep one", also={f"grpo.adv_estimator.{key}": True})
      for key in ("normalize_rewards", "use_leave_one_out_baseline")),
    *(Case(f"ppo.{key}", True, algorithm="ppo")
      for key in ("normalize_rewards", "use_leave_one_out_baseline")),
    *(Case(f"ppo.{key}", False, error="gae does not read it", algorithm="ppo")
      for key in ("normalize_rewards", "use_leave_one_out_baseline")),
]  # fmt: skip
RUNTIME = [
    Case("async_rl.sampler.depth", 3, {"asyncRL.sampler.arguments": {"depth": 3}}, row="async_rl.sampler.*",
         also={"async_rl.sampler.name": "custom"}),
    Case("async_rl.sampler.depth", 3, error="no knob of the sampler in_order", row="async_rl.sampler.*"),
    *(Case(f"async_rl.{name}.{key}", 3, {f"asyncRL.{ours}": 3}, row=f"async_rl.{name}.*")
      for name, key, ours in (("watchdog", "interval_s", "stallWatchdog.intervalSeconds"),
                              ("fleet_health", "healthy_threshold", "generationFleetHealth.healthyThreshold"),
                              ("policy_router", "port_range_low", "generationRouter.portRangeLow"))),
    Case("async_rl.watchdog.cadence", 3, lost="no such key", row="async_rl.watchdog.*"),
    Case("data_plane.enabled", True),
    Case("data_plane.enabled", False, error="built on the data plane"),
    Case("data_plane.impl", "transfer_queue"),
    Case("data_plane.impl", "kv", error="transfer_queue is the only one"),
    Case("data_plane.claim_meta_poll_interval_s", 0.5),
    *(Case(f"data_plane.{key}", value, {f"dataPlane.{ours}": size}, also=also)
      for key, ours in (("global_segment_size", "globalSegmentSize"),
                        ("local_buffer_size", "localBufferSize"))
      for value, size, also in ((2**33, "8Gi", MOONCAKE), (2**33, None, {}), (1000, "1000", MOONCAKE))),
    Case("data_plane.global_segment_size", "much", error="positive number", also=MOONCAKE),
    Case("data_plane.controller_address", "10.0.0.1:1", left="an address of its own"),
    Case("data_plane.ack_timeout_ms", 1500, {"dataPlane.ackTimeoutSeconds": 1.5}),
    Case("data_plane.ack_timeout_ms", "soon", error="milliseconds"),
    Case("data_plane.observability.callback", "f", left="from Python only"),
]  # fmt: skip
CHECKPOINTS = [
    Case("checkpointing.checkpoint_dir", "/results/a/b",
         {"checkpointing.mountPath": "/results/a", "checkpointing.directory": "b"}),
    Case("checkpointing.checkpoint_dir", "results/a", {"checkpointing.directory": "results/a"},
         note="below /checkpoints"),
    Case("checkpointing.checkpoint_dir", "/results", {"checkpointing.directory": "results"}, note="below"),
    Case("checkpointing.save_data_plane", True, {"checkpointing.saveDataPlane": True}),
    Case("checkpointing.save_data_plane", False, error="set it true"),
    Case("checkpointing.save_data_plane", False, {"checkpointing.saveDataPlane": False}, also=MOONCAKE),
    Case("checkpointing.save_data_plane", None, {"checkpointing.saveDataPlane": False}, also=MOONCAKE),
    Case("checkpointing.save_data_plane", False, {"checkpointing.saveDataPlane": False},
         also={"async_rl.sampler.name": "custom"}),
    Case("checkpointing.checkpoint_must_save_by", "01:02:03:04", {"checkpointing.mustSaveBySeconds": 93784}),
    Case("checkpointing.checkpoint_must_save_by", "3:00", error="DD:HH:MM:SS"),
    Case("checkpointing.pretrained_checkpoint.format", "megatron",
         {"checkpointing.pretrainedCheckpoint.format": "megatron"}),
    Case("checkpointing.pretrained_checkpoint.format", "pickle", error="safetensors, megatron"),
    Case("checkpointing.model_save_format", "safetensors", {"checkpointing.modelSaveFormat": "safetensors"}),
    Case("checkpointing.model_save_format", "torch_save", error="safetensors, megatron"),
    *(Case(f"checkpointing.{key}", value, left=left) for key in ("model_cache_dir", "model_repo_id")
      for value, left in (("", None), ("x", "image's cache"))),
    Case("checkpointing.is_peft", False),
    Case("checkpointing.is_peft", True, error="adapters"),
    Case("checkpointing.peft_config", {}),
    Case("checkpointing.peft_config", {"rank": 8}, error="adapters"),
    Case("rollout_checkpointing.extra_fingerprint_excluded_paths",
         ["policy.train_micro_batch_size", "async_rl.stall_watchdog.*", "cluster.**", "nowhere.*"],
         {"rolloutCheckpointing.extraFingerprintExcludedPaths":
          ["training.microBatchSize", "asyncRL.stallWatchdog.*"]}, lost="no counterpart"),
    Case("rollout_checkpointing.extra_fingerprint_excluded_paths", "x", error="not a list of dotpaths"),
]  # fmt: skip
MODELS = [
    *model_cases("policy", "training", "grpo"),
    *model_cases("value", "value", "ppo"),
    Case("policy.train_global_batch_size", 512),
    Case("policy.train_global_batch_size", 500, error="32 prompts × 16 generations = 512"),
    Case("value.train_global_batch_size", 512, algorithm="ppo"),
    Case("value.train_global_batch_size", 500, error="512", algorithm="ppo"),
    Case("policy.megatron_cfg.enabled", True, {"training.backend": "megatron"}),
    Case("policy.megatron_cfg.enabled", False, error="neither enabled"),
    Case("policy.megatron_cfg.train_iters", 9),
    Case("policy.dtensor_cfg.enabled", True, {"training.backend": "torch"},
         also={"policy.megatron_cfg.enabled": False}),
    Case("policy.dtensor_cfg.enabled", True, error="both enabled"),
    Case("policy.precision", "float16", {"training.precision": "float16", "model.dtype": "float16"}),
    Case("policy.tokenizer", "a/b", {"model.tokenizer": "a/b"}),
    Case("policy.tokenizer", {"name": "a/b", "chat_template": None}, {"model.tokenizer": "a/b"}),
    Case("policy.tokenizer", {"chat_template": "x"}, lost="as its files describe it"),
    Case("policy.refit_buffer_size_gb", 4, {"asyncRL.refit.bufferSize": "4Gi"}),
    Case("policy.refit_buffer_size_gb", 0.5, {"asyncRL.refit.bufferSize": "512Mi"}),
    Case("policy.refit_buffer_size_gb", 0, error="positive number"),
    Case("value.megatron_cfg.enabled", True, algorithm="ppo"),
    Case("value.megatron_cfg.enabled", True, error="the policy's trainer", also=DTENSOR, algorithm="ppo"),
    Case("value.tokenizer", {"name": "example-org/base"}, algorithm="ppo"),
    Case("value.tokenizer", "other", error="the policy's tokens", algorithm="ppo"),
    Case("value.max_total_sequence_length", 512, algorithm="ppo"),
    Case("value.max_total_sequence_length", 64, error="whole sequences", algorithm="ppo"),
]  # fmt: skip
GENERATION = [
    *(Case("policy.generation.backend", name, {"generation.backend": name}) for name in ("vllm", "megatron")),
    *(Case("policy.generation.backend", name, error="vllm, megatron")
      for name in ("sglang", "trtllm", "dynamo")),
    Case("policy.generation.vllm_cfg.tensor_parallel_size", 2, row="policy.generation.vllm_cfg.*",
         made={"generation.tensorParallel": 2, "generation.shards": 2, "generation.gpusPerShard": 2}),
    Case("policy.generation.vllm_cfg.pipeline_parallel_size", 4, row="policy.generation.vllm_cfg.*",
         made={"generation.pipelineParallel": 4, "generation.shards": 1, "generation.gpusPerShard": 4}),
    Case("policy.generation.vllm_cfg.enforce_eager", True, {"generation.engineArgs": {"enforce_eager": True}},
         note="engine as it is", row="policy.generation.vllm_cfg.*"),
    Case("policy.generation.vllm_cfg.async_engine", True),
    Case("policy.generation.vllm_cfg.async_engine", False, error="set it to true"),
    Case("policy.generation.vllm_cfg.expose_http_server", True),
    Case("policy.generation.mcore_generation_config.expose_http_server", True,
         also={"policy.generation.backend": "megatron"}),
    Case("policy.generation.refit_transport", None, {"asyncRL.refit.transport": None}),
    Case("policy.generation.refit_transport", "nccl", {"asyncRL.refit.transport": "NCCL"}),
    Case("policy.generation.refit_transport", "sparse", lost="chosen by the runtime"),
    Case("policy.generation.refit_cfg.depth", 2, lost="spec.asyncRL.refit",
         row="policy.generation.refit_cfg.*"),
    Case(f"{RESOURCES}.num_nodes", 2, {"generation.shards": 16, "training.hosts": 2,
                                       "training.gpusPerHost": 8},
         also={"cluster.num_nodes": 4, f"{RESOURCES}.gpus_per_node": 8}),
    Case(f"{RESOURCES}.num_nodes", 2, {"generation.shards": 1, "generation.gpusPerShard": 16,
                                       "generation.hostsPerShard": 2},
         also={"cluster.num_nodes": 4, f"{RESOURCES}.gpus_per_node": 8,
               "policy.generation.vllm_cfg.tensor_parallel_size": 8,
               "policy.generation.vllm_cfg.pipeline_parallel_size": 2}),
    Case(f"{RESOURCES}.gpus_per_node", 6, {"generation.shards": 6, "training.hosts": 1,
                                           "training.gpusPerHost": 2}),
    Case(f"{RESOURCES}.gpus_per_node", 8, error="8 − 8 for generation = 0 GPUs"),
    Case(f"{RESOURCES}.gpus_per_node", 3, error="1 nodes × 3 GPUs ÷ 2 GPUs of a shard leaves 1",
         also={"policy.generation.vllm_cfg.tensor_parallel_size": 2}),
    Case(f"{RESOURCES}.gpus_per_node", None, error="is not set"),
    Case(f"{RESOURCES}.gpus_per_node", "all", error="positive whole number"),
    Case("cluster.num_nodes", 3, {"training.hosts": 2, "training.gpusPerHost": 8}),
    Case("cluster.num_nodes", 2, error="2 − 2 for generation = 0 nodes",
         also={f"{RESOURCES}.num_nodes": 2}),
    Case("cluster.gpus_per_node", 5, {"training.hosts": 1, "training.gpusPerHost": 1}),
    Case("cluster.gpus_per_node", None, error="is not set"),
    Case("cluster.master_port_range_low", 1000),
    Case("cluster.master_port_range_high", 2000),
    Case("policy.generation.colocated.enabled", True,
         {"generation.shards": 4, "generation.gpusPerShard": 2, "generation.tensorParallel": 2,
          "training.gpusPerHost": 8},
         also={"policy.generation.backend": "megatron",
               "policy.megatron_cfg.tensor_model_parallel_size": 2}),
]  # fmt: skip
SURROUNDINGS = [
    Case("env.should_use_nemo_gym", True,
         {"environment": {"nemoGym": {"configPaths": ["a.yaml"], "config": {"port": 1}}}},
         also={"env.nemo_gym": {"config_paths": ["a.yaml"], "port": 1}}, left="gym path"),
    Case("env.should_use_nemo_gym", False, {"environment": {"math": {}}}),
    Case("env.math", {"num_workers": 4}, {"environment": {"math": {"numWorkers": 4}}}, row="env.*"),
    Case("env.math", {"verifier": "x"}, lost="no such field", row="env.*"),
    Case("env.reasoning_gym", {}, {"environment": {"byTask": {"math": {"math": {}},
                                                              "reasoning_gym": {"reasoningGym": {}}}}},
         row="env.*"),
    Case("env.code", {"num_workers": 4}, {"environment": {"byTask": {"math": {"math": {}}}}},
         lost="no environment of this runtime", row="env.*"),
    Case("data.use_multiple_dataloader", False),
    Case("data.use_multiple_dataloader", True, error="one loader"),
    Case("data.train", {"dataset_name": "x"}, lost="name the source in spec.data", row="data.*"),
    Case("logger.log_dir", "/results/a/logs", {"logging.logDir": "/results/a/logs"},
         also={"checkpointing.checkpoint_dir": "/results/a"}),
    Case("logger.log_dir", "results/a/logs", {"logging.logDir": "/checkpoints/results/a/logs"},
         also={"checkpointing.checkpoint_dir": "results/a"}, note="below"),
    Case("logger.log_dir", "/elsewhere", {"logging.logDir": None}, left="outside the checkpoint folder"),
    *(Case(f"logger.{name}_enabled", True, {f"logging.{name}.enabled": True})
      for name in ("wandb", "tensorboard", "mlflow", "swanlab")),
    Case("logger.wandb", {"project": "p", "entity": "e", "name": "n", "tags": ["x"]}, left="no such field",
         made={"logging.wandb": {"project": "p", "entity": "e", "runName": "n"}}),
    Case("logger.tensorboard", {"flush": 3}, left="no such field"),
    Case("logger.mlflow", {"tracking_uri": "u", "experiment_name": "e"},
         {"logging.mlflow": {"trackingUri": "u", "experimentName": "e"}}),
    Case("logger.swanlab", {"project": "p"}, {"logging.swanlab": {"project": "p"}}),
    Case("logger.monitor_gpus", True, left="no such field", row="logger.*"),
    Case("on_policy_distillation.enabled", True, {"onPolicyDistillation": {}}),
    Case("on_policy_distillation.enabled", False, {"onPolicyDistillation": None}),
    Case("on_policy_distillation.non_colocated_teachers.enabled", False, also=TEACHERS,
         row="on_policy_distillation.non_colocated_teachers.*"),
    Case("on_policy_distillation.non_colocated_teachers.enabled", True, also=TEACHERS,
         error="on the training GPUs", row="on_policy_distillation.non_colocated_teachers.*"),
    Case("custom.mine", {"a": [1]}, {"custom": {"mine": {"a": [1]}}}, row="custom.*"),
]  # fmt: skip
OLD_NAMES = [
    *old("rollout_failure.on_data_exhausted",
         ("fail_fast", {"asyncRL.rolloutFailure.maxSkippedPrompts": 0}, {}, {}),
         ("skip", {}, {}, {"lost": "choose a number"})),
    *(case for key, name in (("force_in_order", "in_order"), ("require_order", "in_order"),
                             ("strict_weight_fifo", "weight_fifo"), ("over_sampling", "windowed"))
      for case in old(key, (True, {"asyncRL.sampler.name": name}, {}, {"note": name}),
                      (False, {"asyncRL.sampler.name": "ready_first"}, {}, {"note": "ready_first"}))),
    *old("batch_selection_strategy",
         ("strict_weight_fifo", {"asyncRL.sampler.name": "weight_fifo"}, {}, {"note": "weight_fifo"}),
         ("any", {"asyncRL.sampler.name": "ready_first"}, {}, {"note": "ready_first"})),
    *old("max_weight_staleness_versions",
         (2, {"asyncRL.sampler": {"name": "weight_fifo", "maxStalenessVersions": 2}},
          {"strict_weight_fifo": True}, {"note": "weight_fifo"}),
         (2, {"asyncRL.sampler": {"maxLookaheadVersions": 2}}, {}, {"note": "in_order"})),
    *(case for key in ("warn_if_staleness_window_below_minibatches", "consumer_task_name",
                       "claim_required_fields", "max_claim_groups")
      for case in old(key, (1, {}, {}, {"left": "needs no such setting"}))),
    *old("max_rollout_prompts", (9, {"asyncRL.maxInflightPrompts": 9}, {}, {"note": "maxInflightPrompts"})),
]  # fmt: skip
CASES = [
    *ALGORITHM, *ESTIMATORS, *RUNTIME, *CHECKPOINTS, *MODELS, *GENERATION, *SURROUNDINGS, *OLD_NAMES
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source}={case.value!r:.40}")
def test_a_row_with_a_conversion(case):
    job = carried({**case.also, case.source: case.value}, case.algorithm)

    for kind, remarks in (("error", job.errors), ("lost", job.lost), ("left", job.left), ("note", job.notes)):
        wanted = getattr(case, kind)
        lines = told(remarks)
        if wanted is None:
            assert lines == [], kind
        else:
            assert any(wanted in line for line in lines), (kind, lines)
    for target, value in case.made.items():
        assert job.made(target) == value, target


def test_every_row_of_the_table_has_a_case():
    expanded = {
        source.replace("<algo>", algorithm)
        for row in TABLE
        for source in row.sources
        for algorithm in ("grpo", "ppo")
    }
    tried = {case.row or case.source for case in CASES} | {source for source, _ in COPIES}

    assert expanded - tried == set()
    assert tried - expanded == set()


@pytest.mark.parametrize(
    ("size", "text"),
    [(2**30, "1Gi"), (2**40, "1Ti"), (3 * 2**20, "3Mi"), (2**30 + 2**20, "1025Mi"), (1001, "1001")],
)
def test_a_quantity_is_exact(size, text):
    assert quantity(size) == text


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("policy.optimizer", "training.optimizer"),
        ("policy.optimizer.*", "training.optimizer.*"),
        ("loss_fn.**", "loss.**"),
        ("grpo.seed", "algorithm.grpo.seed"),
        ("policy.**", None),
        ("unknown", None),
    ],
)
def test_paths_are_renamed_with_the_table(path, ours):
    assert rename_path(path) == ours


def test_sc_2_1_an_unknown_key_is_lost_and_the_nearest_known_one_is_named():
    job = carried({"grpo.num_prompts_per_stop": 4, "policy.lora_cfg": {"enabled": False}})

    assert sorted(told(job.lost)) == [
        "grpo.num_prompts_per_stop: is not known; did you mean grpo.num_prompts_per_step?",
        "policy.lora_cfg: is not known",
    ]


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({**DTENSOR, "policy.megatron_cfg.tensor_model_parallel_size": 2}, "policy.megatron_cfg"),
        ({"policy.generation.backend": "megatron", "policy.generation.vllm_cfg.enforce_eager": True},
         "policy.generation.vllm_cfg"),
        ({"policy.generation.mcore_generation_config.depth": 1}, "policy.generation.mcore_generation_config"),
        ({"on_policy_distillation.proximal_teacher_alpha": 0.5}, "on_policy_distillation"),
    ],
)  # fmt: skip
def test_blocks_that_the_reference_does_not_read_are_left_without_a_loss(settings, where):
    job = carried(settings)

    assert [remark.path for remark in job.left] == [where]
    assert (told(job.errors), told(job.lost)) == ([], [])


@pytest.mark.parametrize("blocks", [{"grpo": None}, {"grpo": {}, "ppo": {}}])
def test_sc_2_260_exactly_one_algorithm(blocks):
    job = carried(blocks)

    assert told(job.errors)[0].startswith(": exactly one of the blocks grpo and ppo")


def test_a_value_in_place_of_a_block():
    assert told(carried({"async_rl": 3}).errors) == ["async_rl: is 3, not a block of keys"]


def test_numbers_from_the_environment_fit_their_fields():
    job = carried({"grpo.seed": "7", "grpo.max_num_steps": 4.0, "logger.wandb": {"project": 12}})

    assert job.made("algorithm.grpo") == {"seed": 7, "maxNumSteps": 4}
    assert job.made("logging.wandb.project") == "12"
