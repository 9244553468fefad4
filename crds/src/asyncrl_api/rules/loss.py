"""Rules about loss, teachers and critic: V-18 to V-33."""

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_api.rules.table import Rule


def _cispo_stands_alone(s: JobSpec, _: Derived) -> bool:
    loss = s.loss
    excluded = (loss.disable_ppo_ratio, loss.force_on_policy_ratio, loss.sequence_level_importance_ratios)
    return not loss.use_cispo or (loss.token_level_loss and not any(excluded) and loss.ratio_clip_c is None)


def _truncates(s: JobSpec) -> bool:
    loss = s.loss
    return loss.truncated_importance_sampling_type is not None or _bounds(s)


def _bounds(s: JobSpec) -> bool:
    loss = s.loss
    limits = (loss.truncated_importance_sampling_ratio, loss.truncated_importance_sampling_ratio_min)
    return any(limit is not None for limit in limits)


def _truncation_has_its_bounds(s: JobSpec, _: Derived) -> bool:
    kind = s.loss.truncated_importance_sampling_type
    high = s.loss.truncated_importance_sampling_ratio
    low = s.loss.truncated_importance_sampling_ratio_min
    if kind is None:
        return True
    return high is not None and (low <= high if low is not None else kind == "tis")


def _critic_context(s: JobSpec) -> int:
    own = s.value.parallelism.context if s.value and s.value.parallelism else None
    return s.training.parallelism.context if own is None else own


def _critic_switch(s: JobSpec, block: str) -> bool:
    own = getattr(s.value, block)
    return getattr(s.training, block).enabled if own is None or own.enabled is None else own.enabled


def _critic_packs_if_it_splits(s: JobSpec, _: Derived) -> bool:
    return s.value is None or _critic_context(s) == 1 or _critic_switch(s, "sequence_packing")


def _one_way_to_batch(s: JobSpec, _: Derived) -> bool:
    policy = s.training.sequence_packing.enabled and s.training.dynamic_batching.enabled
    critic = (
        s.value is not None
        and _critic_switch(s, "sequence_packing")
        and _critic_switch(s, "dynamic_batching")
    )
    return not policy and not critic


