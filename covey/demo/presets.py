"""Presets of the demo's environments: tasks, token limits, warm start and steps.

Main names: `Preset`, `find_preset`. Every preset except the default one has its own tiny model, which
`covey.demo.demo_models` creates. Data sets are built from `covey.demo.questions` and served like any other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from covey.demo.questions import Question, build_functions, build_sums
from covey.environments import mixture
from covey.environments.base import EnvironmentSpec
from covey.environments.registry import DEMO
from covey.errors import OperatorError
from covey.model.recipe import WarmStart

DEFAULT = f"reasoning_gym:{DEMO.options['name']}"
"""Name of the default preset. Its model is shipped with Covey."""
DIGITS = "0123456789"
TASK_AGNOSTIC_CHEATS = ("quantized", "likeliest-of-n", "partial-int8")
"""Cheats that need no knowledge of the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One environment, alone or in a mixture. Example: Part(kind="math", questions=partial(build_sums, 2400))."""

    kind: str
    """Environment kind."""
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    """Options of the environment without the digest of the data set."""
    questions: Callable[[], Sequence[Question]] | None = None
    """Function that builds the rows of the data set. None if the environment kind generates its own prompts."""
    weight: int = 1
    """Relative weight of the environment in a mixture."""

    def build_spec(self, folder: Path) -> EnvironmentSpec:
        """Write the data set to `folder`/KIND, and return the environment."""
        if self.questions is None:
            return EnvironmentSpec(kind=self.kind, options=self.options)
        return EnvironmentSpec(kind=self.kind, options={**self.options, "dataset": self._write(folder / self.kind)})

    def _write(self, folder: Path) -> str:
        from covey.tasks.dataset_row import Reading
        from covey.tasks.importing import import_rows
        from covey.tasks.sources import SourceRow

        assert self.questions is not None
        rows = (
            SourceRow(
                place=f"question {number}", values={"prompt": question.prompt, "verification_info": dict(question.info)}
            )
            for number, question in enumerate(self.questions())
        )
        return import_rows(rows, folder, Reading(task_type=self.kind)).digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Settings of the demo for one value of `--environment`."""

    name: str
    parts: tuple[Part, ...]
    """The only environment, or the environments of a mixture."""
    recipe: WarmStart | None
    """Warm start that creates the first policy. None means that the shipped model is used."""
    max_prompt_tokens: int = 64
    max_completion_tokens: int = 8
    steps: int = 24
    """Number of policies to train if `--steps` is not given."""
    groups_per_step: int = 16
    evaluation_prompts: int = 256
    """Number of held-out prompts in one evaluation. Two completions are sampled for each."""
    cheats: tuple[str, ...] = TASK_AGNOSTIC_CHEATS
    """Kinds of cheats, assigned to the dishonest workers in turn."""
    gain: float = 0.25
    """Required difference between the mean reward of the last three policies and the reward of the first policy."""
    gain_steps: int = 24
    """Number of policies after which the whole gain is required. A shorter run requires a proportional gain."""

    @property
    def has_data_sets(self) -> bool:
        """Whether tasks are drawn from data sets."""
        return any(part.questions is not None for part in self.parts)

    def build_spec(self, folder: Path) -> EnvironmentSpec:
        """Write the data sets below `folder`, and return the environment of the pool."""
        specs = [part.build_spec(folder) for part in self.parts]
        if len(specs) == 1:
            return specs[0]
        parts: list[JsonValue] = [
            {"weight": part.weight, "kind": spec.kind, "options": dict(spec.options)}
            for part, spec in zip(self.parts, specs, strict=True)
        ]
        return EnvironmentSpec(kind=mixture.KIND, options={"parts": parts})


def _build_all_sums() -> Sequence[Question]:
    return build_sums(2400)


def _build_all_functions() -> Sequence[Question]:
    return build_functions(1200)


_CHAIN_SUM: Mapping[str, JsonValue] = {
    "name": "chain_sum",
    "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}
_MATH = Part(kind="math", questions=_build_all_sums)
_CODE = Part(kind="code", questions=_build_all_functions)
PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name=DEFAULT,
            parts=(Part(kind=DEMO.kind, options=DEMO.options),),
            recipe=None,
            cheats=("quantized", "best-of-n", "partial-int8"),
            gain_steps=8,
        ),
        Preset(
            name="math",
            parts=(_MATH,),
            recipe=WarmStart(gate=0.6, clean_every=25, noise=0.35, symbols=DIGITS),
            max_completion_tokens=12,
            evaluation_prompts=128,
        ),
        Preset(
            name="code",
            parts=(_CODE,),
            recipe=WarmStart(
                gate=0.7, clean_min=100, clean_max=300, clean_every=25, gate_prompts=48, noisy_steps=50, noise=0.3,
                symbols=DIGITS,
            ),
            max_completion_tokens=36,
            groups_per_step=8,
            evaluation_prompts=48,
            steps=12,
            gain=0.05,
            gain_steps=12,
        ),
        Preset(
            name="mixture",
            parts=(_MATH, _CODE),
            recipe=WarmStart(
                gate=0.7, clean_max=400, clean_every=50, gate_prompts=64, noisy_steps=50, noise=0.3, symbols=DIGITS
            ),
            max_completion_tokens=36,
            groups_per_step=8,
            evaluation_prompts=64,
            steps=12,
            gain=0.1,
            gain_steps=12,
        ),
        Preset(
            name="reasoning_gym:chain_sum",
            parts=(Part(kind="reasoning_gym", options=_CHAIN_SUM),),
            recipe=WarmStart(noise=0.3, symbols=DIGITS),
            max_prompt_tokens=96,
            evaluation_prompts=16,
            gain=0.1,
        ),
    )
}  # fmt: skip


def find_preset(name: str) -> Preset:
    """Return the preset for a value of `--environment`.

    Raises OperatorError("bad_demo_environment") if there is none.
    """
    if name in PRESETS:
        return PRESETS[name]
    raise OperatorError(
        "bad_demo_environment",
        f"the demo has no task called {name!r}",
        fix=f"Use one of {', '.join(PRESETS)}, for example --environment math",
    )
