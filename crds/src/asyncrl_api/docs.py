"""Attribute docstrings of the models, read from their source when somebody asks."""

import ast
import inspect
import sys
from functools import cache

from pydantic import BaseModel


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Docstring by class and attribute of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _attributes(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _attributes(node: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def field_doc(model: type[BaseModel], name: str) -> str:
    """Docstring of an attribute, looked up along the bases of the model.

    Raises:
        LookupError: it has none.
    """
    for base in model.__mro__:
        if issubclass(base, BaseModel) and base is not BaseModel:
            text = _docstrings(base.__module__).get(base.__name__, {}).get(name)
            if text is not None:
                return text
    raise LookupError(f"{model.__name__}.{name} has no docstring")


def model_doc(model: type[BaseModel]) -> str:
    """First paragraph of a model's docstring."""
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())
