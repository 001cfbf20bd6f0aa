"""Docstrings of attributes, which Python does not keep: the strings below them in the source of their class."""

import ast
import inspect
import sys
from functools import cache

from pydantic import BaseModel


def read_attribute_docstrings(kind: type) -> dict[str, str]:
    """Docstring of each attribute of a class and its bases, on one line.

    Example: `read_attribute_docstrings(WorkerConfig)["batch"]`.
    """
    found: dict[str, str] = {}
    for part in reversed(kind.__mro__):
        if part not in BaseModel.__mro__:
            found |= _read_module(part.__module__).get(part.__qualname__, {})
    return found


@cache
def _read_module(name: str) -> dict[str, dict[str, str]]:
    """By class, then by attribute."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {node.name: _read_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _read_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for attribute, text in zip(node.body, node.body[1:], strict=False):
        match attribute, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                found[name] = " ".join(docstring.split())
    return found
