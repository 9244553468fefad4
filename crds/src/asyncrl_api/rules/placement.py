"""Rules about placement and operation: V-91 to V-105."""

from math import prod

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_api.rules.table import Rule
from asyncrl_api.spec.operations import FaultRule
from asyncrl_api.spec.pods import EnvVar


def _most_shards(s: JobSpec) -> int:
    limit = s.generation.max_shards
    return s.generation.shards if limit is None else limit


def _shards_within_bounds(s: JobSpec, _: Derived) -> bool:
    return s.generation.min_shards <= s.generation.shards <= _most_shards(s)


def _ranks_divide(s: JobSpec, d: Derived) -> bool:
    sizes = ("tensor", "pipeline", "context")
    policy = {size: getattr(s.training.parallelism, size) for size in sizes}
    own = s.value.parallelism if s.value else None
    critic = {size: getattr(own, size, None) or policy[size] for size in sizes}
    return all(d.num_training_ranks % prod(copy.values()) == 0 for copy in (policy, critic))


def _gpus_asked_once(s: JobSpec, _: Derived) -> bool:
    roles = (s.controller, s.generation, s.training)
    asked = (named for role in roles for named in (role.resources.requests, role.resources.limits))
    return not any(s.gpu_resource_name in (named or {}) for named in asked)


def _operator_waits_longer(s: JobSpec, d: Derived) -> bool:
    waits = (
        s.async_rl.stall_watchdog.stall_timeout_seconds,
        s.checkpointing.timeout_seconds,
        d.refit_deadline_seconds,
    )
    return max(waits) < s.lifecycle.stall_deadline_seconds


def _job_outlives_its_start(s: JobSpec, _: Derived) -> bool:
    deadline = s.lifecycle.active_deadline_seconds
    return deadline is None or deadline > s.lifecycle.startup_deadline_seconds


def _rule_is_complete(rule: FaultRule, _: Derived) -> bool:
    matches = any(each is not None for each in (rule.reasons, rule.roles, rule.exit_codes))
    return matches and (rule.counted or rule.action == "RestartJob")


def _one_source(variable: EnvVar, _: Derived) -> bool:
    source = variable.value_from
    if source is None:
        return True
    one_reference = (source.secret_key_ref is None) != (source.config_map_key_ref is None)
    return variable.value is None and one_reference


