"""What all kinds of environment share: system prompt, length targets, question mask, extraction and reward.

The reward is what the answer earns, which is 0 or 1 for all kinds of this package. If the prompt asks for a
length, alpha x abs(target - length) is subtracted (INTELLECT-2, section 3.1.2). A completion that the token
limit cut off earns nothing for its answer.
"""

import platform
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from covey.environments import answer_extraction
from covey.environments.base import Grade, GradingPython, JsonObject, Prompt, Reply, Task, TaskSource
from covey.environments.question_mask import unpack_kept
from covey.environments.task_draws import draw_below
from covey.errors import OperatorError
from covey.runtime.validation import explain

LENGTH_REQUEST = "Think for {target} tokens before you answer."
"""Last line of a prompt that has a target length (INTELLECT-2, section 4.1.2)."""


class SharedOptions(BaseModel):
    """Options that every kind of environment has."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    system_prompt: str = Field(default="", max_length=4096)
    """System message of every prompt. If empty, each task's own system message is used. Few kinds have one."""
    instruction: str = Field(default="", max_length=4096)
    """Line that is added after every question. It can say, for example, how to mark the answer."""
    extraction: str = ""
    """Rule that takes the answer from a completion: last_boxed, answer_tag, last_line, final_number, last_code_block or
    whole. Empty means the kind's default."""
    thinking_tags: tuple[str, str] = ("<think>", "</think>")
    """Opening and closing tag around the part of a completion in which the model thinks. That part is never graded."""
    thinking_required: bool = False
    """Whether a completion without the closing tag is wrong, because the chat template opens the tag in the prompt."""
    targets: list[PositiveInt] = []
    """Target lengths in tokens. Each prompt asks for one of them. Empty if no length is asked for."""
    alpha: float = Field(default=0.0003, ge=0, allow_inf_nan=False)
    """Reward lost for each token above or below the target length (INTELLECT-2, section 3.1.2)."""
    kept: str = ""
    """Training questions to draw from, as a bit mask in base64 (`question_mask.pack_kept`). Bit n is for the
    question that draw n selects without this option. Empty means all questions. The held-out split is not
    affected.
    """


