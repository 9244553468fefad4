"""How long things take: the language of durations, and the numbers drawn from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from asyncrl_runtime.app.simulate.words import LARGEST, OptionInvalid, Phrase, as_number, read_phrase

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

Z99 = 2.3263478740408408
"""The 0.99 quantile of the normal distribution."""

CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Distribution:
    """Durations in seconds."""

    text: str
    """As it was asked for."""

    draw: Draw
    """Independent values, [shape] float64."""


def _constant(phrase: Phrase) -> Draw:
    seconds = phrase.number("seconds")
    return lambda rng, shape: np.full(shape, seconds)


def _lognormal(phrase: Phrase) -> Draw:
    if phrase.has("mean") and not phrase.has("median"):
        mean, sigma = phrase.number("mean", above=0), phrase.number("sigma")
        mu = math.log(mean) - sigma * sigma / 2
    else:
        median = phrase.number("median", above=0)
        mu = math.log(median)
        if phrase.has("sigma"):
            sigma = phrase.number("sigma")
        else:
            sigma = math.log(phrase.number("p99", least=median) / median) / Z99
    return lambda rng, shape: rng.lognormal(mu, sigma, shape)


def _exponential(phrase: Phrase) -> Draw:
    mean = phrase.number("mean", above=0)
    return lambda rng, shape: rng.exponential(mean, shape)


def _pareto(phrase: Phrase) -> Draw:
    low, alpha = phrase.number("min", above=0), phrase.number("alpha", above=1)
    return lambda rng, shape: low * (1 + rng.pareto(alpha, shape))


def _bimodal(phrase: Phrase) -> Draw:
    short = phrase.number("short")
    long, share = phrase.number("long", least=short), phrase.number("share", most=1)
    return lambda rng, shape: np.where(rng.random(shape) < share, long, short)


def _uniform(phrase: Phrase) -> Draw:
    low = phrase.number("min")
    high = phrase.number("max", least=low)
    return lambda rng, shape: rng.uniform(low, high, shape)


WORDS: dict[str, tuple[Callable[[Phrase], Draw], str]] = {
    "constant": (_constant, "constant:10"),
    "lognormal": (
        _lognormal,
        "lognormal:median=8,p99=60, lognormal:median=8,sigma=0.9 or lognormal:mean=11,sigma=0.9",
    ),
    "exponential": (_exponential, "exponential:mean=10"),
    "pareto": (_pareto, "pareto:min=5,alpha=1.5 (alpha above 1)"),
    "bimodal": (_bimodal, "bimodal:short=5,long=60,share=0.1 (share of the long ones)"),
    "uniform": (_uniform, "uniform:min=5,max=15"),
}
TRACE = "trace:FILE (one number of seconds a line)"


def read_duration(option: str, text: str) -> Distribution:
    """Parse a duration. Raises OptionInvalid."""
    stripped = text.strip()
    word, _, rest = stripped.partition(":")
    if word == "trace":
        return Distribution(text, _trace(option, text, rest))
    if as_number(stripped) is not None:
        word, rest = "constant", stripped
    if word == "constant" and "=" not in rest:
        stripped = f"constant:seconds={rest}"
    usages = {name: usage for name, (_, usage) in WORDS.items()}
    phrase = read_phrase(option, stripped, {**usages, "trace": TRACE}, shown=text)
    draw = WORDS[phrase.word][0](phrase)
    phrase.done()
    return Distribution(text, draw)


def _trace(option: str, text: str, name: str) -> Draw:
    """Values of a file, drawn with replacement."""
    if not name:
        raise OptionInvalid(option, text, f"it names no file; write {TRACE}")
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionInvalid(option, text, f"{name} cannot be read: {error}") from error
    seconds = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        value = as_number(line)
        if value is None or not 0 <= value <= LARGEST:
            bounds = f"each line is one number of seconds, from 0 to {LARGEST:g}"
            problem = f"{name}:{number} is {line.strip()!r}; {bounds}"
            raise OptionInvalid(option, text, problem)
        seconds.append(value)
    if not seconds:
        raise OptionInvalid(option, text, f"{name} holds no number; write one number of seconds a line")
    values = np.array(seconds)
    return lambda rng, shape: rng.choice(values, shape)


@dataclass(slots=True)
class Series:
    """Durations by index: the same index gives the same value, whatever was asked before."""

    distribution: Distribution
    seed: tuple[int, ...]
    _chunks: dict[int, list[float]] = field(default_factory=dict, init=False)

    def __call__(self, index: int) -> float:
        """Seconds of one index, from 0."""
        number = index // CHUNK
        if number not in self._chunks:
            rng = np.random.default_rng((*self.seed, number))
            self._chunks = {number: self.distribution.draw(rng, (CHUNK,)).tolist()}
        return self._chunks[number][index % CHUNK]
