"""Creates a data set from the rows of another one whose solve rates are in a range."""

from pathlib import Path

from covey.errors import OperatorError
from covey.protocol.ids import Hash
from covey.tasks.dataset import open_folder
from covey.tasks.dataset_row import TaskRecord
from covey.tasks.writing import MANIFEST_FILE, ROWS_FILE, DataSetWriter


def select_rows(folder: Path, out: Path, *, solve_rate: str, low: float, high: float) -> tuple[Hash, dict[str, int]]:
    """Write the rows of `folder` whose solve rate is from `low` to `high`, inclusive, to `out`.

    Returns the new digest, and the number of rows that are "kept", "too_hard", "too_easy" and "without_rate".
    Raises OperatorError("no_solve_rate") if no row has the rate, and OperatorError("nothing_kept") if no rate is in the
    range.
    """
    data_set, counts = open_folder(folder), {"kept": 0, "too_hard": 0, "too_easy": 0, "without_rate": 0}
    names: set[str] = set()
    size = next(file.size for file in data_set.manifest.files if file.name == ROWS_FILE)
    with DataSetWriter(out) as writer, (folder / ROWS_FILE).open("rb") as lines:
        offset = 0
        while offset < size:
            line = lines.readline()
            offset += max(1, len(line))
            row = data_set.parse(line, f"the row that ends at byte {offset}")
            names.update(row.solve_rates)
            outcome = _judge(row, solve_rate, low, high)
            counts[outcome] += 1
            if outcome == "kept":
                writer.add(row)
        if solve_rate not in names:
            known = ", ".join(sorted(names)) or "none"
            raise OperatorError(
                "no_solve_rate",
                f"no row of {folder} has the solve rate {solve_rate}; the available solve rates are: {known}",
                fix=f"Choose one of them with --solve-rate; {folder / MANIFEST_FILE} is unchanged",
            )
        if not counts["kept"]:
            raise OperatorError(
                "nothing_kept",
                f"no row has a solve rate from {low} to {high}",
                fix="Widen the range with --low and --high",
            )
        return writer.finish(), counts


def _judge(row: TaskRecord, name: str, low: float, high: float) -> str:
    rate = row.solve_rates.get(name)
    if rate is None:
        return "without_rate"
    return "too_hard" if rate < low else "too_easy" if rate > high else "kept"
