"""The one table of metric names. A pump that logs a name from elsewhere fails its tests."""

from __future__ import annotations

from asyncrl_runtime.core.metric_names import Metric, MetricAxis, MetricKind


def _rows(axis: MetricAxis, prefix: str, *rows: tuple[str, MetricKind, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(prefix + name, axis, kind, unit, text) for name, kind, unit, text in rows)


def _phases(prefix: str, prometheus: str, text: str, *names: str) -> tuple[Metric, ...]:
    """Durations that Prometheus shows as one name with the phase as a label."""
    return tuple(
        Metric(prefix + name, "step", "gauge", "seconds", f"{text}: {name}.", prometheus, {"phase": name})
        for name in names
    )


LEARNING = _rows(
    "step",
    "train/",
    ("loss", "gauge", "", "Policy loss of the step."),
    ("grad_norm", "gauge", "", "Gradient norm before clipping."),
    ("lr", "gauge", "", "Learning rate of the last policy update."),
    ("wd", "gauge", "", "Weight decay of the last policy update."),
    ("global_valid_seqs", "count", "sequences", "Sequences that counted in the loss."),
    ("global_valid_toks", "count", "tokens", "Tokens that counted in the loss."),
    ("num_valid_samples", "count", "samples", "Samples with a weight in the loss."),
    ("kl_penalty", "gauge", "", "Divergence from the reference policy per token."),
    ("approx_entropy", "gauge", "", "Estimated entropy of the policy per token, in nats."),
    (
        "probs_ratio",
        "gauge",
        "",
        "Probability under the policy over that of the sampling or previous policy.",
    ),
    ("probs_ratio_min", "gauge", "", "Smallest policy ratio of a token."),
    ("probs_ratio_max", "gauge", "", "Largest policy ratio of a token."),
    ("probs_ratio_clamped", "gauge", "", "Policy ratio after clipping."),
    ("probs_ratio_clamped_min", "gauge", "", "Smallest clipped policy ratio."),
    ("probs_ratio_clamped_max", "gauge", "", "Largest clipped policy ratio."),
    ("clip_fraction", "gauge", "", "Share of tokens whose policy ratio was clipped."),
    ("reward", "gauge", "", "Mean reward over all rows, after transforms."),
    ("reward_valid", "gauge", "", "Mean reward over the rows that counted in the loss."),
    ("reward_raw", "gauge", "", "Mean reward as the environment gave it."),
    ("reward_component/<component>", "gauge", "", "Mean of a named part of the reward."),
    ("reward_out_of_range", "count", "rows", "Rewards that scaling had to clamp."),
    ("reward_component_out_of_range/<component>", "count", "rows", "Reward parts that scaling had to clamp."),
    ("advantages/mean", "gauge", "", "Mean advantage over valid tokens."),
    ("advantages/max", "gauge", "", "Largest advantage."),
    ("advantages/min", "gauge", "", "Smallest advantage."),
    ("invalid_tool_call_rate", "gauge", "", "Share of rows with an invalid tool call."),
    ("malformed_thinking_rate", "gauge", "", "Share of rows with malformed thinking."),
    ("total_flops", "count", "flops", "Floating point operations of the step's updates."),
    ("num_ranks", "gauge", "ranks", "Trainer ranks."),
)

MISMATCH = _rows(
    "step",
    "train/",
    ("token_mult_prob_error", "gauge", "", "Mean factor between generation and trainer probabilities."),
    ("gen_kl_error", "gauge", "", "Divergence of the trainer's from the generation's log-probs."),
    ("policy_kl_error", "gauge", "", "Divergence of the generation's from the trainer's log-probs."),
    ("js_divergence_error", "gauge", "", "Jensen-Shannon divergence of generation and trainer."),
    ("sampling_importance_ratio", "gauge", "", "Trainer probability over generation probability."),
    ("effective_sample_size", "gauge", "", "Share of samples that the importance weights leave effective."),
    ("masked_token_fraction", "gauge", "", "Share of generated tokens that masks kept out of the loss."),
    ("is_oob_ratio", "gauge", "", "Share of importance weights outside their bounds."),
    (
        "nonfinite_logprob_tokens",
        "count",
        "tokens",
        "Tokens with an infinite log-prob, left out of the loss.",
    ),
    ("max_seq_mult_prob_error", "gauge", "", "Largest probability error of a sequence."),
    ("mean_seq_mult_prob_error", "gauge", "", "Mean probability error of sequences."),
    ("min_seq_mult_prob_error", "gauge", "", "Smallest probability error of a sequence."),
    ("max_seq_mult_prob_error_after_mask", "gauge", "", "Largest such error after masking."),
    ("mean_seq_mult_prob_error_after_mask", "gauge", "", "Mean such error after masking."),
    ("min_seq_mult_prob_error_after_mask", "gauge", "", "Smallest such error after masking."),
    ("num_masked_seqs_by_logprob_error", "count", "sequences", "Sequences masked for their error."),
    ("masked_correct_pct", "gauge", "", "Share of those whose raw reward is 1."),
)

BATCH = _rows(
    "step",
    "train/",
    ("total_num_tokens", "count", "tokens", "Tokens of the step's rows, prompts included."),
    ("mean_prompt_length", "gauge", "tokens", "Mean prompt length."),
    ("response_length/mean", "gauge", "tokens", "Mean generated tokens per completion."),
    ("response_length/max", "gauge", "tokens", "Longest completion."),
    ("response_length/min", "gauge", "tokens", "Shortest completion."),
    ("response_length/p50", "gauge", "tokens", "Median completion."),
    ("response_length/p95", "gauge", "tokens", "95th percentile of completion lengths."),
    ("rollout/turns_mean", "gauge", "turns", "Mean turns per completion."),
    ("rollout/truncation_rate", "gauge", "", "Share of completions cut by the length limit."),
    ("rollout/natural_termination_rate", "gauge", "", "Share of completions that ended by themselves."),
    ("rollout/max_turns_rate", "gauge", "", "Share of completions that used up their turns."),
    ("dropped_prompt_groups", "count", "groups", "Prompts given up; the batch is smaller by them."),
    ("replaced_prompt_groups", "count", "groups", "Spare prompts that took the place of lost ones."),
    ("promoted_prompt_groups", "count", "groups", "Ready groups moved to an earlier step."),
    ("evicted_stale_prompt_groups", "count", "groups", "Finished groups thrown away as too old."),
    ("aborted_stale_inflight_groups", "count", "groups", "Running groups cancelled as too old."),
    ("requeued_prompt_groups", "count", "groups", "Prompts started again after an abort."),
    ("discarded_groups", "count", "groups", "Groups begun and neither trained nor dropped."),
    ("groups_trained", "count", "groups", "Groups trained on."),
    ("rows_trained", "count", "rows", "Rows trained on."),
    ("chunks", "gauge", "chunks", "Chunks that the step was assembled from."),
    ("masked_rows_overlong", "count", "rows", "Rows left out of the loss as truncated."),
    ("masked_rows_env", "count", "rows", "Rows that the environment kept out of the loss."),
    ("dynamic_sampling_discarded_groups", "count", "groups", "Groups discarded for equal rewards."),
    ("staleness/lag_max", "gauge", "versions", "Largest lag of a row that was trained on."),
    ("staleness/lag_mean", "gauge", "versions", "Mean lag."),
    ("staleness/lag_min", "gauge", "versions", "Smallest lag."),
    ("staleness/lag_p50", "gauge", "versions", "Median lag."),
    ("staleness/lag_p95", "gauge", "versions", "95th percentile of the lag."),
    ("staleness/lag_hist/<lag>", "count", "rows", "Rows trained on with this lag."),
    ("staleness/straddled_groups", "count", "groups", "Groups generated across a weight change."),
    ("staleness/end_minus_start_mean", "gauge", "versions", "Weight changes during a rollout, mean."),
    ("trainer_version", "gauge", "version", "Completed RL steps."),
    ("content_version", "gauge", "version", "Trainer version at which the policy last changed."),
    ("policy_optimizer_steps", "gauge", "steps", "Optimizer steps of the policy so far."),
    ("critic_optimizer_steps", "gauge", "steps", "Optimizer steps of the critic so far."),
    ("epoch", "gauge", "", "Epoch of the prompt source."),
    ("consumed_groups", "gauge", "groups", "Groups trained on so far."),
    ("total_valid_tokens", "gauge", "tokens", "Tokens that counted in the loss so far."),
    ("lookahead_versions", "gauge", "versions", "Batches that generation may be ahead of training."),
    ("is_policy_training_step", "gauge", "", "1 if the policy was updated, 0 in critic warm-up."),
)

CRITIC = _rows(
    "step",
    "train/critic/",
    ("loss", "gauge", "", "Loss of the critic."),
    ("grad_norm", "gauge", "", "Gradient norm of the critic."),
    ("lr", "gauge", "", "Learning rate of the critic."),
    ("values_mean", "gauge", "", "Mean predicted value."),
    ("values_min", "gauge", "", "Smallest predicted value."),
    ("values_max", "gauge", "", "Largest predicted value."),
    ("returns_mean", "gauge", "", "Mean return."),
    ("vf_clipfrac", "gauge", "", "Share of clipped values."),
    ("explained_var", "gauge", "", "Share of the returns' variance that the critic explains."),
    ("epoch_loss_<pass>", "gauge", "", "Loss of the critic by pass over the step."),
)

VALIDATION = _rows(
    "step",
    "validation/",
    ("accuracy", "gauge", "", "Mean reward of the validation completions."),
    ("pass_k", "gauge", "", "Share of validation prompts with at least one reward above 0."),
    ("response_length", "gauge", "tokens", "Mean generated tokens of the validation completions."),
    ("prompts", "gauge", "prompts", "Validation prompts of the pass."),
    ("seconds", "gauge", "seconds", "Duration of the pass."),
)

TIMING = (
    Metric(
        "timing/train/total_step_time",
        "step",
        "gauge",
        "seconds",
        "Wall time of the step.",
        "asyncrl_step_duration_seconds",
    ),
    *_phases(
        "timing/train/",
        "asyncrl_step_phase_duration_seconds",
        "Wall time of a phase of the step",
        "exposed_generation",
        "logprob_inference_prep",
        "policy_and_reference_logprobs",
        "value_inference",
        "reward_calculation",
        "advantage_calculation",
        "training_prep",
        "value_training_prep",
        "value_training",
        "policy_training",
        "weight_sync",
        "checkpointing",
        "validation",
    ),
    *_phases(
        "timing/train/weight_sync/",
        "asyncrl_weight_sync_phase_duration_seconds",
        "Wall time of a part of the weight sync",
        "abort",
        "drain",
        "calibrate",
        "reconcile",
        "transfer",
        "invalidate",
    ),
    *_rows(
        "step",
        "timing/",
        ("train/valid_tokens_per_sec_per_gpu", "gauge", "", "Valid tokens per second and GPU of the job."),
        ("setup/<part>", "gauge", "seconds", "Wall time of a part of the start."),
        ("restore/<part>", "gauge", "seconds", "Wall time of a part of the restore."),
        ("rollout/environment_mean", "gauge", "seconds", "Mean time of a completion in the environment."),
        ("rollout/execution_mean", "gauge", "seconds", "Mean duration of a completion."),
        ("rollout/queue_s/<quantile>", "gauge", "seconds", "Wait of a group before dispatch."),
        ("rollout/execution_s/<quantile>", "gauge", "seconds", "Duration of a group's rollout."),
    ),
)

ROLLOUT = _rows(
    "tick",
    "",
    ("rollout/committed_total", "total", "groups", "Groups committed."),
    ("rollout/skipped_total", "total", "prompts", "Prompts given up because of their data."),
    ("rollout/redispatch_total", "total", "attempts", "Retries after failures of the infrastructure."),
    ("rollout/redispatch_total/<reason>", "total", "attempts", "The same by reason."),
    ("rollout/data_retry_total", "total", "attempts", "Retries after failures of a prompt's data."),
    ("rollout/data_retry_total/<reason>", "total", "attempts", "The same by reason."),
    ("rollout/data_failures_total", "total", "prompts", "Prompts that failed for good by their data."),
    ("rollout/data_failures_total/<reason>", "total", "prompts", "The same by reason."),
    ("rollout/infra_drops_total", "total", "prompts", "Prompts lost to the infrastructure."),
    ("rollout/infra_drops_total/<reason>", "total", "prompts", "The same by reason."),
    ("rollout/detached_total", "total", "rollouts", "Aborted rollouts that did not end in time."),
    ("rollout/max_consecutive_infra_drops", "gauge", "prompts", "Most prompts lost in a row."),
    ("rollout/inflight", "gauge", "groups", "Groups generating."),
    ("rollout/inflight_generations", "gauge", "completions", "Completions generating."),
    ("rollout/idle_s", "gauge", "seconds", "Time since the last commit or step."),
    ("rollout/train_steps", "gauge", "steps", "Completed RL steps."),
    ("rollout/gate_open", "gauge", "", "1 while rollouts may start."),
    ("buffer/ready", "gauge", "groups", "Groups ready to train."),
    ("buffer/reserved", "gauge", "groups", "Slots of groups that are generating."),
    ("buffer/free_permits", "gauge", "groups", "Free slots."),
    ("buffer/capacity", "gauge", "groups", "Slots in all."),
    ("buffer/oldest_start_weight", "gauge", "version", "Oldest weights that a buffered group began under."),
    ("buffer/per_target_step/<offset>", "gauge", "groups", "Groups by how many steps ahead they are due."),
    ("buffer/restore_debt", "gauge", "groups", "Restored groups beyond the capacity."),
    ("reserve/size", "gauge", "prompts", "Spare prompts."),
    ("ledger/unfinished", "gauge", "prompts", "Prompts taken and neither committed nor given up."),
    ("ledger/owed", "gauge", "prompts", "Places of lost groups that still wait for a prompt."),
    ("claim/groups", "gauge", "groups", "Groups of the open step."),
    ("env/<environment>/healthy", "gauge", "", "1 while the environment is well."),
    ("watchdog/stalled", "gauge", "", "1 while nothing moved for longer than allowed."),
    ("watchdog/loop_lag", "gauge", "seconds", "Longest delay of the controller's loop since the last tick."),
)

FLEET = _rows(
    "tick",
    "",
    ("gen_fleet/shards/<state>", "gauge", "shards", "Shards by state."),
    ("gen_fleet/serving_shards", "gauge", "shards", "Shards that take requests."),
    ("gen_fleet/membership_epoch", "gauge", "", "Changes of the serving set."),
    ("gen_fleet/restart_attempts/<shard>", "total", "attempts", "Restarts of a shard."),
    ("gen_fleet/shard_weight_version/<shard>", "gauge", "version", "Weights that a shard holds."),
    ("gen_fleet/shard_outstanding/<shard>", "gauge", "requests", "Requests that a shard works on."),
    ("gen_fleet/version_spread", "gauge", "versions", "Newest minus oldest weights that serve."),
    ("gen_fleet/stale_serving_shards", "gauge", "shards", "Serving shards with old weights; must be 0."),
    ("router/requests_total", "total", "requests", "Requests to the router."),
    ("router/no_healthy_backend_total", "total", "requests", "Requests that found no shard."),
    ("router/backend_error_total", "total", "requests", "Requests that a shard failed."),
    ("router/serving_backends", "gauge", "shards", "Shards behind the router."),
    ("router/latency_<quantile>", "gauge", "seconds", "Latency of the router."),
    ("refit/count", "total", "transfers", "Weight transfers that landed."),
    ("refit/failures", "total", "transfers", "Weight transfers that did not."),
    ("refit/retries", "total", "attempts", "Retried weight transfers."),
    ("refit/rebuilds", "total", "rebuilds", "Communicators built anew."),
    ("refit/excluded_shards", "gauge", "shards", "Shards left out of the last transfer."),
    ("refit/deadline_fired", "total", "transfers", "Weight transfers that ran out of time."),
    ("refit/in_recovery", "gauge", "", "1 while a failed transfer is being repaired."),
)

DATA_PLANE = _rows(
    "step",
    "data_plane/driver/",
    ("comm_volume_mb", "gauge", "megabytes", "Data that the controller moved in this step."),
    ("ops/<op>", "count", "operations", "Calls of the data plane."),
    ("keys/<op>", "count", "keys", "Keys that calls of the data plane named."),
    ("bytes/<op>", "count", "bytes", "Bytes that calls of the data plane moved."),
    ("wall_ms/<op>", "gauge", "milliseconds", "Wall time in the data plane in this step."),
    ("bytes_outstanding", "gauge", "bytes", "Bytes put and not cleared."),
    ("peak_bytes_outstanding", "gauge", "bytes", "Most bytes put and not cleared."),
    ("keys_outstanding", "gauge", "keys", "Rows put and not cleared."),
    ("max_bytes_per_key", "gauge", "bytes", "Largest row."),
    ("share_of_step_time", "gauge", "", "Share of the step in calls of the data plane."),
)

THROUGHPUT = _rows(
    "sample",
    "generation/",
    ("tokens_per_second", "gauge", "", "Generated tokens per second, over all shards."),
    ("committed_tokens_per_second", "gauge", "", "Committed tokens per second."),
    ("committed_groups_per_second", "gauge", "", "Committed groups per second."),
    ("committed_share", "gauge", "", "Committed over generated tokens."),
    ("running_requests", "gauge", "requests", "Requests that the engines work on."),
    ("waiting_requests", "gauge", "requests", "Requests that the engines hold back."),
    ("kv_cache_usage", "gauge", "", "Share of the attention cache in use, mean over shards."),
    ("wasted_tokens_total/<cause>", "total", "tokens", "Generated tokens that were never trained on."),
)

CHECKPOINT = _rows(
    "step",
    "checkpoint/",
    ("saved", "count", "checkpoints", "Checkpoints written."),
    ("failed", "count", "checkpoints", "Checkpoints that could not be written."),
    ("seconds", "gauge", "seconds", "Duration of the last save."),
    ("pause_seconds", "gauge", "seconds", "Time that the last save held commits up."),
    ("bytes", "gauge", "bytes", "Size of the last checkpoint."),
    ("replay_rows", "gauge", "rows", "Untrained rows in the last checkpoint."),
    ("unfinished_groups", "gauge", "groups", "Unfinished groups in the last checkpoint."),
    ("last_step", "gauge", "", "Step of the last checkpoint."),
    ("mutation_version", "gauge", "", "Mutation version of the last cut."),
) + _rows(
    "tick",
    "checkpoint/",
    ("seconds_since_last_durable_snapshot", "gauge", "seconds", "Work that a crash would lose."),
)

RUN = _rows(
    "tick",
    "run/",
    ("step", "gauge", "", "Completed RL steps."),
    ("max_steps", "gauge", "steps", "Steps of the run, as the data allows."),
    ("epoch", "gauge", "", "Epoch of the prompt source."),
    ("restart_index", "gauge", "", "Starts of the run before this one."),
    ("phase/<phase>", "gauge", "", "1 for the phase that the run is in."),
    ("trainer_idle_fraction", "gauge", "", "Share of time that the trainer waited for data."),
    ("eta_seconds", "gauge", "seconds", "Estimated time left."),
    ("prompts/<state>", "gauge", "prompts", "Prompts by what became of them."),
    ("prompts_discarded/<cause>", "gauge", "prompts", "Discarded prompts by cause."),
    ("sink_errors_total/<sink>", "total", "errors", "Failures to write metrics, by destination."),
)

METRICS: tuple[Metric, ...] = (
    LEARNING + MISMATCH + BATCH + CRITIC + VALIDATION + TIMING + ROLLOUT + FLEET + DATA_PLANE + THROUGHPUT
    + CHECKPOINT + RUN
)  # fmt: skip
