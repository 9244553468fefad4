"""What goes wrong in a simulated run: the language of `--fail`.

A new fault is one word in `WORDS`, and a field of `Scenario` that an engine or the fault pump reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from asyncrl_runtime.app.simulate.words import OptionInvalid, Phrase, read_phrase

OPTION = "--fail"
ShardAction = Literal["die", "freeze", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFault:
    """Something that happens to a shard, once or again and again."""

    action: ShardAction
    shard: int | None = None
    """None: any shard that lives."""

    at_seconds: float = 0.0
    every_seconds: float | None = None
    """Mean time between two of them (exponential), in place of `at_seconds`."""

    for_seconds: float = math.inf
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that goes wrong."""

    texts: tuple[str, ...] = ()
    infra_probability: float = 0.0
    """That a completion fails at its end by fault of the machinery."""

    data_probability: float = 0.0
    """That it fails at its end by its own fault."""

    hang_probability: float = 0.0
    """That it never ends."""

    train_step_probability: float = 0.0
    """That a train step fails before its update."""

    refit_probability: float = 0.0
    """That a weight transfer is cut off at its end."""

    shards: tuple[ShardFault, ...] = ()
    restart_seconds: float = 60.0
    """Of the start of a new engine, where the job restarts dead shards."""

    @property
    def touches_shards(self) -> bool:
        """Single shards matter, so requests are served one by one."""
        return bool(self.shards) or self.refit_probability > 0

    @property
    def longest_fault_seconds(self) -> float:
        """How long a shard that comes back is away at most."""
        spans = [fault.for_seconds for fault in self.shards if fault.for_seconds < math.inf]
        return max([self.restart_seconds if self.shards else 0.0, *spans])

    @property
    def slowest_factor(self) -> float:
        """By which a shard may take longer."""
        return math.prod(max(1.0, fault.factor) for fault in self.shards)

    @property
    def is_calm(self) -> bool:
        """Nothing goes wrong."""
        return not self.texts

    @property
    def touches_rollouts(self) -> bool:
        """Some completions fail or hang."""
        return self.infra_probability + self.data_probability + self.hang_probability > 0


def _rollout_error(phrase: Phrase, scenario: Scenario) -> Scenario:
    probability = phrase.number("probability", most=1)
    if phrase.choice("kind", ("infra", "data")) == "infra":
        return replace(scenario, infra_probability=_either(scenario.infra_probability, probability))
    return replace(scenario, data_probability=_either(scenario.data_probability, probability))


def _hang(phrase: Phrase, scenario: Scenario) -> Scenario:
    probability = _either(scenario.hang_probability, phrase.number("probability", most=1))
    return replace(scenario, hang_probability=probability)


def _train_step(phrase: Phrase, scenario: Scenario) -> Scenario:
    probability = _either(scenario.train_step_probability, phrase.number("probability", most=1))
    return replace(scenario, train_step_probability=probability)


def _refit(phrase: Phrase, scenario: Scenario) -> Scenario:
    probability = _either(scenario.refit_probability, phrase.number("probability", most=1))
    return replace(scenario, refit_probability=probability)


def _death(phrase: Phrase, scenario: Scenario) -> Scenario:
    if phrase.has("restart"):
        scenario = replace(scenario, restart_seconds=phrase.number("restart"))
    return _with_shard(scenario, _shard_fault(phrase, "die"))


def _freeze(phrase: Phrase, scenario: Scenario) -> Scenario:
    seconds = phrase.number("for", above=0)
    return _with_shard(scenario, replace(_shard_fault(phrase, "freeze"), for_seconds=seconds))


def _slow(phrase: Phrase, scenario: Scenario) -> Scenario:
    factor = phrase.number("factor", above=0)
    seconds = phrase.number("for", above=0) if phrase.has("for") else math.inf
    return _with_shard(scenario, replace(_shard_fault(phrase, "slow"), for_seconds=seconds, factor=factor))


def _shard_fault(phrase: Phrase, action: ShardAction) -> ShardFault:
    """One time at a shard, or a mean time between any two."""
    if phrase.has("every"):
        return ShardFault(action=action, every_seconds=phrase.number("every", above=0))
    shard = phrase.number("shard")
    if shard != int(shard):
        raise phrase.invalid(f"shard is {shard:g}; shards are counted 0, 1, 2, …")
    at = phrase.number("at") if phrase.has("at") else 0.0
    return ShardFault(action=action, shard=int(shard), at_seconds=at)


def _with_shard(scenario: Scenario, fault: ShardFault) -> Scenario:
    return replace(scenario, shards=(*scenario.shards, fault))


def _either(first: float, second: float) -> float:
    return 1 - (1 - first) * (1 - second)


WORDS: dict[str, tuple[Callable[[Phrase, Scenario], Scenario], str, str]] = {
    "rollout-error": (
        _rollout_error,
        "rollout-error:probability=0.01 or rollout-error:probability=0.01,kind=data",
        "a completion fails when it would end",
    ),
    "hang": (_hang, "hang:probability=0.001", "a completion never ends"),
    "shard-death": (
        _death,
        "shard-death:shard=0,at=600 or shard-death:every=3600, with restart=60 for the start of a new engine",
        "a shard ends, and its requests fail (spec.asyncRL.generationFleetHealth.onDeadShard)",
    ),
    "shard-freeze": (
        _freeze,
        "shard-freeze:shard=0,at=600,for=120 or shard-freeze:every=3600,for=120",
        "a shard stands still for a time, weight transfers to it too",
    ),
    "shard-slow": (
        _slow,
        "shard-slow:shard=0,factor=3, with at=600 and for=120 if not always",
        "a shard takes longer, by a factor",
    ),
    "refit-error": (
        _refit,
        "refit-error:probability=0.01",
        "a weight transfer is cut off at its end (spec.asyncRL.refit.maxRetries)",
    ),
    "train-step-error": (
        _train_step,
        "train-step-error:probability=0.01",
        "a train step fails before its update (spec.asyncRL.trainStepRetries)",
    ),
}
"""Word → how it is read, its forms, what it does."""


def read_faults(texts: Sequence[str]) -> Scenario:
    """Parse every `--fail`. Raises OptionInvalid."""
    scenario = Scenario()
    usages = {word: usage for word, (_, usage, _) in WORDS.items()}
    for text in texts:
        phrase = read_phrase(OPTION, text, usages)
        scenario = WORDS[phrase.word][0](phrase, scenario)
        phrase.done()
    return replace(scenario, texts=tuple(texts))


def check_shards(scenario: Scenario, shards: int) -> None:
    """Raise OptionInvalid if a fault names a shard that the job does not have."""
    for fault in scenario.shards:
        if fault.shard is not None and fault.shard >= shards:
            last = f"0 to {shards - 1}" if shards > 1 else "only 0"
            raise OptionInvalid(
                OPTION, f"…shard={fault.shard}", f"the job has {shards} shard(s), {last}; name one of them"
            )
