"""The tiny models of the demo's environments. A supervised warm start creates each at its first run.

A model is stored in the user's cache folder, under a name that is derived from everything that determines it.
"""

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from covey.demo.presets import Part, Preset
from covey.environments.base import Environment, Prompt, Task, TaskSource
from covey.environments.environment import TaskEnvironment
from covey.environments.mixture import MixtureEnvironment
from covey.errors import OperatorError
from covey.model.recipe import WarmStart
from covey.protocol import canonical

RECIPE_VERSION = 1
"""Version of the warm start. Increase it when the resulting models change, so that they are created again."""
SEED = 1
MIN_REWARD, MAX_REWARD = 0.05, 0.75
"""Minimum and maximum reward of a first policy. In between it has something to learn from and room to improve."""
SAY_SECONDS = 5.0
"""Minimum time in seconds between two progress messages of a warm start."""
FOLDER = "demo-models"

Say = Callable[[str], None]


def find_cache() -> Path:
    """Return Covey's folder in the user's cache, below XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "covey"


def prepare_policy(preset: Preset, say: Say) -> Path | None:
    """Return the folder of a preset's first policy. Create the policy if it is not cached.

    Returns None if the preset uses the shipped policy. Raises OperatorError("no_folder") if the cache cannot be
    written, and OperatorError("warm_start_failed") if the tiny model's reward is not between MIN_REWARD and
    MAX_REWARD.
    """
    if preset.recipe is None:
        return None
    folder = find_cache() / FOLDER / compute_name(preset, preset.recipe)
    if folder.is_dir():
        say(f"using the model for {preset.name} in {folder}")
        return folder
    say(f"creating the model for {preset.name} by a warm start, once, in {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as name:
            draft = Path(name) / "policy"
            reward = make_policy(preset, preset.recipe, draft, say)
            _require_room(preset, reward)
            _put(draft, folder)
    except OSError as error:
        raise OperatorError(
            "no_folder",
            f"the demo's models cannot be written to {folder.parent}: {error.strerror or error}",
            fix="Set XDG_CACHE_HOME to a folder that you can write to",
        ) from error
    say(f"the model for {preset.name} has a mean reward of {reward:.3f} on held-out prompts at temperature 1")
    return folder


def compute_name(preset: Preset, recipe: WarmStart) -> str:
    """Return the name of a preset's model in the cache.

    It consists of the preset's name and a hash of its questions, completions, options and recipe.
    """
    parts = [
        {
            "kind": part.kind,
            "weight": part.weight,
            "options": dict(part.options),
            "questions": [[q.prompt, dict(q.info), q.answer] for q in part.questions()] if part.questions else None,
        }
        for part in preset.parts
    ]
    made_from = {
        "version": RECIPE_VERSION,
        "seed": SEED,
        "recipe": asdict(recipe),
        "parts": parts,
        "max_completion_tokens": preset.max_completion_tokens,
    }
    digest = canonical.sha256(canonical.to_bytes(made_from)).removeprefix("0x")
    return f"{preset.name.replace(':', '-')}-{digest[:16]}"


def make_policy(preset: Preset, recipe: WarmStart, folder: Path, say: Say) -> float:
    """Create the tiny model of a preset in `folder`, which must not exist. Return its reward on held-out prompts."""
    from covey.engines.hf.engine import prepare_process
    from covey.environments import registry
    from covey.environments.grader import GradingPool
    from covey.protocol.params import GradingParams
    from covey.runtime.settings import SandboxSettings
    from covey.tasks.catalog import DataSetCatalog
    from trainer.tiny_model import warm_start_policy

    prepare_process(threads=1)
    progress = _Progress(say)
    with tempfile.TemporaryDirectory(prefix="covey-warm-start-") as name:
        spec = preset.build_spec(Path(name))
        catalog = DataSetCatalog([Path(name)])
        environment = registry.load(spec, catalog)
        with GradingPool(spec, environment, GradingParams(), SandboxSettings()) as grade:
            return warm_start_policy(
                folder,
                seed=SEED,
                environment=environment,
                examples=list_examples(preset, environment),
                grade=grade,
                max_tokens=preset.max_completion_tokens,
                on_progress=progress.note,
                recipe=recipe,
                held_out=preset.evaluation_prompts,
            )


def list_examples(preset: Preset, environment: Environment) -> Iterator[tuple[str, str]]:
    """Yield pairs of a training prompt and a correct completion, without end.

    The environments of a mixture take turns in proportion to their weights.
    """
    parts = environment.parts if isinstance(environment, MixtureEnvironment) else [environment]
    solvers = [_Solver(part, of_spec) for part, of_spec in zip(preset.parts, parts, strict=True)]
    turns = [solver for part, solver in zip(preset.parts, solvers, strict=True) for _ in range(part.weight)]
    for draw in itertools.count(SEED << 32):
        yield turns[draw % len(turns)].solve(draw)


class _Solver:
    """Finds correct completions for the prompts of one environment."""

    def __init__(self, part: Part, environment: Environment) -> None:
        assert isinstance(environment, TaskEnvironment)
        self._environment = environment
        self._answers = {question.prompt: question.answer for question in part.questions()} if part.questions else None

    def solve(self, draw: int) -> tuple[str, str]:
        """Return the prompt for a draw number as raw text, and a correct completion."""
        prompt = self._environment.prompt(draw)
        return _write(prompt), self._find_answer(self._environment.source, self._environment.source.draw(draw))

    def _find_answer(self, source: TaskSource, task: Task) -> str:
        from covey.environments.kinds.reasoning_gym.reasoning_gym import ReasoningGymSource

        if self._answers is not None:
            return self._answers[task.question]
        assert isinstance(source, ReasoningGymSource)
        return source.find_answer(task)


class _Progress:
    """Reports the progress of a warm start at most once every SAY_SECONDS."""

    def __init__(self, say: Say) -> None:
        self._say, self._said = say, time.monotonic()

    def note(self, step: int, loss: float) -> None:
        if time.monotonic() - self._said >= SAY_SECONDS:
            self._said = time.monotonic()
            self._say(f"warm start: step {step}, loss {loss:.3f}")


def _write(prompt: Prompt) -> str:
    return f"{prompt.system}\n{prompt.text}" if prompt.system else prompt.text


def _require_room(preset: Preset, reward: float) -> None:
    if not MIN_REWARD <= reward <= MAX_REWARD:
        raise OperatorError(
            "warm_start_failed",
            f"after its warm start, the tiny model has a mean reward of {reward:.3f} on "
            f"{preset.name}, but the demo needs {MIN_REWARD} to {MAX_REWARD}",
            fix="Choose another task, for example --environment math",
        )


def _put(draft: Path, folder: Path) -> None:
    """Rename a finished model to its final name, unless a different process has already put the same model there."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(draft)
