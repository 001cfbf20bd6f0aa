"""Finds the row that `covey tasks show` prints, and the environment that turns it into a prompt."""

from pathlib import Path
from typing import Any

from covey.console.pool_file import build_params, read_document
from covey.environments.base import EnvironmentSpec, Split
from covey.errors import OperatorError
from covey.tasks.dataset import DataSet
from covey.tasks.dataset_row import TaskRecord


def _choose(found: DataSet, split: Split | None, task_type: str | None) -> tuple[Split, str]:
    """Return split and task type of a row. The default is the training split, and the task type if there is only one.

    Raises OperatorError("no_row").
    """
    named = [(part, kind) for part, kind in found.groups if part == (split or "train") and task_type in (None, kind)]
    if len(named) == 1:
        return named[0]
    known = ", ".join(f"{part} {kind}" for part, kind in found.groups)
    raise OperatorError(
        "no_row",
        f"{len(named)} combinations of split and task type match, but one is required; the data set contains {known}",
        fix="Choose one with --split and --type",
    )


def get_row(found: DataSet, index: int, split: Split | None, task_type: str | None) -> TaskRecord:
    """Return a row by its number. Raises OperatorError("no_row")."""
    return found.read(*_choose(found, split, task_type), index)


def find_row(found: DataSet, problem_id: str, split: Split | None, task_type: str | None) -> TaskRecord:
    """Return the first row with a problem_id. Raises OperatorError("no_row")."""
    for part, kind in found.groups:
        if split in (None, part) and task_type in (None, kind):
            for index in range(found.count(part, kind)):
                row = found.read(part, kind, index)
                if row.problem_id == problem_id:
                    return row
    raise OperatorError("no_row", f"no row has the problem_id {problem_id}", fix="Correct --id, --split or --type")


def find_spec(found: DataSet, row: TaskRecord, pool_file: Path | None) -> EnvironmentSpec:
    """Return the environment that turns a row into a prompt.

    This is the pool's environment, or its component for the row's task type. Without a pool file, it is the kind for
    the task type, with the data set as its only option. Raises OperatorError("wrong_dataset") if the pool does not use
    such rows.
    """
    plain = EnvironmentSpec(kind=row.task_type, options={"dataset": found.digest})
    if pool_file is None:
        return plain
    named = build_params(pool_file, read_document(pool_file), {}).environment
    parts: Any = named.options.get("parts")
    specs = [(named.kind, named.options)]
    specs += [(part.get("kind"), part.get("options", {})) for part in parts] if isinstance(parts, list) else []
    for kind, options in specs:
        if kind == row.task_type and options.get("dataset") == found.digest:
            return EnvironmentSpec(kind=kind, options=options)
    raise OperatorError(
        "wrong_dataset",
        f"the pool of {pool_file} does not draw rows of type {row.task_type} from the data set {found.digest}",
        fix="Use the file of a pool that draws them, or remove --pool-file",
    )
