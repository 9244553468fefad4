"""Rules about sampler and buffer: V-34 to V-46."""

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_api.rules.table import Rule

KNOB_OWNERS = {
    "max_lookahead_versions": ("in_order",),
    "warmup_lookahead_versions": ("in_order",),
    "max_staleness_versions": ("weight_fifo", "ready_first", "windowed"),
    "sample_freshest_first": ("windowed",),
    "over_sampling_ratio": ("windowed",),
    "target": ("custom",),
    "arguments": ("custom",),
}


def _only_knobs_of_its_mode(s: JobSpec, _: Derived) -> bool:
    sampler = s.async_rl.sampler
    return all(getattr(sampler, knob) is None or sampler.name in modes for knob, modes in KNOB_OWNERS.items())


def _warmup_widens(s: JobSpec, d: Derived) -> bool:
    if s.async_rl.sampler.warmup_lookahead_versions is None:
        return True
    return d.critic_warmup_steps > 0 and d.warmup_lookahead >= d.lookahead


def _completions_can_be_counted(s: JobSpec, d: Derived) -> bool:
    limit = s.async_rl.max_inflight_generations
    room = not d.is_gym or limit is None or limit >= d.num_generations_per_prompt
    return limit is None or (s.token_capture.enabled and room)


def _drain_is_bounded(s: JobSpec, d: Derived) -> bool:
    failure = s.async_rl.rollout_failure
    if s.async_rl.in_flight_weight_updates or s.async_rl.drain_timeout_seconds is not None:
        return True
    if d.is_gym:
        return failure.nemo_gym.rollout_timeout_seconds is not None
    return None not in (failure.native.generation_timeout_seconds, failure.native.env_timeout_seconds)


