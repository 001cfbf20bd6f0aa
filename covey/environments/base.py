"""What an environment owes worker, validator and trainer: prompts and rewards that follow from integers alone.

A kind of environment is a `TaskSource`: it draws tasks and grades answers.  `environment.TaskEnvironment` adds what all
kinds share (system prompt, length targets, extraction of the answer) and makes an `Environment` of it.  Prompts are
drawn in the role's own process; replies are graded in a process that may die, which is given `Reply.verification`
and has neither data sets nor a network.  A spec stands in the pool's parameters, so every party builds the same
environment from it.
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
"""What can end a grade: the codes of `covey.sandbox.SandboxError`."""


class GradeLimit(Exception):  # noqa: N818
    """An answer that is run reached a limit, or ended the process that runs it; the grade is that of a wrong answer."""

    def __init__(self, code: LimitCode) -> None:
        super().__init__(code)
        self.code: LimitCode = code


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSpec:
    """Which environment, with which options.

    Example: EnvironmentSpec(kind="reasoning_gym", options={"name": "spell_backward", "config": {"max_word_len": 5}}).
    """

    kind: str
    """Name of the kind, a key of `registry.KINDS` or an entry point."""
    options: JsonObject = field(default_factory=dict)
    """Options that every kind has (`environment.SharedOptions`) and those of the kind.  Unknown ones are refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One task of a kind.  Example: Task(question="What is 2 + 3?", verification={"ground_truth": ["5"]})."""

    question: str
    """Text of the question, without a request for a length or a form of the answer."""
    system: str = ""
    """The task's own system message, which that of the pool's options replaces.  Empty: it has none."""
    verification: JsonObject
    """What `TaskSource.grade` needs to grade an answer.  The model never sees it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One completion that is to be graded."""

    verification: JsonObject
    """Those of its prompt."""
    target: int | None
    """Length that its prompt asks for, in tokens."""
    text: str
    """The completion without its end token."""
    finished: bool
    """Whether it ended by itself.  Otherwise the limit of tokens cut it."""
    tokens: int
    """Length of the completion in tokens, the end token included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One question as a model is asked it.

    Example: Prompt(text="Spell this word backward ...: ohmic", verification={"item": 216680}).
    """

    text: str
    """The user's message, the request for a length included."""
    system: str = ""
    """The system's message.  Empty: there is none."""
    target: int | None = None
    """Length that the text asks for, in tokens.  None: it asks for none."""
    verification: JsonObject
    """What the grading process needs to grade a completion."""

    def build_reply(self, text: str, *, finished: bool, tokens: int) -> Reply:
        """Pair a completion with this prompt."""
        return Reply(verification=self.verification, target=self.target, text=text, finished=finished, tokens=tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """Reward of one reply.  Example: Grade(reward=0.94, parts={"task": 1.0, "length": -0.06})."""

    reward: float
    """Sum of the parts."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """"task": what the answer earns; "length": what the distance from the target costs, at most 0."""
    limit: str = ""
    """Code of the limit, or of the death, that ended the grade; the reward is that of a wrong answer then.  Empty: the
    grade came to its end."""
    cpu_seconds: float = 0.0
    """CPU time that the grade took."""


Grader = Callable[[Sequence[Reply]], Sequence[Grade]]
"""Grades replies, each in a process that may die.  The results have the order of the replies."""


class DatasetRow(Protocol):
    """One task of a data set."""

    @property
    def prompt(self) -> str:
        """Text of the question."""

    @property
    def verification_info(self) -> JsonObject:
        """What the kind named by the row's task type needs to grade an answer, as that kind has checked it."""


class DatasetRows(Protocol):
    """An open data set (`covey.tasks`)."""

    def count(self, split: Split, task_type: str) -> int:
        """Number of rows of a task type in a split."""

    def read(self, split: Split, task_type: str, index: int) -> DatasetRow:
        """Row `index` of a task type in a split; it may have to be fetched.

        Raises TransientError where it cannot be had now.
        """


DataSets = Callable[[Hash], DatasetRows]
"""Opens the data set of a digest.  Raises OperatorError("no_dataset")."""


def refuse_data_sets(digest: Hash) -> DatasetRows:
    """The `DataSets` of a process that has none: a grading process."""
    raise OperatorError(
        "no_dataset",
        f"the environment draws its tasks from the data set {digest}, which is not here",
        fix="Make it with covey tasks import, and name its folder",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GradingPython:
    """The Python that grading processes run, and what they import from source folders."""

    interpreter: Path | None = None
    """Path of another Python than that of this process.  None: the same one."""
    packages: tuple[str, ...] = ()
    """Top-level packages that grading imports, besides Covey; those that are not installed there are left out."""


class TaskSource(ABC):
    """One kind of environment: tasks of two splits that share no question, and an exact grade.

    The constructor takes the options of the kind and what opens data sets.  It must be quick and must open no data set:
    a grading process builds the source, too, and has none.  Raises OperatorError("bad_environment") for bad options.
    """

    extraction: ClassVar[str] = "whole"
    """Name of the extraction (`answers.EXTRACTIONS`) that the kind uses where the options name none."""
    version: ClassVar[str] = "1"
    """Version of how the kind asks and grades. Every change of a question or a grade raises it."""
    requires_isolation: ClassVar[bool] = False
    """Whether grading runs what a model wrote, which resource limits alone do not contain."""

    @property
    def is_plain(self) -> bool:
        """Whether `grade` only compares texts, in linear time.

        Such replies are graded without a process around them. Every other reply has a process of its own.
        """
        return False

    @abstractmethod
    def __init__(self, options: JsonObject, data_sets: DataSets) -> None:
        """Check and keep the options."""

    @abstractmethod
    def draw(self, number: int) -> Task:
        """The training task that a drawn integer (0 or more, any size) stands for."""

    @abstractmethod
    def held_out(self, n: int) -> list[Task]:
        """The first `n` different tasks of the held-out split, always the same ones.

        Raises OperatorError("bad_environment") where there are fewer.
        """

    @abstractmethod
    def grade(self, verification: JsonObject, answer: str) -> float:
        """What an extracted answer earns: 1 if it is right, else 0.

        Runs in a grading process under limits of time and memory.  Raises GradeLimit if an answer that is run reaches a
        limit of its own, and nothing else on account of `answer`.
        """

    @classmethod
    def read_info(cls, raw: JsonObject) -> JsonObject:
        """Check the `verification_info` of a data set's row, and return it in the form that `grade` takes.

        Reading what it has returned changes nothing.  Raises ValueError, whose text says what is missing or wrong.
        """
        return raw

    def identify(self, number: int) -> str:
        """What tells the task of a draw from all others; the pool's fingerprint covers it.

        By default the question itself.  A source whose tasks must be fetched names the task without fetching it.
        """
        return self.draw(number).question

    def find_system(self, number: int) -> str:
        """The system message of the task of a draw; empty: it has none.  It must fetch no row of a data set."""
        return ""

    @property
    def grading_python(self) -> GradingPython:
        """What grading processes run.  Raises OperatorError where that is not installed."""
        return GradingPython(packages=(type(self).__module__.partition(".")[0],))

    def use_interpreter(self, interpreter: Path) -> None:
        """Draw and grade with another Python, which the role's settings name.  A kind without one ignores it."""
        return

    def warm_up(self) -> None:
        """Load what grading needs; a grading process calls it once, and every grade starts from there."""
        return

    def list_versions(self) -> Mapping[str, str]:
        """Versions of the packages that questions and grades depend on, by package."""
        return {}


class Environment(Protocol):
    """Prompts of two splits that share no question, and an exact grade."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of everything that prompts and rewards depend on, by name."""

    @property
    def requires_isolation(self) -> bool:
        """Whether grading runs what a model wrote, which resource limits alone do not contain."""

    @property
    def unopened_tags(self) -> frozenset[str]:
        """Thinking tags that the model's chat template must not open in the prompt."""

    @property
    def grading_python(self) -> GradingPython:
        """What grading processes run.  Raises OperatorError where that is not installed."""

    def prompt(self, draw: int) -> Prompt:
        """The training prompt that a drawn integer (`protocol.seeding`, 0 or more, any size) stands for."""

    def identify(self, draw: int) -> JsonObject:
        """What tells the prompt of a draw from all others, for the fingerprint."""

    def held_out(self, n: int) -> list[Prompt]:
        """The first `n` different questions of the held-out split, always the same ones."""

    def is_plain(self, reply: Reply) -> bool:
        """Whether grading a reply only compares texts, so that nothing in them can do harm."""

    def grade(self, reply: Reply) -> Grade:
        """Grade a completion.  What cannot be graded is wrong.

        Raises GradeLimit, and nothing else on account of `reply.text`.
        """

    def warm_up(self) -> None:
        """Load what grading needs, before the first grade."""

    def grade_wrong(self, reply: Reply) -> Grade:
        """The grade of a completion that answers nothing, without a look at its text."""

    def compute_length_cost(self, text: str, *, completion_tokens: int) -> float:
        """The part of the reward that the length took off, at least 0, from the text that the model read."""