LOSS_RULES = (
    Rule(
        id="V-18",
        statement="Sequence-level ratios exclude the token-level loss.",
        field=".loss.tokenLevelLoss",
        cel="!(self.loss.sequenceLevelImportanceRatios && self.loss.tokenLevelLoss)",
        holds=lambda s, _: not (s.loss.sequence_level_importance_ratios and s.loss.token_level_loss),
        message="sequenceLevelImportanceRatios goes with a sequence-level loss: set tokenLevelLoss to false",
    ),
    Rule(
        id="V-19",
        statement="What CISPO excludes and needs.",
        field=".loss.useCispo",
        cel="!self.loss.useCispo || (self.loss.tokenLevelLoss && !self.loss.disablePpoRatio"
        " && !self.loss.forceOnPolicyRatio && !self.loss.sequenceLevelImportanceRatios"
        " && !has(self.loss.ratioClipC))",
        holds=_cispo_stands_alone,
        message="useCispo needs tokenLevelLoss, and excludes disablePpoRatio, forceOnPolicyRatio, "
        "sequenceLevelImportanceRatios and ratioClipC: reset these",
    ),
    Rule(
        id="V-20",
        statement="Truncation needs the correction.",
        field=".loss.truncatedImportanceSamplingType",
        cel="CORR || !(has(self.loss.truncatedImportanceSamplingType)"
        " || has(self.loss.truncatedImportanceSamplingRatio)"
        " || has(self.loss.truncatedImportanceSamplingRatioMin))",
        holds=lambda s, d: d.corrects or not _truncates(s),
        message="loss.truncatedImportanceSampling… bounds the weights of a correction that is off: "
        "set loss.useImportanceSamplingCorrection to true, or remove type and bounds",
    ),
    Rule(
        id="V-21",
        statement="Bounds need a type.",
        field=".loss.truncatedImportanceSamplingType",
        cel="has(self.loss.truncatedImportanceSamplingType)"
        " || !(has(self.loss.truncatedImportanceSamplingRatio)"
        " || has(self.loss.truncatedImportanceSamplingRatioMin))",
        holds=lambda s, _: s.loss.truncated_importance_sampling_type is not None or not _bounds(s),
        message="a bound on correction weights is set without truncatedImportanceSamplingType, which says "
        "what happens beyond it: set tis, icepop or seq-mask-tis, or remove the bound",
    ),
    Rule(
        id="V-22",
        statement="Truncation needs its bounds, in order.",
        field=".loss.truncatedImportanceSamplingRatio",
        cel="!has(self.loss.truncatedImportanceSamplingType)"
        " || (has(self.loss.truncatedImportanceSamplingRatio)"
        " && (self.loss.truncatedImportanceSamplingType == 'tis'"
        " || has(self.loss.truncatedImportanceSamplingRatioMin))"
        " && (!has(self.loss.truncatedImportanceSamplingRatioMin)"
        " || self.loss.truncatedImportanceSamplingRatioMin <= self.loss.truncatedImportanceSamplingRatio))",
        holds=_truncation_has_its_bounds,
        message="truncatedImportanceSamplingType {self.loss.truncatedImportanceSamplingType} needs "
        "truncatedImportanceSamplingRatio, {lower} not above it: set them",
        values={
            "lower": (
                "self.loss.truncatedImportanceSamplingType == 'tis' ? 'and a lower bound, if any,'"
                " : 'and truncatedImportanceSamplingRatioMin'",
                lambda s, _: (
                    "and a lower bound, if any,"
                    if s.loss.truncated_importance_sampling_type == "tis"
                    else "and truncatedImportanceSamplingRatioMin"
                ),
            )
        },
    ),
    Rule(
        id="V-23",
        statement="`seq-mask-tis` excludes sequence-level ratios.",
        field=".loss.truncatedImportanceSamplingType",
        cel="!(self.loss.?truncatedImportanceSamplingType.orValue('') == 'seq-mask-tis'"
        " && self.loss.sequenceLevelImportanceRatios)",
        holds=lambda s, _: (
            not (
                s.loss.truncated_importance_sampling_type == "seq-mask-tis"
                and s.loss.sequence_level_importance_ratios
            )
        ),
        message="truncatedImportanceSamplingType seq-mask-tis excludes sequenceLevelImportanceRatios: "
        "use icepop, or turn them off",
    ),
    Rule(
        id="V-24",
        statement="`ready_first` needs the correction; no opt-out.",
        field=".loss.useImportanceSamplingCorrection",
        cel="MODE != 'ready_first' || CORR",
        holds=lambda s, d: d.sampler != "ready_first" or d.corrects,
        message="sampler ready_first trains on groups of any age and cannot do without the correction: "
        "set loss.useImportanceSamplingCorrection to true or leave it out",
    ),
    Rule(
        id="V-25",
        statement="`ready_first` excludes a forced ratio.",
        field=".loss.forceOnPolicyRatio",
        cel="MODE != 'ready_first' || !self.loss.forceOnPolicyRatio",
        holds=lambda s, d: d.sampler != "ready_first" or not s.loss.force_on_policy_ratio,
        message="sampler ready_first needs the log-probs of the previous policy, which "
        "loss.forceOnPolicyRatio skips: set it to false",
    ),
    Rule(
        id="V-26",
        statement="`opd` and KL in the reward need previous log-probs.",
        field=".loss.forceOnPolicyRatio",
        cel="!NOPREV || !(EST == 'opd' || (self.loss.useKlInReward && PENALTY > 0.0))",
        holds=lambda s, d: (
            not d.skips_previous_logprobs
            or not (d.estimator == "opd" or (s.loss.use_kl_in_reward and d.kl_penalty > 0))
        ),
        message="{asker} needs the log-probs of the previous policy, which loss.forceOnPolicyRatio skips: "
        "set it to false, or set seqLogprobErrorThreshold",
        values={
            "asker": (
                "EST == 'opd' ? 'estimator opd' : 'loss.useKlInReward'",
                lambda s, d: "estimator opd" if d.estimator == "opd" else "loss.useKlInReward",
            )
        },
    ),
    Rule(
        id="V-27",
        statement="`opd` on the gym path, with text.",
        field=".onPolicyDistillation",
        cel="EST != 'opd' || (GYM && !self.model.isVlm)",
        holds=lambda s, d: d.estimator != "opd" or (d.is_gym and not s.model.is_vlm),
        message="estimator opd picks teachers by agent and needs environment.nemoGym and a text model: "
        "{fix}, or another estimator",
        values={
            "fix": (
                "GYM ? 'set model.isVlm to false' : 'use environment.nemoGym'",
                lambda s, d: "set model.isVlm to false" if d.is_gym else "use environment.nemoGym",
            )
        },
    ),
    Rule(
        id="V-28",
        statement="`onPolicyDistillation` exactly with `opd`.",
        field=".onPolicyDistillation",
        cel="(EST == 'opd') == has(self.onPolicyDistillation)",
        holds=lambda s, d: (d.estimator == "opd") == (s.on_policy_distillation is not None),
        message="onPolicyDistillation and estimator opd go together: {fix}",
        values={
            "fix": (
                "EST == 'opd' ? 'name the teachers in onPolicyDistillation'"
                " : 'set algorithm.grpo.advEstimator.name to opd, or remove onPolicyDistillation'",
                lambda s, d: (
                    "name the teachers in onPolicyDistillation"
                    if d.estimator == "opd"
                    else "set algorithm.grpo.advEstimator.name to opd, or remove onPolicyDistillation"
                ),
            )
        },
    ),
    Rule(
        id="V-29",
        statement="The default teacher is in the map, unless matching is strict.",
        where="onPolicyDistillation",
        field=".defaultTeacherAlias",
        cel="self.strictAgentNameMatch"
        " || (has(self.defaultTeacherAlias) && self.defaultTeacherAlias in self.teacherModelByAgentName)",
        holds=lambda x, _: (
            x.strict_agent_name_match or x.default_teacher_alias in x.teacher_model_by_agent_name
        ),
        message="defaultTeacherAlias {self.?defaultTeacherAlias.orValue('(unset)')} is not a key of "
        "teacherModelByAgentName: name one of its keys, or set strictAgentNameMatch",
    ),
    Rule(
        id="V-30",
        statement="Critic warm-up and constant checkpoint structure exclude each other.",
        field=".training.ckptAssumeConstantStructure",
        cel="P == 0 || !self.training.ckptAssumeConstantStructure || !SAVING"
        " || !self.checkpointing.saveOptimizer",
        holds=lambda s, d: (
            d.critic_warmup_steps == 0
            or not s.training.ckpt_assume_constant_structure
            or not (d.saves and s.checkpointing.save_optimizer)
        ),
        message="training.ckptAssumeConstantStructure cannot hold when policyTrainingStartStep is {P}, since "
        "optimizer state appears then: set it to false, set policyTrainingStartStep to 0, or set "
        "checkpointing.saveOptimizer to false",
    ),
    Rule(
        id="V-31",
        statement="PPO offloads the optimizer.",
        field=".training.offloadOptimizerForLogprob",
        cel="!PPO || self.training.?offloadOptimizerForLogprob.orValue(true)",
        holds=lambda s, d: not d.is_ppo or s.training.offload_optimizer_for_logprob is not False,
        message="training.offloadOptimizerForLogprob is false, and the critic needs that GPU memory: "
        "set it to true or leave it out",
    ),
    Rule(
        id="V-32",
        statement="A critic with context parallelism packs sequences.",
        field=".value",
        cel="!has(self.value)"
        " || self.value.?parallelism.?context.orValue(self.training.parallelism.context) == 1"
        " || self.value.?sequencePacking.?enabled.orValue(self.training.sequencePacking.enabled)",
        holds=_critic_packs_if_it_splits,
        message="the critic splits sequences over {context} ranks and must pack them: "
        "set value.sequencePacking.enabled, or value.parallelism.context to 1",
        values={
            "context": (
                "self.value.?parallelism.?context.orValue(self.training.parallelism.context)",
                lambda s, _: _critic_context(s),
            )
        },
    ),
    Rule(
        id="V-33",
        statement="Packing and dynamic batching exclude each other.",
        field=".training.dynamicBatching.enabled",
        cel="!(self.training.sequencePacking.enabled && self.training.dynamicBatching.enabled)"
        " && !(has(self.value)"
        " && self.value.?sequencePacking.?enabled.orValue(self.training.sequencePacking.enabled)"
        " && self.value.?dynamicBatching.?enabled.orValue(self.training.dynamicBatching.enabled))",
        holds=_one_way_to_batch,
        message="sequencePacking and dynamicBatching are both on for the same model, and both decide how "
        "sequences form batches: keep one",
    ),
)
