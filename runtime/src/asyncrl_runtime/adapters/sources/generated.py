"""Built-in digit tasks. A prompt is one short line that a 16-symbol tokenizer covers.

copy     4821=     4821
reverse  r4821=    1284
sort     s4821=    1248
add      48+21=    69
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from asyncrl_runtime.adapters.sources.rows import check_position, digest
from asyncrl_runtime.core.records import Prompt, PromptRef

Task = Literal["add", "copy", "reverse", "sort"]

ENCODING = 1
"""Raised when the text of a prompt changes, so that no run resumes on another text."""

MARKS: dict[str, str] = {"copy": "", "reverse": "r", "sort": "s"}
"""What stands before the digits."""

_SOLVE: dict[str, Callable[[str], str]] = {
    "copy": lambda digits: digits,
    "reverse": lambda digits: digits[::-1],
    "sort": lambda digits: "".join(sorted(digits)),
}


@dataclass(frozen=True, slots=True)
class GeneratedPrompts:
    """Prompts that are a function of seed and position: nothing is stored, nothing is read."""

    task: Task
    num_digits: int
    num_prompts: int
    seed: int
    name: str = field(init=False)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        facts = {
            "generated": self.task,
            "encoding": ENCODING,
            "num_digits": self.num_digits,
            "num_prompts": self.num_prompts,
            "seed": self.seed,
        }
        object.__setattr__(self, "name", f"generated/{self.task}")
        object.__setattr__(self, "fingerprint", digest(facts))

    def __len__(self) -> int:
        return self.num_prompts

    async def fetch(self, refs: Sequence[PromptRef]) -> list[Prompt]:
        """The prompts at these positions."""
        return [self._at(ref) for ref in refs]

    def _at(self, ref: PromptRef) -> Prompt:
        check_position(self.name, ref, self.num_prompts)
        text, answer = self._text_and_answer(ref.position)
        return Prompt(ref=ref, messages=({"role": "user", "content": text},), answer=answer, task=self.task)

    def _text_and_answer(self, position: int) -> tuple[str, str]:
        if self.task == "add":
            low = 10 ** (self.num_digits - 1) if self.num_digits > 1 else 0
            span = 10**self.num_digits - low
            left, right = (low + self._draw(position, part) % span for part in "ab")
            return f"{left}+{right}=", str(left + right)
        digits = f"{self._draw(position, 'a') % 10**self.num_digits:0{self.num_digits}d}"
        return f"{MARKS[self.task]}{digits}=", _SOLVE[self.task](digits)

    def _draw(self, position: int, part: str) -> int:
        """A number below 2**256, the same on every machine and Python version."""
        key = f"{self.seed}/{self.task}/{self.num_digits}/{position}/{part}"
        return int.from_bytes(hashlib.sha256(key.encode()).digest(), "big")
