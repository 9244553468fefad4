"""Rules about model, data, environment and validation: V-81 to V-90."""

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_api.rules.table import Rule
from asyncrl_api.spec.model import ModelInit


def _heads_divide(init: ModelInit, _: Derived) -> bool:
    heads = init.num_attention_heads
    groups = heads if init.num_key_value_heads is None else init.num_key_value_heads
    return init.hidden_size % heads == 0 and heads % groups == 0


def _exactly_one(*blocks: object) -> bool:
    return sum(block is not None for block in blocks) == 1


def _engines_get_the_stops(s: JobSpec, d: Derived) -> bool:
    sampling = s.generation.sampling
    asked = (sampling.top_k, sampling.stop_strings, sampling.stop_token_ids)
    return not d.is_gym or asked == (None, None, None)


def _stop_is_complete(s: JobSpec, _: Derived) -> bool:
    metric, threshold = s.validation.stop_at_metric, s.validation.stop_at_threshold
    several = s.validation.num_generations_per_prompt > 1
    return (metric is None) == (threshold is None) and (metric != "pass_k" or several)


INPUT_RULES = (
    Rule(
        id="V-81",
        statement="Exactly one of `name` and `init`.",
        where="model",
        cel="has(self.name) != has(self.init)",
        holds=lambda x, _: _exactly_one(x.name, x.init),
        message="model must hold exactly one of name and init, and holds {held}: "
        "name weights to start from, or give a shape",
        values={
            "held": (
                "has(self.name) ? 'both' : 'neither'",
                lambda x, _: "neither" if x.name is None else "both",
            )
        },
    ),
    Rule(
        id="V-82",
        statement="A revision belongs to a name.",
        where="model",
        field=".revision",
        cel="has(self.name) || !has(self.revision)",
        holds=lambda x, _: x.name is not None or x.revision is None,
        message="revision has no effect without name: remove it",
    ),
    Rule(
        id="V-83",
        statement="Heads divide the width, key-value heads divide the heads.",
        where="model.init",
        field=".numAttentionHeads",
        cel="self.hiddenSize % self.numAttentionHeads == 0"
        " && self.numAttentionHeads % self.?numKeyValueHeads.orValue(self.numAttentionHeads) == 0",
        holds=_heads_divide,
        message="hiddenSize {self.hiddenSize}, numAttentionHeads {self.numAttentionHeads} and "
        "numKeyValueHeads {groups} do not divide: each must be a multiple of the next",
        values={
            "groups": (
                "self.?numKeyValueHeads.orValue(self.numAttentionHeads)",
                lambda x, _: x.num_key_value_heads or x.num_attention_heads,
            )
        },
    ),
    Rule(
        id="V-84",
        statement="Exactly one kind of prompts.",
        where="data.{source,validation}",
        cel="[has(self.jsonl), has(self.hub), has(self.reasoningGym), has(self.generated)].exists_one(x, x)",
        holds=lambda x, _: _exactly_one(x.jsonl, x.hub, x.reasoning_gym, x.generated),
        message="exactly one of jsonl, hub, reasoningGym and generated must be set: keep one",
    ),
    Rule(
        id="V-85",
        statement="Exactly one kind of environment.",
        where="environment",
        cel="[has(self.arithmetic), has(self.math), has(self.reasoningGym), has(self.function),"
        " has(self.nemoGym), has(self.byTask)].exists_one(x, x)",
        holds=lambda x, _: _exactly_one(
            x.arithmetic, x.math, x.reasoning_gym, x.function, x.nemo_gym, x.by_task
        ),
        message="exactly one of arithmetic, math, reasoningGym, function, nemoGym and byTask must be set: "
        "keep one, or put several under byTask",
    ),
    Rule(
        id="V-86",
        statement="Exactly one kind per task.",
        where="environment.byTask[*]",
        cel="[has(self.arithmetic), has(self.math), has(self.reasoningGym), has(self.function)]"
        ".exists_one(x, x)",
        holds=lambda x, _: _exactly_one(x.arithmetic, x.math, x.reasoning_gym, x.function),
        message="an entry of byTask must hold exactly one of arithmetic, math, reasoningGym and function: "
        "keep one",
    ),
    Rule(
        id="V-87",
        statement="No stop settings and no top-k on the gym path.",
        field=".generation.sampling",
        cel="!GYM || !(has(self.generation.sampling.topK) || has(self.generation.sampling.stopStrings)"
        " || has(self.generation.sampling.stopTokenIds))",
        holds=_engines_get_the_stops,
        message="topK, stopStrings and stopTokenIds of generation.sampling do not reach the engines with "
        "environment.nemoGym: remove them",
    ),
    Rule(
        id="V-88",
        statement="Images need Megatron generation.",
        field=".model.isVlm",
        cel="!self.model.isVlm || self.generation.backend == 'megatron'",
        holds=lambda s, _: not s.model.is_vlm or s.generation.backend == "megatron",
        message="model.isVlm needs generation.backend megatron, and it is {self.generation.backend}: "
        "change the backend",
    ),
    Rule(
        id="V-89",
        statement="A completion fits the sequence.",
        field=".generation.sampling.maxNewTokens",
        cel="self.generation.sampling.?maxNewTokens.orValue(0) <= self.model.maxTotalSequenceLength",
        holds=lambda s, _: (s.generation.sampling.max_new_tokens or 0) <= s.model.max_total_sequence_length,
        message="generation.sampling.maxNewTokens {self.generation.sampling.?maxNewTokens.orValue(0)} "
        "exceeds model.maxTotalSequenceLength {self.model.maxTotalSequenceLength}: "
        "lower it or raise the latter",
    ),
    Rule(
        id="V-90",
        statement="Metric and threshold together; `pass_k` needs several completions.",
        field=".validation.stopAtThreshold",
        cel="has(self.validation.stopAtMetric) == has(self.validation.stopAtThreshold)"
        " && (self.validation.?stopAtMetric.orValue('') != 'pass_k'"
        " || self.validation.numGenerationsPerPrompt > 1)",
        holds=_stop_is_complete,
        message="stopAtMetric and stopAtThreshold go together, and pass_k needs numGenerationsPerPrompt "
        "above 1 (it is {self.validation.numGenerationsPerPrompt}): set what is missing",
    ),
)
