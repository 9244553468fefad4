"""Rules about the algorithm: V-1 to V-17."""

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_api.rules.table import Rule, Value
from asyncrl_api.spec.algorithm import GrpoSpec

PRESENCE: Value = (
    "PPO ? 'missing' : 'set although algorithm.ppo is not'",
    lambda s, d: "missing" if d.is_ppo else "set although algorithm.ppo is not",
)


def _only_knobs_of_its_estimator(grpo: GrpoSpec, _: Derived) -> bool:
    estimator = grpo.adv_estimator
    owners = {
        "use_leave_one_out_baseline": ("grpo", "gdpo"),
        "normalize_rewards": ("grpo", "gdpo"),
        "reward_weights": ("gdpo",),
        "minus_baseline": ("reinforce_plus_plus",),
        "baseline_excludes_masked": ("grpo", "gdpo", "reinforce_plus_plus"),
    }
    return all(getattr(estimator, knob) is None or estimator.name in names for knob, names in owners.items())


def _groups_can_be_compared(s: JobSpec, d: Derived) -> bool:
    grpo = s.algorithm.grpo
    centred = grpo is None or grpo.adv_estimator.minus_baseline is not False
    compares = d.estimator in ("grpo", "gdpo") or (d.estimator == "reinforce_plus_plus" and centred)
    return d.num_generations_per_prompt > 1 or not compares


