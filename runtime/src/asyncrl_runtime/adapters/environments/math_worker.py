"""Compares a final answer with the reference as mathematics: numbers, roots, tuples, light LaTeX."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from asyncrl_runtime.adapters.environments.results import Outcome
from asyncrl_runtime.ports.environment import Episode

TOLERANCE = 1e-6
"""Relative difference below which two numbers count as equal, unless both are whole."""

MAX_EXPONENT = 64
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?%?|-?\.\d+")
_CLAIM = re.compile(r"(?:answer\s*(?:is|:|=)|####)\s*(.+)", re.IGNORECASE)
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class MathService:
    """Pays 1 for an answer equal to the reference, else 0."""

    def facts(self) -> dict[str, bool]:
        """No state between turns; nothing is awaited."""
        return {"episodic": False, "concurrent": False}

    def step(self, episode: Episode) -> Outcome:
        """Judge the last turn."""
        answer = episode.prompt.answer
        if answer is None:
            return Outcome(problem="needs an answer and has none")
        given = final_answer(episode.turns[-1].text)
        right = given is not None and same(given, final_answer(answer, whole=True) or answer)
        return Outcome({"reward": float(right)})


def final_answer(text: str, *, whole: bool = False) -> str | None:
    r"""The last \boxed{…}, else what follows "answer is" or "####", else the last number.

    `whole`: a reference, which is taken as it is where it holds neither of the first two.
    """
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    claims = _CLAIM.findall(text)
    if claims:
        return claims[-1].strip().rstrip(".")
    if whole:
        return text.strip()
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def same(given: str, wanted: str) -> bool:
    """Equal as normalised text, as numbers, or element by element."""
    left, right = normal(given), normal(wanted)
    if left == right:
        return True
    parts, wanted_parts = _elements(left), _elements(right)
    if len(wanted_parts) > 1 or len(parts) > 1:
        brackets_agree = left[:1] == right[:1] if left[:1] in "([{" and right[:1] in "([{" else True
        return (
            brackets_agree
            and len(parts) == len(wanted_parts)
            and all(same(a, b) for a, b in zip(parts, wanted_parts, strict=True))
        )
    one, other = value_of(left), value_of(right)
    if one is None or other is None:
        return False
    if all(isinstance(number, Fraction) and number.denominator == 1 for number in (one, other)):
        return one == other
    try:
        return math.isclose(float(one), float(other), rel_tol=TOLERANCE, abs_tol=TOLERANCE**2)
    except OverflowError:
        return False


def normal(text: str) -> str:
    """Plain spelling: LaTeX commands as operators, no spaces, units, dollar signs or thousands commas."""
    text = text.strip().strip("$").strip().rstrip(".")
    text = re.sub(r"\\(?:text|mathrm|textbf|mbox)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\(?:left|right|displaystyle|,|;|!|\s)", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\\frac(\d)(\d)", r"((\1)/(\2))", text)
    for _ in range(text.count("\\frac") + text.count("\\sqrt")):
        text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text)
    text = re.sub(r"\\sqrt(\d)", r"sqrt(\1)", text)
    text = text.replace("\\cdot", "*").replace("\\times", "*").replace("\\div", "/").replace("\\pi", "pi")
    text = re.sub(r"\^?\{?\\circ\}?|°|\\?%|\\\$|\$", "", text)
    text = text.replace("\u2212", "-").replace("^", "**").replace("\\{", "{").replace("\\}", "}")
    text = re.sub(r"(\d),(?=\d{3}(?!\d))", r"\1", text)
    text = re.sub(r"\s+", "", text).lower()
    return re.sub(r"^[a-z]\w?=", "", text)


def value_of(text: str) -> Fraction | float | None:
    """The number that an expression of + - * / **, sqrt and pi stands for, or None."""
    spelled = re.sub(r"(\d|\))(?=sqrt|pi|\()", r"\1*", text)
    spelled = spelled.replace("{", "(").replace("}", ")")
    if len(spelled) > 200:
        return None
    try:
        return _evaluate(ast.parse(spelled, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, TypeError, RecursionError):
        return None


def _evaluate(node: ast.AST) -> Fraction | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.Name(id="pi"):
            return math.pi
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _evaluate(operand)
        case ast.Call(func=ast.Name(id="sqrt"), args=[argument]):
            return _root(_evaluate(argument))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_evaluate(left), _evaluate(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left), _evaluate(right))
    raise ValueError("no arithmetic")


def _root(value: Fraction | float) -> Fraction | float:
    if isinstance(value, Fraction):
        above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if above * above == value.numerator and below * below == value.denominator:
            return Fraction(above, below)
    return math.sqrt(value)


def _power(base: Fraction | float, exponent: Fraction | float) -> Fraction | float:
    if abs(exponent) > MAX_EXPONENT:
        raise ValueError("the exponent is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("not a real number")
    return result


def _elements(text: str) -> list[str]:
    """Parts of a tuple, interval, set or bare list; commas inside inner brackets do not count."""
    inner = text[1:-1] if text[:1] in "([{" and text[-1:] in ")]}" and "," in text else text
    parts, depth, begin = [], 0, 0
    for position, character in enumerate(inner):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(inner[begin:position])
            begin = position + 1
    return [*parts, inner[begin:]]


def _last_boxed(text: str) -> str | None:
    begin = text.rfind("\\boxed{")
    if begin < 0:
        return None
    depth, start = 0, begin + len("\\boxed{")
    for position in range(start, len(text)):
        if text[position] == "}" and depth == 0:
            return text[start:position]
        depth += (text[position] == "{") - (text[position] == "}")
    return None
