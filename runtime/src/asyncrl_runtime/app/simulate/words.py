"""The small language of `--generation-seconds` and `--fail`: `word:key=value,key=value`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LARGEST = 1e12
"""Of any number: sums of larger ones lose their seconds."""


@dataclass(eq=False)
class OptionInvalid(Exception):
    """A value of the command line cannot be used."""

    option: str
    text: str
    problem: str

    def __str__(self) -> str:
        return f"{self.option} {self.text}: {self.problem}"


@dataclass(slots=True)
class Phrase:
    """One parsed value; its keys are taken out one by one, and what is left is unknown."""

    option: str
    text: str
    word: str
    values: dict[str, str] = field(default_factory=dict)
    usage: str = ""
    """The forms that the word has, for messages."""

    def number(
        self, key: str, *, above: float | None = None, least: float = 0.0, most: float = math.inf
    ) -> float:
        """A finite number within bounds. Raises OptionInvalid."""
        text = self.values.pop(key, None)
        if text is None:
            raise self.invalid(f"{self.word} needs {key}; write {self.usage}")
        value = as_number(text)
        if value is None:
            raise self.invalid(f"{key} is {text!r}, which is no number; write {self.usage}")
        if above is not None and value <= above:
            raise self.invalid(f"{key} is {text} and must be above {above:g}")
        if not least <= value <= most:
            bounds = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise self.invalid(f"{key} is {text} and must be {bounds}")
        if value > LARGEST:
            raise self.invalid(f"{key} is {text} and must be at most {LARGEST:g}")
        return value

    def has(self, *keys: str) -> bool:
        """Whether all of these were given."""
        return all(key in self.values for key in keys)

    def choice(self, key: str, among: Sequence[str]) -> str:
        """One of a few words; the first is the default. Raises OptionInvalid."""
        value = self.values.pop(key, among[0])
        if value not in among:
            raise self.invalid(f"{key} is {value!r}; it is one of {', '.join(among)}")
        return value

    def done(self) -> None:
        """Raise OptionInvalid if a key was given that nobody asked for."""
        if self.values:
            unknown = ", ".join(self.values)
            raise self.invalid(f"{self.word} has no {unknown}; write {self.usage}")

    def invalid(self, problem: str) -> OptionInvalid:
        """The error that names option and value."""
        return OptionInvalid(self.option, self.text, problem)


def read_phrase(option: str, text: str, usages: Mapping[str, str], *, shown: str | None = None) -> Phrase:
    """Split a value and look its word up; messages show it as it was typed, if it was completed since.

    Raises OptionInvalid naming the words that exist.
    """
    word, _, rest = text.strip().partition(":")
    phrase = Phrase(option, text if shown is None else shown, word.strip())
    if phrase.word not in usages:
        raise phrase.invalid(f"{phrase.word!r} is no word of it; the words are {', '.join(usages)}")
    phrase.usage = usages[phrase.word]
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise phrase.invalid(f"{part!r} is not of the form key=value; write {phrase.usage}")
        if key.strip() in phrase.values:
            raise phrase.invalid(f"{key.strip()} is given twice")
        phrase.values[key.strip()] = value.strip()
    return phrase


def as_number(text: str) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
