"""Rules about failures, watchdog, fleet, router and weight transfer: V-47 to V-63."""

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_api.rules.table import Rule
from asyncrl_api.spec.failure import NemoGymDeadlines

RETRIED_BY_CLIENTS = (429, 500, 502, 503, 504, 520)
MAX_ROW_ATTEMPTS = NemoGymDeadlines.model_fields["max_row_attempts"].default


def _native_keys(s: JobSpec) -> str:
    native = s.async_rl.rollout_failure.native
    keys = {
        "generationTimeoutSeconds ": native.generation_timeout_seconds,
        "envTimeoutSeconds ": native.env_timeout_seconds,
    }
    return "".join(key for key, value in keys.items() if value is not None)


def _gym_keys(s: JobSpec) -> str:
    gym = s.async_rl.rollout_failure.nemo_gym
    deadline = "rolloutTimeoutSeconds " if gym.rollout_timeout_seconds is not None else ""
    return deadline + ("maxRowAttempts " if gym.max_row_attempts != MAX_ROW_ATTEMPTS else "")


def _replacing_can_replace(s: JobSpec, _: Derived) -> bool:
    failure = s.async_rl.rollout_failure
    spares = min(failure.max_replacement_attempts, failure.replacement_reserve_prompts)
    return failure.on_dropped_prompt != "replace" or spares >= 1


def _stall_outlasts_transfer(s: JobSpec, d: Derived) -> bool:
    if s.async_rl.refit.deadline_seconds is None:
        return True
    return d.refit_deadline_seconds < s.async_rl.stall_watchdog.stall_timeout_seconds


def _death_is_found_first(s: JobSpec, d: Derived) -> bool:
    deadline = s.async_rl.refit.deadline_seconds
    if not s.async_rl.generation_fleet_health.enabled or deadline is None:
        return True
    return d.detection_seconds < deadline


def _request_ends_with_rollout(s: JobSpec, _: Derived) -> bool:
    router, deadline = (
        s.async_rl.generation_router,
        s.async_rl.rollout_failure.nemo_gym.rollout_timeout_seconds,
    )
    return not router.enabled or deadline is None or router.backend_timeout_seconds <= deadline


def _transport_fits(s: JobSpec, d: Derived) -> bool:
    transport = s.async_rl.refit.transport
    if transport == "Auto":
        return True
    gpus = (s.generation.gpus_per_shard, s.training.gpus_per_host)
    fits = {
        "SharedMemory": s.data_plane.backend == "inProcess",
        "Gloo": max(gpus) == 0,
        "NCCL": min(gpus) > 0,
        "Files": True,
    }
    return not d.is_ppo and s.generation.backend != "megatron" and fits[transport]