PLACEMENT_RULES = (
    Rule(
        id="V-91",
        statement="`minShards ≤ shards ≤ maxShards`.",
        field=".generation.shards",
        cel="self.generation.minShards <= self.generation.shards"
        " && self.generation.shards <= self.generation.?maxShards.orValue(self.generation.shards)",
        holds=_shards_within_bounds,
        message="shards {self.generation.shards} is outside minShards {self.generation.minShards} to "
        "maxShards {most}: change the number or the bounds",
        values={
            "most": (
                "self.generation.?maxShards.orValue(self.generation.shards)",
                lambda s, _: _most_shards(s),
            )
        },
    ),
    Rule(
        id="V-92",
        statement="The shard's parallelism uses its GPUs exactly.",
        field=".generation.tensorParallel",
        cel="self.generation.?tensorParallel"
        ".orValue([1, self.generation.gpusPerShard / self.generation.pipelineParallel].max())"
        " * self.generation.pipelineParallel == [1, self.generation.gpusPerShard].max()",
        holds=lambda s, d: (
            d.tensor_parallel * s.generation.pipeline_parallel == max(1, s.generation.gpus_per_shard)
        ),
        message="tensorParallel × pipelineParallel is {product}, but a shard has "
        "{self.generation.gpusPerShard} GPUs: make them equal (1 each without GPUs)",
        values={
            "product": (
                "self.generation.?tensorParallel"
                ".orValue([1, self.generation.gpusPerShard / self.generation.pipelineParallel].max())"
                " * self.generation.pipelineParallel",
                lambda s, d: d.tensor_parallel * s.generation.pipeline_parallel,
            )
        },
    ),
    Rule(
        id="V-93",
        statement="A shard's GPUs divide over its hosts.",
        field=".generation.hostsPerShard",
        cel="self.generation.gpusPerShard % self.generation.hostsPerShard == 0",
        holds=lambda s, _: s.generation.gpus_per_shard % s.generation.hosts_per_shard == 0,
        message="gpusPerShard {self.generation.gpusPerShard} does not divide over hostsPerShard "
        "{self.generation.hostsPerShard}: change one",
    ),
    Rule(
        id="V-94",
        statement="Parallelism divides the training ranks.",
        field=".training.parallelism",
        cel="RANKS % (self.training.parallelism.tensor * self.training.parallelism.pipeline"
        " * self.training.parallelism.context) == 0"
        " && (!has(self.value)"
        " || RANKS % (self.value.?parallelism.?tensor.orValue(self.training.parallelism.tensor)"
        " * self.value.?parallelism.?pipeline.orValue(self.training.parallelism.pipeline)"
        " * self.value.?parallelism.?context.orValue(self.training.parallelism.context)) == 0)",
        holds=_ranks_divide,
        message="tensor × pipeline × context must divide the {RANKS} training ranks (hosts × gpusPerHost), "
        "for the policy and for the critic: change training.parallelism, value.parallelism or the number of "
        "GPUs",
    ),
    Rule(
        id="V-95",
        statement="Megatron needs GPUs.",
        field=".training.backend",
        cel="(self.training.backend != 'megatron' || self.training.gpusPerHost > 0)"
        " && (self.generation.backend != 'megatron' || self.generation.gpusPerShard > 0)",
        holds=lambda s, _: (
            (s.training.backend != "megatron" or s.training.gpus_per_host > 0)
            and (s.generation.backend != "megatron" or s.generation.gpus_per_shard > 0)
        ),
        message="backend megatron needs GPUs: raise training.gpusPerHost (now {self.training.gpusPerHost}) "
        "or generation.gpusPerShard (now {self.generation.gpusPerShard}), or use torch",
    ),
    Rule(
        id="V-96",
        statement="Megatron generation needs the Megatron trainer.",
        field=".generation.backend",
        cel="self.generation.backend != 'megatron' || self.training.backend == 'megatron'",
        holds=lambda s, _: s.generation.backend != "megatron" or s.training.backend == "megatron",
        message="generation.backend megatron needs training.backend megatron, and it is "
        "{self.training.backend}: change one",
    ),
    Rule(
        id="V-97",
        statement="Colocation needs Megatron generation.",
        field=".generation.colocated",
        cel="!self.generation.colocated || self.generation.backend == 'megatron'",
        holds=lambda s, _: not s.generation.colocated or s.generation.backend == "megatron",
        message="colocated generation needs backend megatron, and it is {self.generation.backend}: "
        "set colocated to false or change the backend",
    ),
    Rule(
        id="V-98",
        statement="Colocated shards use the training GPUs, all of them.",
        field=".generation.shards",
        cel="!self.generation.colocated || self.generation.shards * self.generation.gpusPerShard"
        " == self.training.hosts * self.training.gpusPerHost",
        holds=lambda s, d: not s.generation.colocated or d.generation_gpus == d.training_gpus,
        message="generation is colocated, so shards × gpusPerShard ({generation}) must equal training.hosts "
        "× gpusPerHost ({training}): change one side",
        values={
            "generation": (
                "self.generation.shards * self.generation.gpusPerShard",
                lambda s, d: d.generation_gpus,
            ),
            "training": ("self.training.hosts * self.training.gpusPerHost", lambda s, d: d.training_gpus),
        },
    ),
    Rule(
        id="V-99",
        statement="GPUs are not asked for twice.",
        field=".gpuResourceName",
        cel=" && ".join(
            f"!(self.gpuResourceName in self.{role}.resources.?{named}.orValue({{}}))"
            for role in ("controller", "generation", "training")
            for named in ("requests", "limits")
        ),
        holds=_gpus_asked_once,
        message="resources must not name {self.gpuResourceName}, which follows from generation.gpusPerShard "
        "and training.gpusPerHost: remove it",
    ),
    Rule(
        id="V-100",
        statement="A queue exactly with a provider.",
        field=".scheduling.queueName",
        cel="(self.scheduling.provider == 'None') == (self.scheduling.queueName == '')",
        holds=lambda s, _: (s.scheduling.provider == "None") == (s.scheduling.queue_name == ""),
        message="provider {self.scheduling.provider} and queueName '{self.scheduling.queueName}' do not go "
        "together: set both, or neither",
    ),
    Rule(
        id="V-101",
        statement="The operator waits longer than the controller, a weight transfer and a save.",
        field=".lifecycle.stallDeadlineSeconds",
        cel="[self.asyncRL.stallWatchdog.stallTimeoutSeconds, double(self.checkpointing.timeoutSeconds),"
        " self.asyncRL.refit.?deadlineSeconds.orValue(0.0) + self.asyncRL.refit.unwindGraceSeconds].max()"
        " < double(self.lifecycle.stallDeadlineSeconds)",
        holds=_operator_waits_longer,
        message="lifecycle.stallDeadlineSeconds {self.lifecycle.stallDeadlineSeconds} must exceed "
        "asyncRL.stallWatchdog.stallTimeoutSeconds ({self.asyncRL.stallWatchdog.stallTimeoutSeconds}), "
        "checkpointing.timeoutSeconds ({self.checkpointing.timeoutSeconds}) and the refit deadline with its "
        "grace ({sum}), or the attempt ends before they can act: raise it",
        values={
            "sum": (
                "self.asyncRL.refit.?deadlineSeconds.orValue(0.0) + self.asyncRL.refit.unwindGraceSeconds",
                lambda s, d: d.refit_deadline_seconds,
            )
        },
    ),
    Rule(
        id="V-102",
        statement="The job may live longer than its start takes.",
        field=".lifecycle.activeDeadlineSeconds",
        cel="self.lifecycle.?activeDeadlineSeconds.orValue(self.lifecycle.startupDeadlineSeconds + 1)"
        " > self.lifecycle.startupDeadlineSeconds",
        holds=_job_outlives_its_start,
        message="activeDeadlineSeconds {self.lifecycle.?activeDeadlineSeconds.orValue(0)} must exceed "
        "startupDeadlineSeconds {self.lifecycle.startupDeadlineSeconds}: raise the former or lower the "
        "latter",
    ),
    Rule(
        id="V-103",
        statement="`maxSeconds ≥ baseSeconds`.",
        field=".faultPolicy.backoff.maxSeconds",
        cel="self.faultPolicy.backoff.maxSeconds >= self.faultPolicy.backoff.baseSeconds",
        holds=lambda s, _: s.fault_policy.backoff.max_seconds >= s.fault_policy.backoff.base_seconds,
        message="maxSeconds {self.faultPolicy.backoff.maxSeconds} is below baseSeconds "
        "{self.faultPolicy.backoff.baseSeconds}: raise the former or lower the latter",
    ),
    Rule(
        id="V-104",
        statement="A rule matches on something; only restarts can go uncounted.",
        where="faultPolicy.rules[]",
        cel="(has(self.reasons) || has(self.roles) || has(self.exitCodes))"
        " && (self.counted || self.action == 'RestartJob')",
        holds=_rule_is_complete,
        message="rule {self.name} needs at least one of reasons, roles and exitCodes, and counted: false "
        "only with action RestartJob: complete it",
    ),
    Rule(
        id="V-105",
        statement="A variable has one source.",
        where="{controller,generation,training}.env[]",
        cel="!(has(self.value) && has(self.valueFrom)) && (!has(self.valueFrom)"
        " || has(self.valueFrom.secretKeyRef) != has(self.valueFrom.configMapKeyRef))",
        holds=_one_source,
        message="variable {self.name} must have either value or one reference under valueFrom: keep one",
    ),
)