ALGORITHM_RULES = (
    Rule(
        id="V-1",
        statement="Exactly one of `grpo` and `ppo`.",
        where="algorithm",
        cel="has(self.grpo) != has(self.ppo)",
        holds=lambda x, _: (x.grpo is None) != (x.ppo is None),
        message="algorithm must hold exactly one of grpo and ppo, and holds {held}: "
        "keep the one that the run uses",
        values={
            "held": ("has(self.grpo) ? 'both' : 'neither'", lambda x, _: "both" if x.grpo else "neither")
        },
    ),
    Rule(
        id="V-2",
        statement="`value` exactly with PPO.",
        field=".value",
        cel="has(self.value) == PPO",
        holds=lambda s, d: (s.value is not None) == d.is_ppo,
        message="value is the PPO critic: it is {presence}; {fix}",
        values={
            "presence": PRESENCE,
            "fix": (
                "PPO ? 'add value: {}, which copies the policy' : 'remove it'",
                lambda s, d: "add value: {}, which copies the policy" if d.is_ppo else "remove it",
            ),
        },
    ),
    Rule(
        id="V-3",
        statement="`valueLoss` exactly with PPO.",
        field=".valueLoss",
        cel="has(self.valueLoss) == PPO",
        holds=lambda s, d: (s.value_loss is not None) == d.is_ppo,
        message="valueLoss is the loss of the PPO critic: it is {presence}; {fix}",
        values={
            "presence": PRESENCE,
            "fix": (
                "PPO ? 'add valueLoss: {}' : 'remove it'",
                lambda s, d: "add valueLoss: {}" if d.is_ppo else "remove it",
            ),
        },
    ),
    Rule(
        id="V-4",
        statement="GRPO: each knob only under its estimator.",
        where="algorithm.grpo",
        field=".advEstimator.name",
        cel="(self.advEstimator.name in ['grpo', 'gdpo'] || !(has(self.advEstimator.useLeaveOneOutBaseline)"
        " || has(self.advEstimator.normalizeRewards)))"
        " && (self.advEstimator.name == 'gdpo' || !has(self.advEstimator.rewardWeights))"
        " && (self.advEstimator.name == 'reinforce_plus_plus' || !has(self.advEstimator.minusBaseline))"
        " && (self.advEstimator.name != 'opd' || !has(self.advEstimator.baselineExcludesMasked))",
        holds=_only_knobs_of_its_estimator,
        message="a knob of another estimator is set beside name {self.advEstimator.name}: "
        "useLeaveOneOutBaseline and normalizeRewards belong to grpo and gdpo, rewardWeights to gdpo, "
        "minusBaseline to reinforce_plus_plus, baselineExcludesMasked to all but opd; "
        "remove it or change name",
    ),
    Rule(
        id="V-5",
        statement="PPO does not take `raw_reward`.",
        where="algorithm.ppo",
        field=".advEstimator.name",
        cel="self.advEstimator.name != 'raw_reward'",
        holds=lambda x, _: x.adv_estimator.name != "raw_reward",
        message="advEstimator raw_reward yields no returns, so the critic would learn nothing: "
        "use gae, or algorithm.grpo for a run without a critic",
    ),
    Rule(
        id="V-6",
        statement="Batch-wide statistics need one chunk per step.",
        field=".asyncRL.minGroupsForStreamingTrain",
        cel="!WIDE || MIN == N",
        holds=lambda s, d: not d.needs_whole_batch or d.min_groups == d.num_prompts_per_step,
        message="advEstimator {EST} takes statistics over the batch, and asyncRL.minGroupsForStreamingTrain "
        "{MIN} lets a step of {N} groups train in chunks: set it to {N} or leave it out",
    ),
    Rule(
        id="V-7",
        statement="No KL penalty while reference log-probs are skipped.",
        field=".loss.referencePolicyKlPenalty",
        cel="!(SKIPREF && PENALTY > 0.0)",
        holds=lambda s, d: not (d.skips_reference_logprobs and d.kl_penalty > 0),
        message="loss.referencePolicyKlPenalty {PENALTY} needs reference log-probs, which "
        "skipReferencePolicyLogprobsCalculation turns off: set that to false, or the penalty to 0",
    ),
    Rule(
        id="V-8",
        statement="KL in the reward only with an estimator that takes it.",
        field=".loss.useKlInReward",
        cel="!self.loss.useKlInReward || PENALTY == 0.0 || EST in ['reinforce_plus_plus', 'gae']",
        holds=lambda s, d: (
            not s.loss.use_kl_in_reward or d.kl_penalty == 0 or d.estimator in ("reinforce_plus_plus", "gae")
        ),
        message="loss.useKlInReward takes the KL term out of the loss, and estimator {EST} does not put it "
        "into the reward: use reinforce_plus_plus or gae, or set it to false",
    ),
    Rule(
        id="V-9",
        statement="Comparing within a group needs two completions.",
        field=".algorithm",
        cel="G > 1 || !(EST in ['grpo', 'gdpo'] || (EST == 'reinforce_plus_plus'"
        " && self.algorithm.?grpo.?advEstimator.?minusBaseline.orValue(true)))",
        holds=_groups_can_be_compared,
        message="estimator {EST} compares the completions of a prompt, and numGenerationsPerPrompt is 1, "
        "so every advantage would be 0: raise it",
    ),
    Rule(
        id="V-10",
        statement="No reward shaping with `gdpo`.",
        where="algorithm.grpo",
        field=".rewardShaping.enabled",
        cel="!(self.rewardShaping.enabled && self.advEstimator.name == 'gdpo')",
        holds=lambda x, _: not (x.reward_shaping.enabled and x.adv_estimator.name == "gdpo"),
        message="rewardShaping changes the total reward, and estimator gdpo trains on its components: "
        "turn shaping off or use another estimator",
    ),
    Rule(
        id="V-11",
        statement="A forced ratio of 1 needs one policy update per step.",
        field=".loss.forceOnPolicyRatio",
        cel="!self.loss.forceOnPolicyRatio || UPDATES <= 1",
        holds=lambda s, d: not s.loss.force_on_policy_ratio or d.num_policy_updates <= 1,
        message="loss.forceOnPolicyRatio is true, but a step makes {UPDATES} policy updates and the ratio is "
        "1 only for the first: set it to false, or make one update per step",
    ),
    Rule(
        id="V-12",
        statement="At most one minibatch per group.",
        where="algorithm.grpo",
        field=".policyMinibatchesPerStep",
        cel="self.policyMinibatchesPerStep <= self.numPromptsPerStep",
        holds=lambda x, _: x.policy_minibatches_per_step <= x.num_prompts_per_step,
        message="policyMinibatchesPerStep {self.policyMinibatchesPerStep} exceeds the "
        "{self.numPromptsPerStep} groups of a step, and groups are not split: lower it",
    ),
    Rule(
        id="V-13",
        statement="`sourceMax > sourceMin`.",
        where="algorithm.{grpo,ppo}",
        field=".rewardScaling.sourceMax",
        cel="self.rewardScaling.sourceMax > self.rewardScaling.sourceMin",
        holds=lambda x, _: x.reward_scaling.source_max > x.reward_scaling.source_min,
        message="rewardScaling.sourceMax {self.rewardScaling.sourceMax} must be above sourceMin "
        "{self.rewardScaling.sourceMin}: give the range that raw rewards have",
    ),
    Rule(
        id="V-14",
        statement="Shaping needs its three length settings, or the stop coefficient.",
        where="algorithm.{grpo,ppo}",
        field=".rewardShaping",
        cel="!self.rewardShaping.enabled || has(self.rewardShaping.stopProperlyPenaltyCoef)"
        " || (has(self.rewardShaping.overlongBufferLength) && has(self.rewardShaping.overlongBufferPenalty)"
        " && has(self.rewardShaping.maxResponseLength))",
        holds=lambda x, _: (
            not x.reward_shaping.enabled
            or x.reward_shaping.stop_properly_penalty_coef is not None
            or None
            not in (
                x.reward_shaping.overlong_buffer_length,
                x.reward_shaping.overlong_buffer_penalty,
                x.reward_shaping.max_response_length,
            )
        ),
        message="rewardShaping is enabled without its parameters: set overlongBufferLength, "
        "overlongBufferPenalty and maxResponseLength, or stopProperlyPenaltyCoef",
    ),
    Rule(
        id="V-15",
        statement="`advantageClipLow ≤ advantageClipHigh`.",
        where="algorithm.grpo",
        field=".advantageClipLow",
        cel="!has(self.advantageClipLow) || !has(self.advantageClipHigh)"
        " || self.advantageClipLow <= self.advantageClipHigh",
        holds=lambda x, _: (
            x.advantage_clip_low is None
            or x.advantage_clip_high is None
            or x.advantage_clip_low <= x.advantage_clip_high
        ),
        message="advantageClipLow {self.advantageClipLow} is above advantageClipHigh "
        "{self.advantageClipHigh}: swap them",
    ),
    Rule(
        id="V-16",
        statement="Token advantages only on the gym path.",
        field=".algorithm.grpo",
        cel="GYM || !(has(self.algorithm.grpo) && (has(self.algorithm.grpo.invalidToolCallAdvantage)"
        " || has(self.algorithm.grpo.malformedThinkingAdvantage)))",
        holds=lambda s, d: (
            d.is_gym
            or s.algorithm.grpo is None
            or (
                s.algorithm.grpo.invalid_tool_call_advantage is None
                and s.algorithm.grpo.malformed_thinking_advantage is None
            )
        ),
        message="invalidToolCallAdvantage and malformedThinkingAdvantage work on the gym path only: "
        "remove them, or use environment.nemoGym",
    ),
    Rule(
        id="V-17",
        statement="One turn on the gym path.",
        field=".algorithm",
        cel="!GYM || (self.algorithm.?ppo.?maxRolloutTurns.orValue(1) == 1"
        " && self.algorithm.?grpo.?maxRolloutTurns.orValue(1) == 1)",
        holds=lambda s, d: (
            not d.is_gym
            or all(
                block is None or block.max_rollout_turns == 1 for block in (s.algorithm.grpo, s.algorithm.ppo)
            )
        ),
        message="maxRolloutTurns must be 1 with environment.nemoGym, whose services drive their own turns: "
        "remove it and set the turns there",
    ),
)
