"""Interfaces of environments. Prompts and rewards depend only on integers, so all roles compute the same ones.

A kind of environment is a `TaskSource`: it draws tasks and grades answers. `environment.TaskEnvironment` adds
what all kinds share (system prompt, length targets, extraction of the answer) and turns a source into an
`Environment`.

Prompts are drawn in the role's own process. Replies are graded in a separate process, which an answer may
crash. That process receives `Reply.verification`, and has no data sets and no network. The spec is part of
the pool's parameters, so every party builds the same environment from it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from pydantic import JsonValue

from covey.errors import OperatorError
from covey.protocol.ids import Hash

JsonObject = Mapping[str, JsonValue]
Split = Literal["train", "held_out"]
LimitCode = Literal["sandbox_cpu", "sandbox_memory", "sandbox_timeout", "sandbox_output", "sandbox_died"]
"""Why grading was cut short: a resource limit or a dead process. The codes are those of
`covey.sandbox.SandboxError`.
"""


class GradeLimit(Exception):  # noqa: N818
    """An executed answer reached a resource limit or killed its process. It is graded as a wrong answer."""

    def __init__(self, code: LimitCode) -> None:
        super().__init__(code)
        self.code: LimitCode = code


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSpec:
    """The kind of an environment and its options.

    Example: EnvironmentSpec(kind="reasoning_gym", options={"name": "spell_backward", "config": {"max_word_len": 5}}).
    """

    kind: str
    """Name of the kind: a key of `registry.KINDS`, an entry point, or "mixture"."""
    options: JsonObject = field(default_factory=dict)
    """Options that every kind has (`environment.SharedOptions`) and options of this kind. Unknown ones are refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One task. Example: Task(question="What is 2 + 3?", verification={"ground_truth": ["5"]})."""

    question: str
    """Text of the question, without instructions on the length or format of the answer."""
    system: str = ""
    """The task's own system message. Empty if it has none. A system prompt in the pool's options replaces it."""
    verification: JsonObject
    """Data that `TaskSource.grade` needs to grade an answer. The model never sees it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One completion to be graded."""

    verification: JsonObject
    """Verification data of the prompt."""
    target: int | None
    """Target length that the prompt asks for, in tokens. None if it asks for no length."""
    text: str
    """Text of the completion, without its end token."""
    finished: bool
    """Whether the completion ended with an end token. Otherwise the token limit cut it off."""
    tokens: int
    """Length of the completion in tokens, including the end token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One question in the form that a model reads.

    Example: Prompt(text="Spell this word backward ...: ohmic", verification={"item": 216680}).
    """

    text: str
    """User message, including the request for a length."""
    system: str = ""
    """System message. Empty if there is none."""
    target: int | None = None
    """Target length that the text asks for, in tokens. None if it asks for no length."""
    verification: JsonObject
    """Data that the grading process needs to grade a completion."""

    def build_reply(self, text: str, *, finished: bool, tokens: int) -> Reply:
        """Combine a completion with this prompt's target and verification data."""
        return Reply(verification=self.verification, target=self.target, text=text, finished=finished, tokens=tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """Reward of one reply. Example: Grade(reward=0.94, parts={"task": 1.0, "length": -0.06})."""

    reward: float
    """Sum of the parts."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Components of the reward. "task" is what the answer earns. "length" is the penalty for missing the target
    length, 0 or negative.
    """
    limit: str = ""
    """Code of the limit or process death that stopped the grading, so that the answer counts as wrong. Empty if
    none did.
    """
    cpu_seconds: float = 0.0
    """CPU seconds that grading took."""


Grader = Callable[[Sequence[Reply]], Sequence[Grade]]
"""Function that grades replies, if necessary in separate processes. It returns the grades in the order of the
replies.
"""


class DatasetRow(Protocol):
    """One task of a data set."""

    @property
    def prompt(self) -> str:
        """Text of the question."""

    @property
    def verification_info(self) -> JsonObject:
        """Data that the row's kind needs to grade an answer, as returned by the kind's `TaskSource.read_info`."""


class DatasetRows(Protocol):
    """An open data set, whose rows can be counted and read (`covey.tasks`)."""

    def count(self, split: Split, task_type: str) -> int:
        """Return the number of rows of task type `task_type` in a split."""

    def read(self, split: Split, task_type: str, index: int) -> DatasetRow:
        """Return row `index` of a task type in a split, fetching it if necessary.

        Raises TransientError if it cannot be fetched now.
        """


DataSets = Callable[[Hash], DatasetRows]
"""Function that opens the data set with a given digest. It raises OperatorError("no_dataset") if there is
none.
"""


def refuse_data_sets(digest: Hash) -> DatasetRows:
    """Raise OperatorError("no_dataset") for every digest.

    This is the `DataSets` function of a process without data sets, such as a grading process.
    """
    raise OperatorError(
        "no_dataset",
        f"the environment draws its tasks from data set {digest}, which this process has not opened",
        fix="Create the data set with covey tasks import, and set its folder with --dataset or in datasets",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GradingPython:
    """The Python interpreter of grading processes, and the packages that they import from source folders."""

    interpreter: Path | None = None
    """Path of the interpreter. None means the interpreter of this process."""
    packages: tuple[str, ...] = ()
    """Top-level packages that grading imports in addition to Covey. Packages that the interpreter lacks are
    skipped.
    """


class TaskSource(ABC):
    """One kind of environment: it draws tasks from two splits that share no question, and grades answers exactly.

    The constructor takes the options of the kind and a function that opens data sets. It must be fast and must
    not open a data set, because a grading process also builds the source but has no data sets. Raises
    OperatorError("bad_environment") for bad options.
    """

    extraction: ClassVar[str] = "whole"
    """Default extraction of the kind: a key of `answer_extraction.EXTRACTIONS`. The pool's options can set a
    different one.
    """
    version: ClassVar[str] = "1"
    """Version of the kind's questions and grading. Every change to a question or a grade must raise it."""
    requires_isolation: ClassVar[bool] = False
    """Whether grading executes code that a model wrote, which resource limits alone cannot contain."""

    @property
    def is_plain(self) -> bool:
        """Whether `grade` only compares strings, in linear time.

        If it does, replies are graded in the caller's process. Otherwise they are graded in a separate process.
        """
        return False

    @abstractmethod
    def __init__(self, options: JsonObject, data_sets: DataSets) -> None:
        """Check and keep the options."""

    @abstractmethod
    def draw(self, number: int) -> Task:
        """Return the training task for a drawn integer. The integer is at least 0 and has no upper limit."""

    @abstractmethod
    def held_out(self, n: int) -> list[Task]:
        """Return the first `n` distinct tasks of the held-out split, or all if it has fewer.

        The result is the same on every call.
        """

    @abstractmethod
    def grade(self, verification: JsonObject, answer: str) -> float:
        """Return what an extracted answer earns: 1 if it is right, else 0.

        This runs in a grading process under CPU time and memory limits. Raises GradeLimit if the answer is executed
        and reaches a limit of its own. No answer may cause any other exception.
        """

    @classmethod
    def read_info(cls, raw: JsonObject) -> JsonObject:
        """Check the `verification_info` of a data set's row, and return it in the form that `grade` takes.

        Applying it to its own result changes nothing. Raises ValueError with a message that says what is missing or
        wrong.
        """
        return raw

    @classmethod
    def read_columns(cls, values: Mapping[str, object]) -> tuple[str, JsonObject]:
        """Read a row that has no column `verification_info`, in a layout of published data sets that the kind knows.

        Returns its question and what `read_info` takes. By default no layout is known. Raises ValueError if this row's
        is not.
        """
        raise ValueError("verification_info is missing, so the row cannot be graded")

    def identify(self, number: int) -> str:
        """Return a string that identifies the task of a drawn integer. The pool's fingerprint covers it.

        By default it is the question. A source that fetches its tasks returns an identifier that needs no fetch.
        """
        return self.draw(number).question

    def find_system(self, number: int) -> str:
        """Return the system message of the task for a drawn integer, or "" if it has none.

        It must not fetch a row of a data set.
        """
        return ""

    @property
    def grading_python(self) -> GradingPython:
        """Interpreter and packages of grading processes. Raises OperatorError if they are not installed."""
        return GradingPython(packages=(type(self).__module__.partition(".")[0],))

    def use_interpreter(self, interpreter: Path) -> None:
        """Draw and grade with the Python interpreter that the role's settings specify.

        Kinds that need no separate interpreter ignore this.
        """
        return

    def warm_up(self) -> None:
        """Load what grading needs. A grading process calls this once, and every grade starts from the loaded state."""
        return

    def list_versions(self) -> Mapping[str, str]:
        """Return the versions of the packages that questions and grades depend on, by package name."""
        return {}


class Environment(Protocol):
    """Draws prompts from two splits that share no question, and grades completions exactly."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of everything that prompts and rewards depend on, by name."""

    @property
    def requires_isolation(self) -> bool:
        """Whether grading executes code that a model wrote, which resource limits alone cannot contain."""

    @property
    def unopened_tags(self) -> frozenset[str]:
        """Thinking tags that the model's chat template must not open in the prompt."""

    @property
    def grading_python(self) -> GradingPython:
        """Interpreter and packages of grading processes. Raises OperatorError if they are not installed."""

    def prompt(self, draw: int) -> Prompt:
        """Return the training prompt for a drawn integer (`protocol.seeding`), which is 0 or larger without a limit."""

    def identify(self, draw: int) -> JsonObject:
        """Return the data that identifies the prompt for a drawn integer. The pool's fingerprint covers it."""

    def held_out(self, n: int) -> list[Prompt]:
        """Return the prompts of the first `n` distinct held-out questions, or of all if there are fewer.

        The result is the same on every call.
        """

    def is_plain(self, reply: Reply) -> bool:
        """Return whether grading a reply only compares strings, so that it needs no separate process."""

    def grade(self, reply: Reply) -> Grade:
        """Grade a completion. A completion that cannot be graded counts as wrong.

        Raises GradeLimit if an executed answer reaches a limit. No completion may cause any other exception.
        """

    def has_answer(self, reply: Reply) -> bool:
        """Return whether an answer can be extracted from the text of a completion. It is not graded."""

    def warm_up(self) -> None:
        """Load what grading needs, before the first grade."""

    def grade_wrong(self, reply: Reply) -> Grade:
        """Return the grade that this reply gets if its answer is wrong. The reply's text is not read."""