SAMPLER_RULES = (
    Rule(
        id="V-34",
        statement="Each knob only under its mode.",
        field=".asyncRL.sampler.name",
        cel="(self.asyncRL.sampler.name == 'in_order' || !(has(self.asyncRL.sampler.maxLookaheadVersions)"
        " || has(self.asyncRL.sampler.warmupLookaheadVersions)))"
        " && (self.asyncRL.sampler.name in ['weight_fifo', 'ready_first', 'windowed']"
        " || !has(self.asyncRL.sampler.maxStalenessVersions))"
        " && (self.asyncRL.sampler.name == 'windowed' || !(has(self.asyncRL.sampler.sampleFreshestFirst)"
        " || has(self.asyncRL.sampler.overSamplingRatio)))"
        " && (self.asyncRL.sampler.name == 'custom' || !(has(self.asyncRL.sampler.target)"
        " || has(self.asyncRL.sampler.arguments)))",
        holds=_only_knobs_of_its_mode,
        message="a knob of another mode is set beside name {self.asyncRL.sampler.name}: "
        "maxLookaheadVersions and warmupLookaheadVersions belong to in_order, maxStalenessVersions to "
        "weight_fifo, ready_first and windowed, sampleFreshestFirst and overSamplingRatio to windowed, "
        "target and arguments to custom; remove it or change name",
    ),
    Rule(
        id="V-35",
        statement="`custom` names its class.",
        field=".asyncRL.sampler.target",
        cel="self.asyncRL.sampler.name != 'custom' || has(self.asyncRL.sampler.target)",
        holds=lambda s, d: d.sampler != "custom" or s.async_rl.sampler.target is not None,
        message="sampler custom needs target, the class as module:ClassName: add it",
    ),
    Rule(
        id="V-36",
        statement="The warm-up lookahead needs a warm-up and is no narrower than the ordinary one.",
        field=".asyncRL.sampler.warmupLookaheadVersions",
        cel="!has(self.asyncRL.sampler.warmupLookaheadVersions) || (P > 0 && W >= L)",
        holds=_warmup_widens,
        message="asyncRL.sampler.warmupLookaheadVersions {W} needs algorithm.ppo.policyTrainingStartStep "
        "above 0 (it is {P}) and must be at least maxLookaheadVersions {L}: set both right or remove it",
    ),
    Rule(
        id="V-37",
        statement="PPO uses `in_order`.",
        field=".asyncRL.sampler.name",
        cel="!PPO || MODE == 'in_order'",
        holds=lambda s, d: not d.is_ppo or d.sampler == "in_order",
        message="PPO trains in order, and asyncRL.sampler.name is {MODE}: use in_order",
    ),
    Rule(
        id="V-38",
        statement="No drop budgets under PPO.",
        field=".asyncRL.rolloutFailure",
        cel="!PPO || DROPS == 0",
        holds=lambda s, d: not d.is_ppo or d.drop_budget == 0,
        message="PPO cannot train on a step that lost prompts: set asyncRL.rolloutFailure.maxSkippedPrompts "
        "and maxConsecutiveDroppedPrompts to 0",
    ),
    Rule(
        id="V-39",
        statement="Drop budgets only under a sampler that stamps steps, or `custom`.",
        field=".asyncRL.rolloutFailure",
        cel="DROPS == 0 || MODE in ['in_order', 'custom']",
        holds=lambda s, d: d.drop_budget == 0 or d.sampler in ("in_order", "custom"),
        message="sampler {MODE} does not tie prompts to steps, so the step that waits for a dropped prompt "
        "would never close: use in_order, or set maxSkippedPrompts and maxConsecutiveDroppedPrompts to 0",
    ),
    Rule(
        id="V-40",
        statement="Only `in_order` has targets to drop.",
        field=".asyncRL.dropIncompleteTargetsOnRestore",
        cel="!self.asyncRL.dropIncompleteTargetsOnRestore || MODE == 'in_order'",
        holds=lambda s, d: not s.async_rl.drop_incomplete_targets_on_restore or d.sampler == "in_order",
        message="asyncRL.dropIncompleteTargetsOnRestore needs groups that are tied to steps, and sampler "
        "{MODE} has none: use in_order or set it to false",
    ),
    Rule(
        id="V-41",
        statement="The buffer holds what the sampler may admit.",
        field=".asyncRL.maxBufferedRollouts",
        cel="BUF >= CAP",
        holds=lambda s, d: d.buffer_size >= d.required_capacity,
        message="asyncRL.maxBufferedRollouts is {BUF}, but sampler {MODE} may admit {CAP} groups "
        "(numPromptsPerStep × (window + 1)) and generation would wait for ever: raise it to {CAP}, leave it "
        "out, or narrow the window",
    ),
    Rule(
        id="V-42",
        statement="The buffer holds the smallest chunk.",
        field=".asyncRL.maxBufferedRollouts",
        cel="BUF >= MIN",
        holds=lambda s, d: d.buffer_size >= d.min_groups,
        message="asyncRL.maxBufferedRollouts {BUF} is below minGroupsForStreamingTrain {MIN}, so the trainer "
        "could never start: raise the former or lower the latter",
    ),
    Rule(
        id="V-43",
        statement="The smallest chunk is no larger than a step.",
        field=".asyncRL.minGroupsForStreamingTrain",
        cel="MIN <= N",
        holds=lambda s, d: d.min_groups <= d.num_prompts_per_step,
        message="asyncRL.minGroupsForStreamingTrain {MIN} exceeds numPromptsPerStep {N}: "
        "lower it, leave it out, or raise numPromptsPerStep",
    ),
    Rule(
        id="V-44",
        statement="PPO, colocated generation, several policy updates and the likelihood loss train a step as "
        "one chunk.",
        field=".asyncRL.minGroupsForStreamingTrain",
        cel="!ONECHUNK || MIN == N",
        holds=lambda s, d: not d.needs_one_chunk or d.min_groups == d.num_prompts_per_step,
        message="{reason} needs the whole step at once, but asyncRL.minGroupsForStreamingTrain is {MIN}: "
        "set it to {N} or leave it out",
        values={
            "reason": (
                "PPO ? 'PPO' : self.generation.colocated ? 'colocated generation'"
                " : UPDATES > 1 ? 'more than one policy update per step' : 'loss.positiveExampleNllWeight'",
                lambda s, d: d.one_chunk_reason,
            )
        },
    ),
    Rule(
        id="V-45",
        statement="Counting completions needs token capture, and room for one group on the gym path.",
        field=".asyncRL.maxInflightGenerations",
        cel="!has(self.asyncRL.maxInflightGenerations)"
        " || (self.tokenCapture.enabled && (!GYM || self.asyncRL.maxInflightGenerations >= G))",
        holds=_completions_can_be_counted,
        message="asyncRL.maxInflightGenerations {self.asyncRL.?maxInflightGenerations.orValue(0)} needs "
        "tokenCapture.enabled, and on the gym path at least the {G} completions of a group: "
        "turn token capture on, raise the number, or remove it",
    ),
    Rule(
        id="V-46",
        statement="The drain gate is bounded.",
        field=".asyncRL.drainTimeoutSeconds",
        cel="self.asyncRL.inFlightWeightUpdates || has(self.asyncRL.drainTimeoutSeconds)"
        " || (GYM ? has(self.asyncRL.rolloutFailure.nemoGym.rolloutTimeoutSeconds)"
        " : has(self.asyncRL.rolloutFailure.native.generationTimeoutSeconds)"
        " && has(self.asyncRL.rolloutFailure.native.envTimeoutSeconds))",
        holds=_drain_is_bounded,
        message="asyncRL.inFlightWeightUpdates is false and rollouts have no deadline, so one of them could "
        "hold every weight update up: set asyncRL.drainTimeoutSeconds, or all deadlines of "
        "asyncRL.rolloutFailure.{path}",
        values={"path": ("GYM ? 'nemoGym' : 'native'", lambda s, d: "nemoGym" if d.is_gym else "native")},
    ),
)
