"""`RowSource`, the base class of all kinds whose tasks are rows of a data set.

The hash of a drawn integer selects a row of the training split. Worker and validator read the same row,
because the pool's parameters contain the digest of the data set. The data set is opened at the first draw,
never in the constructor.
"""

from abc import abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from covey.environments.base import DatasetRow, DatasetRows, DataSets, JsonObject, Task, TaskSource
from covey.environments.environment import build_refusal, refuse_options
from covey.environments.task_draws import draw_below
from covey.protocol.api.common import HashText
from covey.protocol.ids import Hash


class RowOptions(BaseModel):
    """Options of a kind whose tasks are rows. Example: {"dataset": "0x5f..."}."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dataset: HashText
    """Digest of the data set, as `covey tasks import` prints it."""


class RowSource(TaskSource):
    """Task source whose tasks are the rows of one task type of a data set."""

    task_type: ClassVar[str]
    """Task type of the rows. It is also the name of the environment kind."""

    def __init__(self, options: JsonObject, data_sets: DataSets) -> None:
        """Check and keep the options. Raises OperatorError("bad_environment") if they are invalid."""
        try:
            self._digest: Hash = RowOptions.model_validate(dict(options)).dataset
        except ValidationError as error:
            raise refuse_options(self.task_type, error, RowOptions) from error
        self._data_sets = data_sets
        self._rows: DatasetRows | None = None

    def draw(self, number: int) -> Task:
        """Return the task of the row that a drawn integer selects.

        Raises TransientError if the row cannot be fetched now. Raises OperatorError("no_dataset") if no folder
        contains the data set and there are no relays.
        """
        return self.build_task(self._open().read("train", self.task_type, self._find_index(number)))

    def identify(self, number: int) -> str:
        """Return the digest of the data set and the index of the row, without reading the row."""
        return f"{self._digest}/{self._find_index(number)}"

    def held_out(self, n: int) -> list[Task]:
        """Return the tasks of the first `n` rows of the held-out split, or of all."""
        rows = self._open()
        count = min(n, rows.count("held_out", self.task_type))
        return [self.build_task(rows.read("held_out", self.task_type, index)) for index in range(count)]

    def build_task(self, row: DatasetRow) -> Task:
        """Build the task of a row.

        Kinds that only compare strings grade in this process, so they check the row first and raise
        OperatorError("bad_environment") if it is malformed. For other kinds a malformed row fails in a grading
        process, which it may crash.
        """
        info = row.verification_info
        try:
            checked = self.read_info(info) if self.is_plain else info
            return Task(question=self.ask(row.prompt, checked), verification=checked)
        except (ValueError, TypeError, LookupError) as error:
            raise build_refusal(f"a row of the data set {self._digest} cannot be graded: {error}") from error

    def ask(self, question: str, info: JsonObject) -> str:
        """Return the question as the model reads it. A kind may add parts of the row's `verification_info`."""
        return question

    @classmethod
    @abstractmethod
    def read_info(cls, raw: JsonObject) -> JsonObject:
        """Check the `verification_info` of a row. Raises ValueError, which says what is missing or wrong."""

    def _open(self) -> DatasetRows:
        if self._rows is None:
            self._rows = self._data_sets(self._digest)
        return self._rows

    def _find_index(self, number: int) -> int:
        count = self._open().count("train", self.task_type)
        if count == 0:
            raise build_refusal(f"the data set {self._digest} has no training rows of type {self.task_type}")
        return draw_below("row", number, count)


def read_strings(raw: JsonObject, *names: str) -> list[str]:
    """Return the strings in a row's `verification_info` under the first of `names` that it contains.

    A single string counts as a list of one, and numbers become strings. Null at the end of a list is padding.
    Raises ValueError if there is no string or if one is blank.
    """
    name = next((name for name in names if name in raw), None)
    if name is None:
        raise ValueError(f"verification_info has no field {' or '.join(names)}")
    value = raw[name]
    items = [*value] if isinstance(value, list) else [value]
    while isinstance(value, list) and items and items[-1] is None:
        items.pop()
    texts = [_read_text(name, item) for item in items]
    if not texts:
        raise ValueError(f"{name} in verification_info is empty")
    return texts


def _read_text(name: str, value: object) -> str:
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} in verification_info contains {value!r:.60}, which is blank or not a string")
    return text
