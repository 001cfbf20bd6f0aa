"""Several environments in one pool, each with its own weight, prompts and rewards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from covey.environments.base import Environment, EnvironmentSpec, Grade, GradingPython, JsonObject, Prompt, Reply
from covey.environments.environment import build_refusal, refuse_options
from covey.environments.task_draws import draw_below
from covey.errors import OperatorError, ProtocolError

KIND = "mixture"
MAX_WEIGHT = 1 << 20
"""Maximum weight of one environment."""
TYPE_CHARACTERS = 64
"""Maximum length of the name of a type of tasks."""


class MixturePart(BaseModel):
    """One environment of a mixture. Example: {"weight": 3, "kind": "math", "options": {"dataset": "0x..."}}."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    weight: int = Field(gt=0, le=MAX_WEIGHT)
    """Weight of this environment. Its share of the prompts is its weight divided by the sum of all weights."""
    kind: str
    """Kind of the environment. A part of a mixture must not be a mixture."""
    options: dict[str, JsonValue] = {}
    """Options of the environment."""


class MixtureOptions(BaseModel):
    """Options of a spec of kind "mixture". Example: {"parts": [{"weight": 1, "kind": "math", ...}, ...]}."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    parts: list[MixturePart] = Field(min_length=1, max_length=64)
    """Environments of the mixture. Each prompt comes from one of them."""

    def list_specs(self) -> list[EnvironmentSpec]:
        """Return the specs of the parts."""
        return [EnvironmentSpec(kind=part.kind, options=part.options) for part in self.parts]

    def draw_part(self, draw: int) -> int:
        """Return the index of the part that a drawn integer selects by weight."""
        rest = draw_below("part", draw, sum(part.weight for part in self.parts))
        for number, part in enumerate(self.parts):
            rest -= part.weight
            if rest < 0:
                return number
        raise AssertionError("the weights of the mixture do not add up to their total")


def name_task_types(spec: EnvironmentSpec, draws: Iterable[int]) -> tuple[str, ...]:
    """Return the type of the task that each drawn integer selects. Example: ("math", "reasoning_gym:gcd", "math").

    A type is the kind of the environment, with its option `name` if it has one. No task is drawn, so a task that is
    replaced because its prompt is too long has the type of the first draw.
    """
    if spec.kind != KIND:
        name = _name_type(spec.kind, spec.options)
        return tuple(name for _ in draws)
    options = MixtureOptions.model_validate(dict(spec.options))
    names = [_name_type(part.kind, part.options) for part in options.parts]
    return tuple(names[options.draw_part(draw)] for draw in draws)


def list_parts(options: JsonObject) -> list[EnvironmentSpec]:
    """Return the specs of a mixture's parts. Raises OperatorError("bad_environment") for bad options."""
    return _check(options).list_specs()


def _check(options: JsonObject) -> MixtureOptions:
    try:
        checked = MixtureOptions.model_validate(dict(options))
    except ValidationError as error:
        raise refuse_options(KIND, error, MixtureOptions) from error
    if any(part.kind == KIND for part in checked.parts):
        raise build_refusal("a mixture contains another mixture")
    return checked


def _name_type(kind: str, options: JsonObject) -> str:
    name = options.get("name")
    return (f"{kind}:{name}" if isinstance(name, str) else kind)[:TYPE_CHARACTERS]


class MixtureEnvironment:
    """Mixture of environments. For each drawn integer, it selects a part by weight and uses that part's prompt."""

    def __init__(self, options: JsonObject, load: Callable[[EnvironmentSpec], Environment]) -> None:
        """Build the parts with `load`. Raises OperatorError("bad_environment") for bad options."""
        self._options = _check(options)
        self._parts = [load(spec) for spec in self._options.list_specs()]
        self._total = sum(part.weight for part in self._options.parts)

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of everything that the prompts and rewards of all parts depend on, by name."""
        return {name: version for part in self._parts for name, version in part.versions.items()}

    @property
    def requires_isolation(self) -> bool:
        """Whether any part executes code that a model wrote."""
        return any(part.requires_isolation for part in self._parts)

    @property
    def unopened_tags(self) -> frozenset[str]:
        """Thinking tags that the model's chat template must not open in the prompt, from all parts."""
        return frozenset[str]().union(*(part.unopened_tags for part in self._parts))

    @property
    def grading_python(self) -> GradingPython:
        """Interpreter and packages with which all parts are graded.

        Raises OperatorError("bad_environment") if the parts require different interpreters.
        """
        pythons = [part.grading_python for part in self._parts]
        interpreters = {python.interpreter for python in pythons}
        if len(interpreters) > 1:
            names = " and ".join(sorted(str(path or "Covey's own") for path in interpreters))
            raise OperatorError(
                "bad_environment",
                f"the environments of the mixture need different Python interpreters for grading: {names}",
                fix="Install the packages of all environments in one Python, for example with pip "
                "install covey[verifiers]",
            )
        packages = dict.fromkeys(name for python in pythons for name in python.packages)
        return GradingPython(interpreter=pythons[0].interpreter, packages=tuple(packages))

    @property
    def parts(self) -> Sequence[Environment]:
        """Environments of the mixture, in the order of the options."""
        return self._parts

    def prompt(self, draw: int) -> Prompt:
        """Return the training prompt of a drawn integer, from the part that the integer selects."""
        number = self._options.draw_part(draw)
        return self._mark(number, self._parts[number].prompt(draw))

    def identify(self, draw: int) -> JsonObject:
        """Return what identifies the prompt for a drawn integer: its part's index, and its identity in that part."""
        number = self._options.draw_part(draw)
        return {"part": number, "prompt": dict(self._parts[number].identify(draw))}

    def held_out(self, n: int) -> list[Prompt]:
        """Return at most `n` held-out prompts: the first ones of each environment, in proportion to its weight."""
        ends = [n * sum(p.weight for p in self._options.parts[: i + 1]) // self._total for i in range(len(self._parts))]
        starts = [0, *ends]
        return [
            self._mark(number, prompt)
            for number, part in enumerate(self._parts)
            for prompt in part.held_out(ends[number] - starts[number])
        ]

    def is_plain(self, reply: Reply) -> bool:
        """Return whether the part that the prompt comes from only compares strings to grade the reply."""
        part, inner = self._find_part(reply)
        return part.is_plain(inner)

    def grade(self, reply: Reply) -> Grade:
        """Grade a completion with the part that its prompt comes from."""
        part, inner = self._find_part(reply)
        return part.grade(inner)

    def has_answer(self, reply: Reply) -> bool:
        """Return whether the part that the prompt comes from finds an answer in the completion."""
        part, inner = self._find_part(reply)
        return part.has_answer(inner)

    def warm_up(self) -> None:
        """Load what the parts need for grading."""
        for part in self._parts:
            part.warm_up()

    def grade_wrong(self, reply: Reply) -> Grade:
        """Return the grade for a wrong answer, computed by the part that the prompt comes from."""
        part, inner = self._find_part(reply)
        return part.grade_wrong(inner)

    def _find_part(self, reply: Reply) -> tuple[Environment, Reply]:
        """Return the part that a reply's prompt comes from, and the reply with that part's verification data."""
        number, verification = reply.verification["part"], reply.verification["of_part"]
        if not isinstance(number, int) or not isinstance(verification, dict):
            raise ProtocolError(
                "malformed_grading",
                "the verification data of a reply does not say which environment of the mixture it belongs to",
            )
        return self._parts[number], replace(reply, verification=verification)

    def _mark(self, number: int, prompt: Prompt) -> Prompt:
        return replace(prompt, verification={"part": number, "of_part": dict(prompt.verification)})
