"""The environment of a new pool, from a kind of environment and a data set."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from covey.environments import mixture, registry
from covey.environments.base import EnvironmentSpec
from covey.environments.kinds.dataset_rows import RowSource
from covey.environments.mixture import MAX_WEIGHT
from covey.errors import OperatorError
from covey.tasks.dataset import DataSet, open_folder
from covey.tasks.dataset_row import Reading
from covey.tasks.importing import import_rows
from covey.tasks.sources import read_sources
from covey.tasks.writing import MANIFEST_FILE

GENERATOR = "reasoning_gym"
"""Kind that can be followed by the name of a generator, as in "reasoning_gym:chain_sum"."""


def choose_environment(named: str | None, dataset: Path | None) -> EnvironmentSpec | None:
    """Return the environment of a new pool. None means the one of the shipped pool.toml.

    `named` is a kind, "mixture" or "reasoning_gym:GENERATOR". `dataset` is the folder of a data set. Without `named`,
    the environment is that of the data set's only task type. A mixture has one part for each task type.

    Raises OperatorError("no_dataset") if the kind needs a data set. Raises OperatorError("bad_environment") if there is
    no such kind, or if it needs options that only pool.toml can contain. Raises OperatorError("several_types") or
    OperatorError("no_training_rows") if the data set does not fit.
    """
    if dataset is not None:
        return _choose_by_rows(named, open_folder(dataset))
    if named is None or named == GENERATOR:
        return None
    kind, _, generator = named.partition(":")
    if named == mixture.KIND or is_row_kind(named):
        raise OperatorError(
            "no_dataset",
            f"the environment {named} draws its questions from a data set, but --dataset is missing",
            fix="Add --dataset ROWS.jsonl; covey tasks example --out rows.jsonl writes rows to try",
        )
    spec = EnvironmentSpec(kind=kind, options={"name": generator} if generator else {})
    try:
        registry.load(spec)
    except OperatorError as error:
        if error.code != "bad_environment" or generator:
            raise
        raise OperatorError(
            "bad_environment",
            error.message.removesuffix(f". {error.fix}"),
            fix="Create the pool without --environment, and write kind and options into [params.environment] of its "
            "pool.toml",
        ) from error
    return spec


def is_row_kind(kind: str) -> bool:
    """Return whether the tasks of a kind are rows of a data set. Raises OperatorError("bad_environment")."""
    return kind.partition(":")[0] != GENERATOR and issubclass(registry.find_source(kind), RowSource)


def import_data_set(source: str, folder: Path, named: str | None) -> None:
    """Import rows into a new folder, or copy a data set that covey tasks import has written.

    `named` is the kind of rows that do not name their own. Raises the errors of `import_rows`.
    """
    if (Path(source) / MANIFEST_FILE).is_file():
        open_folder(Path(source))
        try:
            shutil.copytree(source, folder)
        except OSError as error:
            raise OperatorError(
                "no_folder",
                f"the data set {source} cannot be copied to {folder}: {error}",
                fix="Check the free space of the disk and the permissions of the data set",
            ) from error
        return
    kind = None if named in (None, mixture.KIND) else named
    import_rows(read_sources([source]), folder, Reading(task_type=kind))


def _choose_by_rows(named: str | None, data_set: DataSet) -> EnvironmentSpec:
    counts = {kind: count for (split, kind), count in data_set.groups.items() if split == "train"}
    if named is None:
        if len(counts) > 1:
            raise OperatorError(
                "several_types",
                f"the data set has training rows of several task types: {_describe(counts)}",
                fix="Choose one with --environment, or use all of them with --environment mixture",
            )
        named = next(iter(counts), None)
    if named == mixture.KIND and counts:
        unit = -(-sum(counts.values()) // MAX_WEIGHT)
        parts: list[JsonValue] = [
            {"weight": -(-count // unit), "kind": kind, "options": {"dataset": data_set.digest}}
            for kind, count in counts.items()
        ]
        return EnvironmentSpec(kind=mixture.KIND, options={"parts": parts})
    if named is None or named not in counts:
        raise OperatorError(
            "no_training_rows",
            f"the data set has no training rows for the environment {named or 'of any type'}; it has "
            f"{_describe(counts)}",
            fix="Use a data set with more rows, of which one in eight is held out, or another --environment",
        )
    return EnvironmentSpec(kind=named, options={"dataset": data_set.digest})


def _describe(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of type {kind}" for kind, count in counts.items()) or "none"