class TaskEnvironment:
    """Turns the task source of one kind into an `Environment`."""

    def __init__(self, source: TaskSource, options: SharedOptions, versions: Mapping[str, str] | None = None) -> None:
        """Combine a task source with the shared options. `versions` contains the version of the kind, by name.

        Raises OperatorError("bad_environment") for an unknown extraction, an empty thinking tag or a malformed mask
        of kept questions.
        """
        self._source, self._options, self._versions = source, options, dict(versions or {})
        self._extraction = options.extraction or source.extraction
        if self._extraction not in answer_extraction.EXTRACTIONS:
            known = ", ".join(sorted(answer_extraction.EXTRACTIONS))
            raise build_refusal(f"the option extraction is {self._extraction!r}, but must be one of {known}")
        if not all(options.thinking_tags):
            raise build_refusal("the option thinking_tags contains an empty tag")
        try:
            self._kept = unpack_kept(options.kept)
        except ValueError as error:
            raise build_refusal(f"an option of the environment is invalid: {error}") from error

    @property
    def source(self) -> TaskSource:
        """Source that draws and grades the tasks of the kind."""
        return self._source

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the interpreter, the extraction, the kind and the kind's packages, by name."""
        python = ".".join(platform.python_version_tuple()[:2])
        own = {"python": python, "covey.answers": answer_extraction.ANSWERS_VERSION}
        return own | self._versions | dict(self._source.list_versions())

    @property
    def requires_isolation(self) -> bool:
        """Whether the kind executes code that a model wrote."""
        return self._source.requires_isolation

    @property
    def unopened_tags(self) -> frozenset[str]:
        """The opening thinking tag, which the chat template must not open. Empty if `thinking_required` is set."""
        return frozenset() if self._options.thinking_required else frozenset(self._options.thinking_tags[:1])

    @property
    def grading_python(self) -> GradingPython:
        """Interpreter and packages that the kind grades with."""
        return self._source.grading_python

    def prompt(self, draw: int) -> Prompt:
        """Return the training prompt for a drawn integer."""
        targets = self._options.targets
        target = targets[draw_below("target", draw, len(targets))] if targets else None
        return self.build_prompt(self._source.draw(self._find_number(draw)), target)

    def identify(self, draw: int) -> JsonObject:
        """Return what identifies the prompt of a drawn integer: task, target length, instruction, system message."""
        targets = self._options.targets
        return {
            "task": self._source.identify(self._find_number(draw)),
            "target": targets[draw_below("target", draw, len(targets))] if targets else None,
            "instruction": self._options.instruction,
            "system": self._options.system_prompt or self._source.find_system(self._find_number(draw)),
        }

    def held_out(self, n: int) -> list[Prompt]:
        """Return at most `n` held-out prompts, which cycle through the target lengths in order."""
        targets = self._options.targets
        return [
            self.build_prompt(task, targets[i % len(targets)] if targets else None)
            for i, task in enumerate(self._source.held_out(n))
        ]

    def is_plain(self, reply: Reply) -> bool:
        """Return whether the kind only compares strings to grade any reply."""
        return self._source.is_plain

    def grade(self, reply: Reply) -> Grade:
        """Grade a completion: what its answer earns, minus the cost of its length.

        A completion that the token limit cut off earns nothing for its answer.
        """
        return self._build_grade(reply, self._grade_task(reply) if reply.finished else 0.0)

    def has_answer(self, reply: Reply) -> bool:
        """Return whether the extraction finds an answer in a completion."""
        return self._extract(reply) is not None

    def warm_up(self) -> None:
        """Load what the kind needs for grading."""
        self._source.warm_up()

    def grade_wrong(self, reply: Reply) -> Grade:
        """Return the grade of a wrong answer: 0, minus the cost of the completion's length."""
        return self._build_grade(reply, 0.0)

    def build_prompt(self, task: Task, target: int | None = None) -> Prompt:
        """Build the prompt of a task. `target` is the length in tokens that the prompt asks for, or None."""
        request = "" if target is None else LENGTH_REQUEST.format(target=target)
        lines = (task.question, self._options.instruction, request)
        return Prompt(
            text="\n".join(line for line in lines if line),
            system=self._options.system_prompt or task.system,
            target=target,
            verification=task.verification,
        )

    def _grade_task(self, reply: Reply) -> float:
        answer = self._extract(reply)
        return 0.0 if answer is None else self._source.grade(reply.verification, answer)

    def _extract(self, reply: Reply) -> str | None:
        options = self._options
        return answer_extraction.extract_answer(
            reply.text, self._extraction, tags=options.thinking_tags, required=options.thinking_required
        )

    def _build_grade(self, reply: Reply, earned: float) -> Grade:
        cost = compute_length_cost(self._options, reply.target, reply.tokens)
        return Grade(reward=earned - cost, parts={"task": earned, "length": -cost})

    def _find_number(self, draw: int) -> int:
        kept = self._kept
        return kept[draw_below("kept", draw, len(kept))] if kept else draw


def compute_length_cost(options: SharedOptions, target: int | None, tokens: int) -> float:
    """Return the reward that a completion's number of tokens costs, or 0 if its prompt has no target length."""
    return 0.0 if target is None else options.alpha * abs(target - tokens)


def split_options(options: JsonObject) -> tuple[SharedOptions, JsonObject]:
    """Split options into the checked options that every kind has and the rest, which belongs to the kind.

    Raises OperatorError("bad_environment") if a shared option is invalid.
    """
    shared = {name: value for name, value in options.items() if name in SharedOptions.model_fields}
    try:
        if "thinking_tags" in shared:  # JSON has no tuples
            shared["thinking_tags"] = tuple(shared["thinking_tags"])  # type: ignore[arg-type,assignment]
        checked = SharedOptions.model_validate(shared)
    except (ValidationError, TypeError) as error:
        wrong = explain(error, SharedOptions) if isinstance(error, ValidationError) else error
        raise build_refusal(f"the environment's options are invalid: {wrong}") from error
    return checked, {name: value for name, value in options.items() if name not in SharedOptions.model_fields}


def build_refusal(message: str) -> OperatorError:
    """Build the OperatorError("bad_environment") for an environment that cannot be built."""
    return OperatorError("bad_environment", message, fix="Correct the environment in the pool's parameters")


def refuse_options(kind: str, error: ValidationError, options: type[BaseModel]) -> OperatorError:
    """Build the OperatorError("bad_environment") for options of a kind that the class `options` refuses."""
    return build_refusal(f"the options of the environment {kind} are invalid: {explain(error, options)}")
