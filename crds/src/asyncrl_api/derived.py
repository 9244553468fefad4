"""Facts that follow from a spec. Rules, resolution and reports ask here, so that each is worked out once."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from asyncrl_api.job import JobSpec
from asyncrl_api.spec.algorithm import GrpoSpec, PpoSpec

DEFAULT_BUFFER_GROUPS = 64
DEFAULT_CHUNK_GROUPS = 32
DEFAULT_KL_PENALTY = 0.01
DEFAULT_VALIDATION_PERIODS = {"grpo": 10, "ppo": 20}
DEFAULT_GLOBAL_SEGMENT_SIZE = "512Gi"
DEFAULT_LOCAL_BUFFER_SIZE = "64Gi"


@dataclass(frozen=True)
class Derived:
    """What a spec implies. Works on specs that break rules too, since rules are written with it."""

    spec: JobSpec

    # ── algorithm and loss ──

    @cached_property
    def algorithm(self) -> GrpoSpec | PpoSpec | None:
        """The algorithm's block; PPO's if both are there."""
        return self.spec.algorithm.ppo or self.spec.algorithm.grpo

    @property
    def valid_algorithm(self) -> GrpoSpec | PpoSpec:
        """The algorithm's block of a spec that keeps the rules."""
        if self.algorithm is None:
            raise ValueError("spec.algorithm holds neither grpo nor ppo")
        return self.algorithm

    @property
    def is_ppo(self) -> bool:
        """The run uses PPO."""
        return self.spec.algorithm.ppo is not None

    @property
    def num_prompts_per_step(self) -> int:
        """N, prompts per RL step."""
        return self.algorithm.num_prompts_per_step if self.algorithm else 1

    @property
    def num_generations_per_prompt(self) -> int:
        """G, completions per prompt."""
        return self.algorithm.num_generations_per_prompt if self.algorithm else 1

    @property
    def train_batch_size(self) -> int:
        """Completions per RL step, N·G."""
        return self.num_prompts_per_step * self.num_generations_per_prompt

    @property
    def critic_warmup_steps(self) -> int:
        """P, steps in which only the critic learns."""
        ppo = self.spec.algorithm.ppo
        return ppo.policy_training_start_step if ppo else 0

    @property
    def num_policy_updates(self) -> int:
        """Policy updates per RL step."""
        grpo, ppo = self.spec.algorithm.grpo, self.spec.algorithm.ppo
        if ppo:
            return ppo.ppo_epochs
        return grpo.policy_epochs_per_step * grpo.policy_minibatches_per_step if grpo else 1

    @property
    def estimator(self) -> str:
        """Name of the advantage estimator."""
        return self.algorithm.adv_estimator.name if self.algorithm else ""

    @property
    def skips_reference_logprobs(self) -> bool:
        """Log-probabilities under the starting model are never computed."""
        return bool(self.algorithm and self.algorithm.skip_reference_policy_logprobs_calculation)

    @property
    def kl_penalty(self) -> float:
        """KL penalty in force."""
        asked = self.spec.loss.reference_policy_kl_penalty
        if asked is not None:
            return asked
        return 0.0 if self.skips_reference_logprobs else DEFAULT_KL_PENALTY

    @property
    def corrects(self) -> bool:
        """The importance-sampling correction is on."""
        asked = self.spec.loss.use_importance_sampling_correction
        return (self.sampler == "ready_first" or self.can_be_stale) if asked is None else asked

    @property
    def skips_previous_logprobs(self) -> bool:
        """Log-probabilities under the policy before the step are not computed."""
        blocks = (self.spec.algorithm.grpo, self.spec.algorithm.ppo)
        watched = any(block is not None and block.seq_logprob_error_threshold is not None for block in blocks)
        return self.spec.loss.force_on_policy_ratio and not watched

    # ── sampler and buffer ──

    @property
    def sampler(self) -> str:
        """Name of the sampler."""
        return self.spec.async_rl.sampler.name

    @property
    def lookahead(self) -> int:
        """L, batches that generation may be ahead of training (in_order)."""
        asked = self.spec.async_rl.sampler.max_lookahead_versions
        return 1 if asked is None else asked

    @property
    def warmup_lookahead(self) -> int:
        """W, the lead during critic warm-up; 0 if unset."""
        return self.spec.async_rl.sampler.warmup_lookahead_versions or 0

    @property
    def staleness(self) -> int:
        """S, trainer versions that a group may lag behind."""
        asked = self.spec.async_rl.sampler.max_staleness_versions
        return 1 if asked is None else asked

    @property
    def gate_window(self) -> int | None:
        """Versions beyond the current one for which a gated sampler admits; None if there is no gate."""
        if self.sampler == "in_order":
            return max(self.lookahead, self.warmup_lookahead)
        return self.staleness if self.sampler in ("weight_fifo", "ready_first") else None

    @property
    def required_capacity(self) -> int:
        """Groups that the sampler may admit, N·(window + 1); 0 if it demands no room (SC-2.320…322)."""
        return 0 if self.gate_window is None else self.num_prompts_per_step * (self.gate_window + 1)

    @property
    def capacity_formula(self) -> str:
        """How `required_capacity` comes about, with the numbers."""
        n = self.num_prompts_per_step
        if self.gate_window is None:
            return f"sampler {self.sampler} demands no room"
        knob = "max(L, W)" if self.warmup_lookahead else "L" if self.sampler == "in_order" else "S"
        product = f"{n}·({self.gate_window} + 1) = {self.required_capacity}"
        return f"sampler {self.sampler}: N·({knob} + 1) = {product}"

    @property
    def buffer_size(self) -> int:
        """Buffer size in force, in groups."""
        n, asked = self.num_prompts_per_step, self.spec.async_rl.max_buffered_rollouts
        if asked is not None:
            return asked
        room = {"windowed": n * (self.staleness + 2), "custom": n * 2}.get(
            self.sampler, self.required_capacity
        )
        return max(DEFAULT_BUFFER_GROUPS, room)

    @property
    def needs_whole_batch(self) -> bool:
        """The estimator takes statistics over the batch of a step."""
        teachers = self.spec.on_policy_distillation
        centred = self.estimator == "opd" and teachers is not None and teachers.subtract_global_baseline
        return self.estimator in ("gdpo", "reinforce_plus_plus") or centred

    @property
    def one_chunk_reason(self) -> str:
        """Why a step must train as one chunk, the estimator aside; empty if it need not."""
        if self.is_ppo:
            return "PPO"
        if self.spec.generation.colocated:
            return "colocated generation"
        if self.num_policy_updates > 1:
            return "more than one policy update per step"
        return "loss.positiveExampleNllWeight" if self.spec.loss.positive_example_nll_weight > 0 else ""

    @property
    def needs_one_chunk(self) -> bool:
        """A step must train as one chunk for a reason other than the estimator."""
        return bool(self.one_chunk_reason)

    @property
    def min_groups(self) -> int:
        """Smallest chunk in force, in groups."""
        n, asked = self.num_prompts_per_step, self.spec.async_rl.min_groups_for_streaming_train
        if asked is not None:
            return asked
        return n if self.needs_one_chunk or self.needs_whole_batch else min(n, DEFAULT_CHUNK_GROUPS)

    @property
    def can_be_stale(self) -> bool:
        """The sampler can hand out data of an older policy."""
        if self.sampler == "in_order":
            return self.lookahead > 0 or self.warmup_lookahead > 0
        return self.sampler == "custom" or self.staleness > 0

    @property
    def drop_budget(self) -> int:
        """Both drop budgets together."""
        failure = self.spec.async_rl.rollout_failure
        return failure.max_skipped_prompts + failure.max_consecutive_dropped_prompts

    # ── failures and deadlines ──

    @property
    def is_gym(self) -> bool:
        """The run takes the gym path."""
        return self.spec.environment.nemo_gym is not None

    @property
    def longest_rollout_deadline_seconds(self) -> float:
        """The longest rollout deadline that is set; 0 if none is."""
        failure = self.spec.async_rl.rollout_failure
        native, gym = failure.native, failure.nemo_gym
        deadlines = (
            native.generation_timeout_seconds, native.env_timeout_seconds, gym.rollout_timeout_seconds
        )  # fmt: skip
        return max(seconds or 0.0 for seconds in deadlines)

    @property
    def refit_deadline_seconds(self) -> float:
        """Longest weight transfer as the controller sees it; the grace alone if there is no deadline."""
        refit = self.spec.async_rl.refit
        return (refit.deadline_seconds or 0.0) + refit.unwind_grace_seconds

    @property
    def detection_seconds(self) -> float:
        """Longest time until the probes find a dead shard."""
        health = self.spec.async_rl.generation_fleet_health
        return health.probe_interval_seconds * health.unhealthy_threshold + health.probe_timeout_seconds

    # ── validation ──

    @property
    def validation_period_steps(self) -> int:
        """Steps between validations; 0 without prompts for them."""
        if self.spec.data.validation is None:
            return 0
        asked = self.spec.validation.period_steps
        return DEFAULT_VALIDATION_PERIODS["ppo" if self.is_ppo else "grpo"] if asked is None else asked

    @property
    def validates_at_start(self) -> bool:
        """Validate before the first step."""
        if self.spec.data.validation is None:
            return False
        asked = self.spec.validation.at_start
        return self.is_ppo if asked is None else asked

    # ── placement ──

    @property
    def num_training_ranks(self) -> int:
        """One rank per GPU, or one per host without GPUs."""
        return self.spec.training.hosts * max(1, self.spec.training.gpus_per_host)

    @property
    def training_gpus(self) -> int:
        """GPUs of the trainer."""
        return self.spec.training.hosts * self.spec.training.gpus_per_host

    @property
    def generation_gpus(self) -> int:
        """GPUs of the shards; those of the trainer when colocated."""
        return self.spec.generation.shards * self.spec.generation.gpus_per_shard

    @property
    def tensor_parallel(self) -> int:
        """GPUs of a shard over which each layer is split."""
        generation = self.spec.generation
        derived = max(1, generation.gpus_per_shard // generation.pipeline_parallel)
        return derived if generation.tensor_parallel is None else generation.tensor_parallel

    # ── data plane and checkpoints ──

    @property
    def required_storage_rows(self) -> int:
        """Rows that the buffer and the step being trained need."""
        return (self.buffer_size + self.num_prompts_per_step) * self.num_generations_per_prompt

    @property
    def saves(self) -> bool:
        """Checkpoints are saved."""
        return self.spec.checkpointing.enabled

    @property
    def takes_snapshots(self) -> bool:
        """Periodic rollout snapshots are asked for."""
        return self.spec.rollout_checkpointing.snapshot_attempt_interval_seconds is not None

    @property
    def refit_transport(self) -> Literal["SharedMemory", "Gloo", "Files", "NCCL", "Megatron"]:
        """How weights travel, `Auto` worked out."""
        asked = self.spec.async_rl.refit.transport
        if asked != "Auto":
            return asked
        if self.spec.data_plane.backend == "inProcess":
            return "SharedMemory"
        if self.spec.generation.backend == "megatron":
            return "Megatron"
        if self.generation_gpus == 0 and self.training_gpus == 0:
            return "Gloo"
        return "NCCL" if self.generation_gpus > 0 and self.training_gpus > 0 else "Files"
