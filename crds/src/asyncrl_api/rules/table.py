"""How a rule is written down, and what its CEL and its Python side share."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from asyncrl_api.job import AsyncRLJob

MACROS: dict[str, tuple[str, str]] = {
    "PPO": ("is_ppo", "has(self.algorithm.ppo)"),
    "N": (
        "num_prompts_per_step",
        "self.algorithm.?ppo.?numPromptsPerStep.orValue(self.algorithm.?grpo.?numPromptsPerStep.orValue(1))",
    ),
    "G": (
        "num_generations_per_prompt",
        "self.algorithm.?ppo.?numGenerationsPerPrompt"
        ".orValue(self.algorithm.?grpo.?numGenerationsPerPrompt.orValue(1))",
    ),
    "P": ("critic_warmup_steps", "self.algorithm.?ppo.?policyTrainingStartStep.orValue(0)"),
    "UPDATES": (
        "num_policy_updates",
        "(PPO ? self.algorithm.?ppo.?ppoEpochs.orValue(1) : "
        "self.algorithm.?grpo.?policyEpochsPerStep.orValue(1)"
        " * self.algorithm.?grpo.?policyMinibatchesPerStep.orValue(1))",
    ),
    "EST": (
        "estimator",
        "self.algorithm.?ppo.?advEstimator.?name"
        ".orValue(self.algorithm.?grpo.?advEstimator.?name.orValue(''))",
    ),
    "SKIPREF": (
        "skips_reference_logprobs",
        "self.algorithm.?ppo.?skipReferencePolicyLogprobsCalculation"
        ".orValue(self.algorithm.?grpo.?skipReferencePolicyLogprobsCalculation.orValue(false))",
    ),
    "MODE": ("sampler", "self.asyncRL.sampler.name"),
    "L": ("lookahead", "self.asyncRL.sampler.?maxLookaheadVersions.orValue(1)"),
    "W": ("warmup_lookahead", "self.asyncRL.sampler.?warmupLookaheadVersions.orValue(0)"),
    "S": ("staleness", "self.asyncRL.sampler.?maxStalenessVersions.orValue(1)"),
    "CAP": (
        "required_capacity",
        "(MODE == 'in_order' ? N * ([L, W].max() + 1) :"
        " MODE in ['weight_fifo', 'ready_first'] ? N * (S + 1) : 0)",
    ),
    "BUF": (
        "buffer_size",
        "(self.asyncRL.?maxBufferedRollouts.orValue([64, MODE == 'windowed' ? N * (S + 2) :"
        " MODE == 'custom' ? N * 2 : CAP].max()))",
    ),
    "WIDE": (
        "needs_whole_batch",
        "(EST in ['gdpo', 'reinforce_plus_plus'] ||"
        " (EST == 'opd' && self.?onPolicyDistillation.?subtractGlobalBaseline.orValue(false)))",
    ),
    "ONECHUNK": (
        "needs_one_chunk",
        "(PPO || self.generation.colocated || UPDATES > 1 || self.loss.positiveExampleNllWeight > 0.0)",
    ),
    "MIN": (
        "min_groups",
        "(self.asyncRL.?minGroupsForStreamingTrain.orValue(ONECHUNK || WIDE ? N : [N, 32].min()))",
    ),
    "STALE": (
        "can_be_stale",
        "(MODE == 'custom' || (MODE == 'in_order' ? L > 0 || W > 0 : S > 0))",
    ),
    "CORR": (
        "corrects",
        "(self.loss.?useImportanceSamplingCorrection.orValue(MODE == 'ready_first' || STALE))",
    ),
    "PENALTY": ("kl_penalty", "(self.loss.?referencePolicyKlPenalty.orValue(SKIPREF ? 0.0 : 0.01))"),
    "NOPREV": (
        "skips_previous_logprobs",
        "(self.loss.forceOnPolicyRatio"
        " && !(has(self.algorithm.grpo) && has(self.algorithm.grpo.seqLogprobErrorThreshold))"
        " && !(has(self.algorithm.ppo) && has(self.algorithm.ppo.seqLogprobErrorThreshold)))",
    ),
    "GYM": ("is_gym", "has(self.environment.nemoGym)"),
    "DROPS": (
        "drop_budget",
        "(self.asyncRL.rolloutFailure.maxSkippedPrompts"
        " + self.asyncRL.rolloutFailure.maxConsecutiveDroppedPrompts)",
    ),
    "RANKS": ("num_training_ranks", "(self.training.hosts * [1, self.training.gpusPerHost].max())"),
    "SAVING": ("saves", "self.checkpointing.enabled"),
    "SNAPS": ("takes_snapshots", "has(self.rolloutCheckpointing.snapshotAttemptIntervalSeconds)"),
}
"""Word in CEL: (attribute of `Derived`, CEL for node `spec`)."""

WHOLE_OBJECT = "/"
_WORD = re.compile(rf"(?<![\w.'])({'|'.join(MACROS)})(?![\w'])")
_HOLE = re.compile(r"\{([^{}]+)\}")
_PATH = re.compile(r"(\.\??\w+)+?(\.orValue\((?P<default>.*)\))?")

Check = Callable[[Any, Any], bool]
Value = tuple[str, Callable[[Any, Any], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule about one object, in CEL for the API server and in Python for everybody else.

    `holds` and the functions of `values` take (node, derived facts); those of an update rule take
    (new node, old node). A hole of `message` is a macro, a CEL path below `self`, or a key of `values`.
    """

    id: str
    statement: str
    cel: str
    message: str
    """What is wrong, a colon, the way out."""

    holds: Check
    cluster: bool = False
    """Only a cluster asks for it."""

    where: str = ""
    """Node below `spec` that the rule sits on; `/` is the whole object."""

    field: str = ""
    """Field of the node to report it at, with a leading dot."""

    about: str = ""
    """Dotpath to report it at outside a cluster, where CEL cannot name the field."""

    values: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    """Holes of the message that are neither macros nor paths: (CEL, Python)."""

    update: bool = False
    """The rule is about a change."""

    def cel_rule(self) -> str:
        """CEL with its macros written out."""
        return expand(self.cel)

    def cel_message(self) -> str | None:
        """The message as a CEL expression; None if it has no holes."""
        holes = _HOLE.findall(self.message)
        if not holes:
            return None
        text = _HOLE.sub("%s", f"[{self.id}] {self.message}").replace("'", "\\'")
        arguments = (expand(self.values[hole][0] if hole in self.values else hole) for hole in holes)
        return f"'{text}'.format([{', '.join(arguments)}])"

    def text(self, node: object, other: object) -> str:
        """The message with its values, as the API server would write it."""
        return _HOLE.sub(lambda hole: spell(self._value(hole[1], node, other)), self.message)

    def _value(self, hole: str, node: object, other: object) -> object:
        if hole in self.values:
            return self.values[hole][1](node, other)
        if hole in MACROS:
            return getattr(other, MACROS[hole][0])
        return look_up(node, hole.removeprefix("self"))


