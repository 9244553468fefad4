"""Where settings of the reference's YAML, and older names of ours, live now (SC-2.340…351)."""

import re

from asyncrl_api.rules.table import snake

BLOCKS = {
    "grpo": "algorithm.grpo",
    "ppo": "algorithm.ppo",
    "loss_fn": "loss",
    "value_loss_fn": "valueLoss",
    "async_rl": "asyncRL",
    "async_rl.watchdog": "asyncRL.stallWatchdog",
    "async_rl.fleet_health": "asyncRL.generationFleetHealth",
    "async_rl.policy_router": "asyncRL.generationRouter",
    "rollout_failure": "asyncRL.rolloutFailure",
    "policy": "training",
    "policy.generation": "generation",
    "logger": "logging",
}
"""Old block: new block. Its keys keep their names, in camelCase and with `Seconds` for `_s`."""

VALIDATION_KEYS = {
    "val_period": "periodSteps",
    "val_start_at": "startAt",
    "val_at_start": "atStart",
    "val_at_end": "atEnd",
    "val_batch_size": "batchSize",
    "max_val_samples": "maxSamples",
    "val_num_generations_per_prompt": "numGenerationsPerPrompt",
    "num_val_generations_per_prompt": "numGenerationsPerPrompt",
    "stop_at_validation_metric": "stopAtMetric",
    "stop_at_validation_threshold": "stopAtThreshold",
    "val_failure_action": "failureAction",
}
ASYNC_KEYS = {
    "enabled": "asyncRL.sampler.maxLookaheadVersions",
    "max_trajectory_age_steps": "asyncRL.sampler.maxLookaheadVersions",
    "warmup_generation_lead_steps": "asyncRL.sampler.warmupLookaheadVersions",
    "recompute_kv_cache_after_weight_updates": "asyncRL.recomputeKvCacheAfterWeightUpdates",
    "in_flight_weight_updates": "asyncRL.inFlightWeightUpdates",
    "drop_incomplete_targets_on_restore": "asyncRL.dropIncompleteTargetsOnRestore",
    "max_generation_failures": "asyncRL.rolloutFailure.maxConsecutiveDroppedPrompts",
}
SAMPLER_KEYS = {
    **dict.fromkeys(
        (
            "over_sampling",
            "force_in_order",
            "strict_weight_fifo",
            "require_order",
            "batch_selection_strategy",
        ),
        "asyncRL.sampler.name",
    ),
    "max_weight_staleness_versions": "asyncRL.sampler.maxStalenessVersions",
    "max_rollout_prompts": "asyncRL.maxInflightPrompts",
    "rollout_timeout_s": "asyncRL.rolloutFailure.nemoGym.rolloutTimeoutSeconds",
    "generation_timeout_s": "asyncRL.rolloutFailure.native.generationTimeoutSeconds",
    "env_timeout_s": "asyncRL.rolloutFailure.native.envTimeoutSeconds",
}
FAILURE_KEYS = {
    "max_attempts_per_prompt": "asyncRL.rolloutFailure.maxInfraAttemptsPerPrompt",
    "on_data_exhausted": "asyncRL.rolloutFailure.maxSkippedPrompts",
    "max_gym_row_attempts": "asyncRL.rolloutFailure.nemoGym.maxRowAttempts",
}

