"""Finds the custom loss and the custom advantages that the settings name: by function, or by entry point."""

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from covey.errors import OperatorError

GROUPS: Mapping[str, str] = {"loss.custom_loss": "covey.losses", "loss.custom_advantage": "covey.advantages"}
"""Groups of entry points by setting."""


def load_function(reference: str, setting: str) -> Callable[..., Any]:
    """Return the function "package.module:function", or that of an entry point, for example "soft-clip".

    `setting` is a key of `GROUPS`. Raises OperatorError("bad_settings") if nothing installed has the name, if the
    module cannot be imported or if it does not have the function.
    """
    try:
        function = _import(reference) if ":" in reference else _find_entry_point(reference, GROUPS[setting])
    except (ImportError, AttributeError) as error:
        raise OperatorError(
            "bad_settings",
            f"{setting} is {reference}, which cannot be imported: {error}",
            fix="Install the package in the environment of the trainer on every rank, or correct the name",
        ) from error
    if not callable(function):
        raise OperatorError(
            "bad_settings",
            f"{setting} is {reference}, which is a {type(function).__name__} and not a function",
            fix="Name a function",
        )
    return function  # type: ignore[no-any-return]


def _import(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _find_entry_point(name: str, group: str) -> Any:
    installed = {entry.name: entry for entry in entry_points(group=group)}
    if name not in installed:
        raise ImportError(f"the entry points {group} are {', '.join(sorted(installed)) or 'none'}")
    return installed[name].load()