def expand(cel: str) -> str:
    """Write the macros of a CEL text out."""
    while _WORD.search(cel):
        cel = _WORD.sub(lambda word: MACROS[word[1]][1], cel)
    return cel


def look_up(node: object, path: str) -> object:
    """Value at a CEL path such as `.loss.?ratioClipC.orValue(0.0)`."""
    found = _PATH.fullmatch(path)
    if found is None:
        raise ValueError(f"{path} is not a path of a message")
    steps = path.split(".orValue(")[0].replace("?", "").split(".")[1:]
    for step in steps:
        node = getattr(node, snake(step))
    return found["default"].strip("'") if node is None and found["default"] is not None else node


def snake(key: str) -> str:
    """Attribute of a key of a manifest."""
    return "async_rl" if key == "asyncRL" else re.sub(r"[A-Z]", lambda upper: f"_{upper[0].lower()}", key)


def spell(value: object) -> str:
    """Write a value as CEL's `%s` does: 30.0 as 30, True as true."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{Decimal(repr(value)):f}".removesuffix(".0") if isinstance(value, float) else str(value)


def nodes(job: AsyncRLJob, where: str) -> Iterator[tuple[str, Any]]:
    """Give (path, node) of each place that a rule sits on and the job has."""
    if where == WHOLE_OBJECT:
        yield "", job
        return
    yield from _descend(job.spec, "spec", [step for step in where.split(".") if step])


def _descend(node: Any, path: str, steps: list[str]) -> Iterator[tuple[str, Any]]:
    if node is None:
        return
    if not steps:
        yield path, node
        return
    step, rest = steps[0], steps[1:]
    for key in step.strip("{}").split(",") if step.startswith("{") else [step]:
        name = key.removesuffix("[*]").removesuffix("[]")
        child, below = getattr(node, snake(name)), f"{path}.{name}"
        if child is None or name == key:
            yield from _descend(child, below, rest)
            continue
        entries = child.items() if key.endswith("[*]") else enumerate(child)
        for index, entry in entries:
            yield from _descend(
                entry, f"{below}[{index}]" if key.endswith("[]") else f"{below}.{index}", rest
            )