MOVED = {
    **{
        f"{algo}.{old}": f"validation.{new}"
        for algo in ("grpo", "ppo")
        for old, new in VALIDATION_KEYS.items()
    },
    **{f"{algo}.async_{algo}.{old}": new for algo in ("grpo", "ppo") for old, new in ASYNC_KEYS.items()},
    **{f"{block}{old}": new for block in ("", "async_rl.") for old, new in SAMPLER_KEYS.items()},
    **{
        f"{block}rollout_failure.{old}": new
        for block in ("", "async_rl.")
        for old, new in FAILURE_KEYS.items()
    },
    "grpo.normalize_rewards": "algorithm.grpo.advEstimator.normalizeRewards",
    "grpo.use_leave_one_out_baseline": "algorithm.grpo.advEstimator.useLeaveOneOutBaseline",
    "data_plane.ack_timeout_ms": "dataPlane.ackTimeoutSeconds",
    "checkpointing.checkpoint_dir": "checkpointing.mountPath",
    "checkpointing.checkpoint_must_save_by": "checkpointing.mustSaveBySeconds",
    "policy.model_name": "model.name",
    "policy.tokenizer": "model.tokenizer",
    "policy.max_total_sequence_length": "model.maxTotalSequenceLength",
    "policy.is_vlm": "model.isVlm",
    "policy.train_micro_batch_size": "training.microBatchSize",
    "policy.megatron_cfg.enabled": "training.backend",
    "policy.dtensor_cfg.enabled": "training.backend",
    "policy.megatron_cfg.context_parallel_size": "training.parallelism.context",
    "policy.megatron_cfg.tensor_model_parallel_size": "training.parallelism.tensor",
    "policy.megatron_cfg.pipeline_model_parallel_size": "training.parallelism.pipeline",
    "policy.megatron_cfg.expert_model_parallel_size": "training.parallelism.expert",
    "policy.megatron_cfg.checkpoint.ckpt_assume_constant_structure": "training.ckptAssumeConstantStructure",
    "policy.router_replay.enabled": "training.routerReplay",
    "policy.refit_buffer_size_gb": "asyncRL.refit.bufferSize",
    "policy.generation.refit_transport": "asyncRL.refit.transport",
    "policy.generation.colocated.enabled": "generation.colocated",
    "policy.generation.colocated.resources.num_nodes": "generation.shards",
    "policy.generation.colocated.resources.gpus_per_node": "generation.gpusPerShard",
    "policy.generation.vllm_cfg": "generation.engineArgs",
    "policy.generation.vllm_cfg.kv_cache_dtype": "generation.kvCacheDtype",
    **{
        f"policy.generation.{old}": f"generation.sampling.{new}"
        for old, new in {
            "temperature": "temperature",
            "top_p": "topP",
            "top_k": "topK",
            "max_new_tokens": "maxNewTokens",
            "stop_strings": "stopStrings",
            "stop_token_ids": "stopTokenIds",
        }.items()
    },
    "policy.generation.val_temperature": "validation.sampling.temperature",
    "policy.generation.val_top_p": "validation.sampling.topP",
    "policy.generation.val_top_k": "validation.sampling.topK",
    "value.model_name": "value.name",
    "value.train_micro_batch_size": "value.microBatchSize",
    "value.megatron_cfg.context_parallel_size": "value.parallelism.context",
    "env": "environment",
    "env.should_use_nemo_gym": "environment.nemoGym",
    "cluster.num_nodes": "training.hosts",
    "cluster.gpus_per_node": "training.gpusPerHost",
}
"""Old key: new key, where the name itself changed."""

BATCH = "the batch follows from numPromptsPerStep × numGenerationsPerPrompt"
GONE = {
    "grpo.batch_multiplier": "bound extra generation with dynamicSamplingMaxGenBatches",
    "ppo.batch_multiplier": "bound extra generation with dynamicSamplingMaxGenBatches",
    "grpo.calculate_advantages_on_gpu": "the controller has no GPU",
    "ppo.calculate_advantages_on_gpu": "the controller has no GPU",
    "data_plane.enabled": "every run is built on the data plane",
    "data_plane.impl": "dataPlane.backend says which one it is",
    "data_plane.claim_meta_poll_interval_s": "nothing reads it",
    "data_plane.controller_address": "every attempt has an address of its own",
    "data.use_multiple_dataloader": "there is one loader",
    "policy.train_global_batch_size": BATCH,
    "value.train_global_batch_size": BATCH,
    "value.tokenizer": "the critic reads the policy's tokens",
    "value.max_total_sequence_length": "it is the policy's, model.maxTotalSequenceLength",
    "value.megatron_cfg.enabled": "the critic uses the policy's trainer, training.backend",
    "policy.megatron_cfg.train_iters": "it is computed from maxNumSteps and the data",
    "policy.generation.vllm_cfg.async_engine": "engines are always asynchronous",
    "policy.generation.vllm_cfg.expose_http_server": "it follows from environment.nemoGym",
    "policy.generation.mcore_generation_config.expose_http_server": "it follows from environment.nemoGym",
    "cluster.master_port_range_low": "ports are fixed by the operator",
    "cluster.master_port_range_high": "ports are fixed by the operator",
    **{
        f"{block}{old}": "the sampler needs no such setting"
        for block in ("", "async_rl.")
        for old in (
            "warn_if_staleness_window_below_minibatches",
            "consumer_task_name",
            "claim_required_fields",
            "max_claim_groups",
        )
    },
}
"""Old key: why there is no such setting."""


def old_name(path: str) -> str:
    """A path of a manifest as the reference spells it: `spec.algorithm.grpo.seed` is `grpo.seed`."""
    steps = [snake(step) for step in path.removeprefix("spec.").split(".")]
    if steps[0] == "algorithm" and len(steps) > 1:
        steps = steps[1:]
    return ".".join(steps)


def new_place(path: str) -> str | None:
    """Where a setting lives now, below `spec`; the caller checks that it is there. None: unknown."""
    old = old_name(path)
    if old in MOVED or old in BLOCKS:
        return MOVED.get(old) or BLOCKS[old]
    block = max((each for each in BLOCKS if old.startswith(f"{each}.")), key=len, default=None)
    if block is None:
        return None
    return f"{BLOCKS[block]}.{'.'.join(map(_camel, old.removeprefix(f'{block}.').split('.')))}"


def why_gone(path: str) -> str | None:
    """Why a setting of the reference has no counterpart; None if it is not known to have none."""
    return GONE.get(old_name(path))


def _camel(key: str) -> str:
    seconds = re.sub(r"_s$", "_seconds", key)
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), seconds)
