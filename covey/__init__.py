"""Covey: reinforcement learning of language models on untrusted computers.

The documented names, such as `covey.train`, are in `covey.python`. They load at their first use, because
every part of Covey imports this module. `__init__.pyi` declares them for type checkers.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_NAMES = frozenset({"Environment", "LocalRun", "Pool", "evaluate", "train"})
"""Names of `covey.python`. They are repeated here because `from covey import rollouts` asks for any name first."""


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'covey' has no attribute {name!r}")
    return getattr(import_module("covey.python"), name)
