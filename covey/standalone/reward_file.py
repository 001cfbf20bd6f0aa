"""A reward function from a Python file, and the rows that it grades, for runs that a TOML file describes."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.environments.python_rewards import RewardFunction
from covey.errors import OperatorError
from covey.tasks.dataset_row import BadRowError
from covey.tasks.sources import read_sources


def load_reward(named: Path) -> RewardFunction:
    """Return the function that "FILE.py:FUNCTION" names. The file runs as a module of this process.

    Raises OperatorError("bad_settings") if there is no such file or function. Errors of the file itself are kept.
    """
    file, _, name = str(named).rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file) if Path(file).is_file() else None
    if spec is None or spec.loader is None:
        raise _refuse(named, f"{file or named} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise _refuse(named, f"{file} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def read_rows(source: str) -> list[Mapping[str, Any]]:
    """Return all rows of a source, with all their columns.

    Raises the errors of `read_sources`, and OperatorError("bad_row") for a row that is not JSON or too long.
    """
    rows: list[Mapping[str, Any]] = []
    for row in read_sources([source]):
        if isinstance(row.values, BadRowError):
            raise OperatorError("bad_row", f"{row.place}: {row.values.message}", fix="Correct the row") from row.values
        rows.append(row.values)
    return rows


def _refuse(named: Path, problem: str) -> OperatorError:
    return OperatorError(
        "bad_settings",
        f"data.reward is {named}, but {problem}",
        fix='Set data.reward to a Python file and a function in it, for example "reward.py:score"',
    )
