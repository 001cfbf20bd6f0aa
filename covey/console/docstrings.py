"""Docstrings of attributes: strings below them in the source of their class, which Python does not keep."""

import ast
import inspect
import sys
from functools import cache

from pydantic import BaseModel


def read_attribute_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring of each attribute of a class and its bases, each on one line.

    Example: `read_attribute_docstrings(WorkerConfig)["batch"]`.
    """
    docstrings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base not in BaseModel.__mro__:
            docstrings |= _read_module(base.__module__).get(base.__qualname__, {})
    return docstrings


@cache
def _read_module(name: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of a module by class, then by attribute."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {node.name: _read_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _read_class(node: ast.ClassDef) -> dict[str, str]:
    docstrings = {}
    for attribute, text in zip(node.body, node.body[1:], strict=False):
        match attribute, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                docstrings[name] = " ".join(docstring.split())
    return docstrings