FAILURE_RULES = (
    Rule(
        id="V-47",
        statement="`maxBackoffSeconds ≥ backoffBaseSeconds`.",
        field=".asyncRL.rolloutFailure.maxBackoffSeconds",
        cel="self.asyncRL.rolloutFailure.maxBackoffSeconds >= self.asyncRL.rolloutFailure.backoffBaseSeconds",
        holds=lambda s, _: (
            s.async_rl.rollout_failure.max_backoff_seconds >= s.async_rl.rollout_failure.backoff_base_seconds
        ),
        message="maxBackoffSeconds {self.asyncRL.rolloutFailure.maxBackoffSeconds} is below "
        "backoffBaseSeconds {self.asyncRL.rolloutFailure.backoffBaseSeconds}: "
        "raise the former or lower the latter",
    ),
    Rule(
        id="V-48",
        statement="`replace` has something to replace with.",
        field=".asyncRL.rolloutFailure.onDroppedPrompt",
        cel="self.asyncRL.rolloutFailure.onDroppedPrompt != 'replace'"
        " || (self.asyncRL.rolloutFailure.maxReplacementAttempts >= 1"
        " && self.asyncRL.rolloutFailure.replacementReservePrompts >= 1)",
        holds=_replacing_can_replace,
        message="onDroppedPrompt replace with maxReplacementAttempts "
        "{self.asyncRL.rolloutFailure.maxReplacementAttempts} and replacementReservePrompts "
        "{self.asyncRL.rolloutFailure.replacementReservePrompts} would only ever shrink: "
        "set both to at least 1, or use shrink",
    ),
    Rule(
        id="V-49",
        statement="No native deadlines on the gym path.",
        field=".asyncRL.rolloutFailure.native",
        cel="!GYM || !(has(self.asyncRL.rolloutFailure.native.generationTimeoutSeconds)"
        " || has(self.asyncRL.rolloutFailure.native.envTimeoutSeconds))",
        holds=lambda s, d: not (d.is_gym and _native_keys(s)),
        message="{keys}of asyncRL.rolloutFailure.native has no effect with environment.nemoGym: "
        "use asyncRL.rolloutFailure.nemoGym.rolloutTimeoutSeconds",
        values={
            "keys": (
                "(has(self.asyncRL.rolloutFailure.native.generationTimeoutSeconds)"
                " ? 'generationTimeoutSeconds ' : '')"
                " + (has(self.asyncRL.rolloutFailure.native.envTimeoutSeconds) ? 'envTimeoutSeconds ' : '')",
                lambda s, _: _native_keys(s),
            )
        },
    ),
    Rule(
        id="V-50",
        statement="No gym deadlines on the native path.",
        field=".asyncRL.rolloutFailure.nemoGym",
        cel="GYM || !(has(self.asyncRL.rolloutFailure.nemoGym.rolloutTimeoutSeconds)"
        " || self.asyncRL.rolloutFailure.nemoGym.maxRowAttempts != 3)",
        holds=lambda s, d: d.is_gym or not _gym_keys(s),
        message="{keys}of asyncRL.rolloutFailure.nemoGym has no effect without environment.nemoGym: "
        "use generationTimeoutSeconds and envTimeoutSeconds of asyncRL.rolloutFailure.native",
        values={
            "keys": (
                "(has(self.asyncRL.rolloutFailure.nemoGym.rolloutTimeoutSeconds)"
                " ? 'rolloutTimeoutSeconds ' : '')"
                " + (self.asyncRL.rolloutFailure.nemoGym.maxRowAttempts != 3 ? 'maxRowAttempts ' : '')",
                lambda s, _: _gym_keys(s),
            )
        },
    ),
    Rule(
        id="V-51",
        statement="A stall outlasts a tick.",
        field=".asyncRL.stallWatchdog.stallTimeoutSeconds",
        cel="self.asyncRL.stallWatchdog.stallTimeoutSeconds > self.asyncRL.stallWatchdog.intervalSeconds",
        holds=lambda s, _: (
            s.async_rl.stall_watchdog.stall_timeout_seconds > s.async_rl.stall_watchdog.interval_seconds
        ),
        message="stallTimeoutSeconds {self.asyncRL.stallWatchdog.stallTimeoutSeconds} must exceed "
        "intervalSeconds {self.asyncRL.stallWatchdog.intervalSeconds}: raise the former or look more often",
    ),
    Rule(
        id="V-52",
        statement="A stall outlasts every rollout deadline.",
        field=".asyncRL.stallWatchdog.stallTimeoutSeconds",
        cel="[self.asyncRL.rolloutFailure.native.?generationTimeoutSeconds.orValue(0.0),"
        " self.asyncRL.rolloutFailure.native.?envTimeoutSeconds.orValue(0.0),"
        " self.asyncRL.rolloutFailure.nemoGym.?rolloutTimeoutSeconds.orValue(0.0)].max()"
        " < self.asyncRL.stallWatchdog.stallTimeoutSeconds",
        holds=lambda s, d: (
            d.longest_rollout_deadline_seconds < s.async_rl.stall_watchdog.stall_timeout_seconds
        ),
        message="asyncRL.stallWatchdog.stallTimeoutSeconds "
        "{self.asyncRL.stallWatchdog.stallTimeoutSeconds} does not outlast the longest rollout deadline, "
        "{longest}, and would report slow rollouts as stalls: raise it or lower the deadline",
        values={
            "longest": (
                "[self.asyncRL.rolloutFailure.native.?generationTimeoutSeconds.orValue(0.0),"
                " self.asyncRL.rolloutFailure.native.?envTimeoutSeconds.orValue(0.0),"
                " self.asyncRL.rolloutFailure.nemoGym.?rolloutTimeoutSeconds.orValue(0.0)].max()",
                lambda s, d: d.longest_rollout_deadline_seconds,
            )
        },
    ),
    Rule(
        id="V-53",
        statement="A stall outlasts a weight transfer.",
        field=".asyncRL.stallWatchdog.stallTimeoutSeconds",
        cel="!has(self.asyncRL.refit.deadlineSeconds)"
        " || self.asyncRL.refit.deadlineSeconds + self.asyncRL.refit.unwindGraceSeconds"
        " < self.asyncRL.stallWatchdog.stallTimeoutSeconds",
        holds=_stall_outlasts_transfer,
        message="asyncRL.stallWatchdog.stallTimeoutSeconds "
        "{self.asyncRL.stallWatchdog.stallTimeoutSeconds} does not outlast a weight transfer, "
        "refit.deadlineSeconds plus unwindGraceSeconds ({sum}): raise it or lower these",
        values={
            "sum": (
                "self.asyncRL.refit.?deadlineSeconds.orValue(0.0) + self.asyncRL.refit.unwindGraceSeconds",
                lambda s, d: d.refit_deadline_seconds,
            )
        },
    ),
    Rule(
        id="V-54",
        statement="A probe ends before the next one.",
        field=".asyncRL.generationFleetHealth.probeTimeoutSeconds",
        cel="self.asyncRL.generationFleetHealth.probeTimeoutSeconds"
        " < self.asyncRL.generationFleetHealth.probeIntervalSeconds",
        holds=lambda s, _: (
            s.async_rl.generation_fleet_health.probe_timeout_seconds
            < s.async_rl.generation_fleet_health.probe_interval_seconds
        ),
        message="probeTimeoutSeconds {self.asyncRL.generationFleetHealth.probeTimeoutSeconds} must be below "
        "probeIntervalSeconds {self.asyncRL.generationFleetHealth.probeIntervalSeconds}, or probes overlap "
        "and a slow fleet looks dead: lower it or probe less often",
    ),
    Rule(
        id="V-55",
        statement="No more healthy shards asked for than there are.",
        field=".asyncRL.generationFleetHealth.minHealthyShards",
        cel="self.asyncRL.generationFleetHealth.minHealthyShards <= self.generation.shards",
        holds=lambda s, _: s.async_rl.generation_fleet_health.min_healthy_shards <= s.generation.shards,
        message="asyncRL.generationFleetHealth.minHealthyShards "
        "{self.asyncRL.generationFleetHealth.minHealthyShards} exceeds generation.shards "
        "{self.generation.shards}: lower it or add shards",
    ),
    Rule(
        id="V-56",
        statement="A dead shard is found before the transfer gives up.",
        field=".asyncRL.refit.deadlineSeconds",
        cel="!self.asyncRL.generationFleetHealth.enabled || !has(self.asyncRL.refit.deadlineSeconds)"
        " || self.asyncRL.generationFleetHealth.probeIntervalSeconds"
        " * double(self.asyncRL.generationFleetHealth.unhealthyThreshold)"
        " + self.asyncRL.generationFleetHealth.probeTimeoutSeconds < self.asyncRL.refit.deadlineSeconds",
        holds=_death_is_found_first,
        message="finding a dead shard takes up to {detection} s (probeIntervalSeconds × unhealthyThreshold + "
        "probeTimeoutSeconds), not less than asyncRL.refit.deadlineSeconds "
        "{self.asyncRL.refit.?deadlineSeconds.orValue(0.0)}: raise the deadline or probe faster",
        values={
            "detection": (
                "self.asyncRL.generationFleetHealth.probeIntervalSeconds"
                " * double(self.asyncRL.generationFleetHealth.unhealthyThreshold)"
                " + self.asyncRL.generationFleetHealth.probeTimeoutSeconds",
                lambda s, d: d.detection_seconds,
            )
        },
    ),
    Rule(
        id="V-57",
        statement="The router serves the gym path.",
        field=".asyncRL.generationRouter.enabled",
        cel="!self.asyncRL.generationRouter.enabled || GYM",
        holds=lambda s, d: not s.async_rl.generation_router.enabled or d.is_gym,
        message="asyncRL.generationRouter.enabled needs environment.nemoGym, since native rollouts do not "
        "use HTTP: set it to false",
    ),
    Rule(
        id="V-58",
        statement="Gym path and router need an engine with an HTTP server.",
        field=".generation.backend",
        cel="!(GYM || self.asyncRL.generationRouter.enabled)"
        " || self.generation.backend in ['vllm', 'megatron']",
        holds=lambda s, d: (
            not (d.is_gym or s.async_rl.generation_router.enabled)
            or s.generation.backend in ("vllm", "megatron")
        ),
        message="environment.nemoGym talks HTTP to the engines, and generation.backend "
        "{self.generation.backend} has no HTTP server: use vllm or megatron",
    ),
    Rule(
        id="V-59",
        statement="`portRangeLow < portRangeHigh`.",
        field=".asyncRL.generationRouter.portRangeLow",
        cel="self.asyncRL.generationRouter.portRangeLow < self.asyncRL.generationRouter.portRangeHigh",
        holds=lambda s, _: (
            s.async_rl.generation_router.port_range_low < s.async_rl.generation_router.port_range_high
        ),
        message="portRangeLow {self.asyncRL.generationRouter.portRangeLow} must be below portRangeHigh "
        "{self.asyncRL.generationRouter.portRangeHigh}: widen the range",
    ),
    Rule(
        id="V-60",
        statement="`connectTimeoutSeconds ≤ backendTimeoutSeconds`.",
        field=".asyncRL.generationRouter.connectTimeoutSeconds",
        cel="self.asyncRL.generationRouter.connectTimeoutSeconds"
        " <= self.asyncRL.generationRouter.backendTimeoutSeconds",
        holds=lambda s, _: (
            s.async_rl.generation_router.connect_timeout_seconds
            <= s.async_rl.generation_router.backend_timeout_seconds
        ),
        message="connectTimeoutSeconds {self.asyncRL.generationRouter.connectTimeoutSeconds} exceeds "
        "backendTimeoutSeconds {self.asyncRL.generationRouter.backendTimeoutSeconds}, of which it is a part: "
        "lower it",
    ),
    Rule(
        id="V-61",
        statement="A forwarded request ends no later than its rollout.",
        field=".asyncRL.generationRouter.backendTimeoutSeconds",
        cel="!self.asyncRL.generationRouter.enabled"
        " || !has(self.asyncRL.rolloutFailure.nemoGym.rolloutTimeoutSeconds)"
        " || self.asyncRL.generationRouter.backendTimeoutSeconds"
        " <= self.asyncRL.rolloutFailure.nemoGym.rolloutTimeoutSeconds",
        holds=_request_ends_with_rollout,
        message="asyncRL.generationRouter.backendTimeoutSeconds "
        "{self.asyncRL.generationRouter.backendTimeoutSeconds} is longer than the rollout it serves, "
        "rolloutTimeoutSeconds {self.asyncRL.rolloutFailure.nemoGym.?rolloutTimeoutSeconds.orValue(0.0)}: "
        "lower it",
    ),
    Rule(
        id="V-62",
        statement="Not a status that clients retry.",
        field=".asyncRL.generationRouter.noHealthyBackendStatus",
        cel="!(self.asyncRL.generationRouter.noHealthyBackendStatus in [429, 500, 502, 503, 504, 520])",
        holds=lambda s, _: s.async_rl.generation_router.no_healthy_backend_status not in RETRIED_BY_CLIENTS,
        message="noHealthyBackendStatus {self.asyncRL.generationRouter.noHealthyBackendStatus} is retried by "
        "clients, some without end: use another, such as 409",
    ),
    Rule(
        id="V-63",
        statement="The transport fits topology and algorithm.",
        field=".asyncRL.refit.transport",
        cel="self.asyncRL.refit.transport == 'Auto' || (!PPO && self.generation.backend != 'megatron'"
        " && (self.asyncRL.refit.transport == 'SharedMemory' ? self.dataPlane.backend == 'inProcess'"
        " : self.asyncRL.refit.transport == 'Gloo'"
        " ? self.generation.gpusPerShard == 0 && self.training.gpusPerHost == 0"
        " : self.asyncRL.refit.transport == 'NCCL'"
        " ? self.generation.gpusPerShard > 0 && self.training.gpusPerHost > 0 : true))",
        holds=_transport_fits,
        message="asyncRL.refit.transport {self.asyncRL.refit.transport} does not fit: SharedMemory needs "
        "dataPlane.backend inProcess, Gloo no GPUs, NCCL GPUs on both sides, and PPO and generation.backend "
        "megatron take only Auto; use Auto",
    ),
)
