"""As much of CEL as the rules use, worked out on plain JSON objects: the API server's side of the tests."""

import re
from dataclasses import dataclass
from functools import cache

from asyncrl_api.rules.table import spell

TOKEN = re.compile(
    r"\s*(?:(\d+\.\d+|\d+)|('(?:[^'\\]|\\.)*')|([A-Za-z_]\w*)|(\|\||&&|==|!=|<=|>=|\.\?|[-+*/%!<>?:.,()\[\]{}]))"
)
LEVELS = [["||"], ["&&"], ["==", "!=", "<=", ">=", "<", ">", "in"], ["+", "-"], ["*", "/", "%"]]


class CelError(Exception):
    """An expression has no value, such as that of a missing key."""


@dataclass
class Optional:
    value: object
    there: bool


def evaluate(text, **names):
    """Value of a CEL expression.

    Raises:
        CelError: it has none.
    """
    return compiled(text)(names)


@cache
def compiled(text):
    return Parser(text).parse()


class Parser:
    """Reads an expression into a function of the names in it."""

    def __init__(self, text):
        self.tokens = [next(part for part in found if part) for found in TOKEN.findall(text)]
        assert "".join(self.tokens) == re.sub(r"\s+(?=(?:[^']*'[^']*')*[^']*$)", "", text)

    def parse(self):
        node = self.conditional()
        assert not self.tokens, self.tokens
        return node

    def take(self, *wanted):
        if self.tokens and self.tokens[0] in wanted:
            return self.tokens.pop(0)
        return None

    def expect(self, wanted):
        assert self.take(wanted), (wanted, self.tokens)

    def conditional(self):
        condition = self.binary(0)
        if not self.take("?"):
            return condition
        yes = self.conditional()
        self.expect(":")
        no = self.conditional()
        return lambda names: (yes if condition(names) else no)(names)

    def binary(self, level):
        if level == len(LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while operator := self.take(*LEVELS[level]):
            left = combine(operator, left, self.binary(level + 1))
        return left

    def unary(self):
        if self.take("!"):
            inner = self.unary()
            return lambda names: not inner(names)
        return self.postfix(self.primary())

    def postfix(self, node):
        while step := self.take(".", ".?", "["):
            if step == "[":
                index = self.conditional()
                self.expect("]")
                node = subscript(node, index)
                continue
            name = self.tokens.pop(0)
            if self.take("("):
                node = method(node, name, self.arguments(")"))
            else:
                node = optional_select(node, name) if step == ".?" else select(node, name)
        return node

    def arguments(self, end):
        found = []
        while not self.take(end):
            found.append(self.conditional())
            self.take(",")
        return found

    def primary(self):
        token = self.tokens.pop(0)
        if token == "(":
            inner = self.conditional()
            self.expect(")")
            return inner
        if token == "[":
            entries = self.arguments("]")
            return lambda names: [entry(names) for entry in entries]
        if token == "{":
            self.expect("}")
            return lambda names: {}
        if token[0] == "'":
            return constant(re.sub(r"\\(.)", r"\1", token[1:-1]))
        if token[0].isdigit():
            return constant(float(token) if "." in token else int(token))
        if token in ("true", "false"):
            return constant(token == "true")
        if self.take("("):
            return function(token, self.arguments(")"))
        return variable(token)


def constant(value):
    return lambda names: value


def variable(name):
    def node(names):
        return names[name]

    node.name = name
    return node


def select(node, key):
    def selected(names):
        holder = node(names)
        if not isinstance(holder, dict) or key not in holder:
            raise CelError(f"no such key: {key}")
        return holder[key]

    selected.holder, selected.key = node, key
    return selected


def optional_select(node, key):
    def selected(names):
        holder = node(names)
        if isinstance(holder, Optional):
            holder = holder.value if holder.there else {}
        return Optional(holder.get(key), key in holder)

    return selected


def subscript(node, index):
    return lambda names: node(names)[index(names)]


def combine(operator, left, right):
    """A binary operation; an error on one side of a logical one gives way to a decisive other side."""
    if operator not in ("||", "&&"):
        return lambda names: calculate(operator, left(names), right(names))

    def logical(names):
        decisive, error = operator == "||", None
        for side in (left, right):
            try:
                if side(names) is decisive:
                    return decisive
            except CelError as problem:
                error = problem
        if error is not None:
            raise error
        return not decisive

    return logical


def calculate(operator, left, right):
    if operator in ("==", "!="):
        return (left == right) is (operator == "==")
    if operator == "in":
        return left in right
    if type(left) is not type(right) and not isinstance(left, str):
        both = {type(left), type(right)}
        assert both <= {int, float}, (left, operator, right)
        assert operator in ("<", "<=", ">", ">="), (left, operator, right)
    return {
        "<": lambda: left < right,
        "<=": lambda: left <= right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left // right,
        "%": lambda: left % right,
    }[operator]()


def function(name, arguments):
    if name == "has":
        (target,) = arguments
        return lambda names: target.key in target.holder(names)
    (argument,) = arguments
    return {
        "size": lambda names: len(argument(names)),
        "double": lambda names: float(argument(names)),
    }[name]


def method(node, name, arguments):
    if name in ("all", "exists_one"):
        bound, test = arguments

        def over(names):
            results = [test({**names, bound.name: each}) for each in node(names)]
            return all(results) if name == "all" else results.count(True) == 1

        return over
    if name == "orValue":
        return lambda names: found.value if (found := node(names)).there else arguments[0](names)
    return {
        "max": lambda names: max(node(names)),
        "min": lambda names: min(node(names)),
        "matches": lambda names: re.search(arguments[0](names), node(names)) is not None,
        "startsWith": lambda names: node(names).startswith(arguments[0](names)),
        "format": lambda names: node(names) % tuple(map(spell, arguments[0](names))),
    }[name]
