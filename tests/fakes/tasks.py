"""Rows with the usual columns, and data sets of them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from covey.tasks.dataset import DataSet, open_folder
from covey.tasks.dataset_row import Reading
from covey.tasks.importing import import_rows
from covey.tasks.sources import SourceRow


def make_row(number: int, **changes: object) -> dict[str, object]:
    """Return a row of mathematics. None as a change removes a column."""
    row: dict[str, object] = {
        "problem_id": f"p-{number}",
        "task_type": "verifiable_math",
        "prompt": f"What is {number} + 1?",
        "verification_info": json.dumps({"ground_truth": str(number + 1)}),
    }
    return {name: value for name, value in (row | changes).items() if value is not None}


def make_data_set(folder: Path, rows: Iterable[Mapping[str, object]]) -> DataSet:
    """Write a data set of some rows to a new folder."""
    import_rows((SourceRow(place=f"row {n}", values=row) for n, row in enumerate(rows, 1)), folder, Reading())
    return open_folder(folder)
