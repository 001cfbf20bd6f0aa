"""Tasks from generators of the package reasoning-gym: one generator, or a weighted composite of several.

Item i of a generator uses `Random(seed + i)`, so neighbouring seeds share items. Therefore a hash of the
question, not the index, decides the split. There is no partial credit, because training finds and exploits
it.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from typing import ClassVar, cast

from pydantic import ValidationError

from covey.environments.base import DataSets, JsonObject, Task, TaskSource
from covey.environments.environment import build_refusal, refuse_options
from covey.environments.kinds.reasoning_gym.reasoning_answers import is_right
from covey.environments.kinds.reasoning_gym.reasoning_items import (
    HASHED,
    UNGRADABLE,
    ReasoningGymOptions,
    find_generator,
    list_generators,
    open_items,
    preserve_globals,
)
from covey.environments.task_draws import draw_below, is_held_out

ITEMS = 9_000_000
"""Number of items of a generator. It exceeds what any pool draws, and every generator's arithmetic can handle
it.
"""
FEW_ITEMS: Mapping[str, int] = {"acre": 10_000, "word_ladder": 20_000}
"""Number of items by generator, for generators that build all items at once or do not allow `ITEMS` items."""
MAX_DRAWS = 200
"""Maximum number of draws for one training task.

If all draws are held-out tasks, the generator counts as having no training task. The probability that this is wrong is
8**-200.
"""
MAX_SCAN = 100
"""Maximum number of items examined per requested held-out question. A generator with too few of them fails."""
PLAIN = frozenset({"spell_backward"})
"""Generators that have their own scoring function, which only compares strings."""


class ReasoningGymSource(TaskSource):
    """Task source for one generator or a composite of generators."""

    extraction: ClassVar[str] = "whole"
    version: ClassVar[str] = "3"

    def __init__(self, options: JsonObject, data_sets: DataSets) -> None:
        """Open the generator. Raises OperatorError("bad_environment") if the generator or its config is rejected."""
        try:
            self._options = ReasoningGymOptions.model_validate(dict(options))
        except ValidationError as error:
            raise refuse_options("reasoning_gym", error, ReasoningGymOptions) from error
        names = list_generators(self._options)
        self._items = min((FEW_ITEMS[name] for name in names if name in FEW_ITEMS), default=ITEMS)
        self._dataset = open_items(self._options, self._items)
        self._held_out: dict[int, list[Task]] = {}

    @property
    def is_plain(self) -> bool:
        """Whether the generator only compares strings. Many generators parse an answer instead, and some evaluate it.

        Generators in `HASHED` create their items in a sandbox process, so their answers are graded in one too.
        """
        from reasoning_gym.dataset import ProceduralDataset

        if HASHED.intersection(list_generators(self._options)):
            return False
        has_own_score = type(self._dataset).score_answer is not ProceduralDataset.score_answer
        return self._options.name in PLAIN or not has_own_score

    def draw(self, number: int) -> Task:
        """Return the training task for a drawn integer. Items with held-out questions are skipped.

        Raises OperatorError("bad_environment") if `MAX_DRAWS` items in a row are held out.
        """
        for attempt in range(MAX_DRAWS):
            task = self._build_task(draw_below("item", number, self._items, attempt=attempt))
            if not is_held_out(task.question):
                return task
        raise build_refusal(f"the reasoning-gym generator {self._options.name} has no training tasks")

    def held_out(self, n: int) -> list[Task]:
        """Return the tasks of the first `n` distinct held-out questions that are found, in order of their index.

        They are kept, because an evaluation asks them again and finding one creates eight items.
        """
        if n not in self._held_out:
            self._held_out[n] = self._find_held_out(n)
        return list(self._held_out[n])

    def _find_held_out(self, n: int) -> list[Task]:
        tasks: dict[str, Task] = {}
        for item in range(min(self._items, n * MAX_SCAN)):
            if len(tasks) == n:
                break
            task = self._build_task(item)
            if is_held_out(task.question):
                tasks.setdefault(task.question, task)
        return list(tasks.values())

    def grade(self, verification: JsonObject, answer: str) -> float:
        """Return 1 if the answer is right (`reasoning_answers.is_right`), else 0."""

        def score(text: str) -> float:
            try:
                return float(self._dataset.score_answer(text, entry))
            except UNGRADABLE:
                return 0.0

        with preserve_globals():
            entry = self._dataset[cast(int, verification["item"])]
            generator = find_generator(self._options.name, entry)
            return float(is_right(answer, entry, generator=generator, score=score))

    def warm_up(self) -> None:
        """Create one item and score one answer, which loads what the generator needs.

        Generators in `HASHED` are skipped. They must grade in the state in which they create an item, which no
        earlier item has changed.
        """
        if not HASHED.intersection(list_generators(self._options)):
            with preserve_globals(), suppress(*UNGRADABLE):
                self._dataset.score_answer("0", self._dataset[0])

    def list_versions(self) -> Mapping[str, str]:
        """Return the versions of reasoning-gym and of sympy, which some generators use to grade."""
        return {name: metadata.version(name) for name in ("reasoning-gym", "sympy")}

    def find_answer(self, task: Task) -> str:
        """Return the generator's own answer to a task, for supervised examples."""
        with preserve_globals():
            return str(self._dataset[cast(int, task.verification["item"])]["answer"])

    def _build_task(self, item: int) -> Task:
        with preserve_globals():
            return Task(question=str(self._dataset[item]["question"]), verification={"item": item})
