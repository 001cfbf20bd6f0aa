"""Generators of the public package reasoning-gym as an environment with exact grades.

Item i of a generator uses `Random(seed + i)`, so neighbouring seeds share items and an index cannot split them:
the split is by a hash of the question.  Partial credit is found and exploited in training, so none is given.
"""

import hashlib
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from covey.environments.base import Prompt
from covey.environments.kept import unpack_kept
from covey.errors import OperatorError

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

Setting = bool | int | float | str

ITEMS = 9_000_000
"""Indices of one generator.  More than any pool draws, and small enough for every generator's arithmetic."""
HELD_OUT_PART = 8
"""One question in this many is held out."""
MAX_DRAWS = 200
"""Draws before a generator counts as having no training question; chance of a false alarm 8**-200."""
MAX_SCAN = 100
"""Items looked at per held-out question asked for, before the generator counts as too small."""
LENGTH_REQUEST = "Think for {target} tokens before you answer."
"""Last line of a prompt that has a target (the paper, section 4.1.2)."""

# Graders parse free text; these are what parsing raises.  Anything else is a defect and should be seen.
UNGRADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError)


class ReasoningGymOptions(BaseModel):
    """Options of a spec of kind "reasoning_gym".  Example: {"name": "spell_backward", "seed": 0}."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    """The generator."""
    config: dict[str, Setting | list[Setting]] = {}
    """Its settings; the rest have the generator's own defaults."""
    seed: int = 0
    targets: list[PositiveInt] = []
    """Lengths in tokens, of which each prompt draws one; empty: no length is asked for."""
    alpha: float = Field(default=0.0003, ge=0, allow_inf_nan=False)
    """Reward lost per token off the target (the paper, section 3.1.2)."""
    kept: str = ""
    """The training questions of which each prompt draws one (`kept.pack_kept`); question n is that of draw n without
    this option.  Empty: all there are.  The held-out split stays as it is."""


class ReasoningGymEnvironment:
    """One generator as an `Environment`.  Raises OperatorError for options that cannot be built."""

    def __init__(self, options: Mapping[str, object]) -> None:
        try:
            self._options = ReasoningGymOptions.model_validate(dict(options))
            self._kept = unpack_kept(self._options.kept)
        except ValueError as error:
            raise _refusal(f"the options of reasoning_gym do not fit: {error}") from error
        self._dataset = _create_dataset(self._options)

    def prompt(self, slot_hash: int) -> Prompt:
        """The training prompt of a drawn integer: redrawn from the same integer while the question is held out."""
        if slot_hash < 0:
            raise ValueError("slot_hash is negative")
        targets, kept = self._options.targets, self._kept
        number = kept[_draw("kept", slot_hash, 0, len(kept))] if kept else slot_hash
        for attempt in range(MAX_DRAWS):
            item = _draw("item", number, attempt, ITEMS)
            question = self._question(item)
            if not _is_held_out(question):
                target = targets[_draw("target", slot_hash, 0, len(targets))] if targets else None
                return _build_prompt(question, item, target)
        raise _refusal(f"{self._options.name} has no training question")

    def held_out(self, n: int) -> list[Prompt]:
        """The first `n` different held-out questions by index; targets go round in order."""
        targets = self._options.targets
        found: dict[str, Prompt] = {}
        for item in range(min(ITEMS, n * MAX_SCAN)):
            if len(found) == n:
                break
            question = self._question(item)
            if question not in found and _is_held_out(question):
                target = targets[len(found) % len(targets)] if targets else None
                found[question] = _build_prompt(question, item, target)
        if len(found) < n:
            raise _refusal(f"{self._options.name} has {len(found)} held-out questions, {n} were asked for")
        return list(found.values())

    def reward(self, prompt: Prompt, completion_text: str, *, finished: bool, completion_tokens: int) -> float:
        """1 if the generator's own score is exactly 1 and the completion ended by itself, else 0; then
        - alpha x abs(target - completion_tokens) where the prompt has a target (the paper, section 3.1.2)."""
        graded = 1.0 if finished and self._score(prompt.item, completion_text) == 1.0 else 0.0
        return graded - self._compute_cost(prompt.target, completion_tokens)

    def compute_length_cost(self, text: str, *, completion_tokens: int) -> float:
        """alpha x abs(target - completion_tokens), with the target that the last line of `text` asks for."""
        line = text.rstrip().rpartition("\n")[2]
        asked = (target for target in self._options.targets if line == LENGTH_REQUEST.format(target=target))
        return self._compute_cost(next(asked, None), completion_tokens)

    def example(self, prompt: Prompt) -> str:
        """The generator's answer to a prompt, for supervised examples."""
        return str(self._dataset[prompt.item]["answer"])

    def _compute_cost(self, target: int | None, completion_tokens: int) -> float:
        return 0.0 if target is None else self._options.alpha * abs(target - completion_tokens)

    def _question(self, item: int) -> str:
        return str(self._dataset[item]["question"])

    def _score(self, item: int, text: str) -> float:
        entry = self._dataset[item]
        try:
            return float(self._dataset.score_answer(text, entry))
        except UNGRADABLE:
            return 0.0


def _build_prompt(question: str, item: int, target: int | None) -> Prompt:
    text = question if target is None else f"{question}\n{LENGTH_REQUEST.format(target=target)}"
    return Prompt(text=text, item=item, target=target)


def _is_held_out(question: str) -> bool:
    return zlib.crc32(question.encode()) % HELD_OUT_PART == 0


def _draw(purpose: str, slot_hash: int, attempt: int, size: int) -> int:
    """An index below `size`; the bias of the remainder is below 2**-230."""
    digest = hashlib.sha256(f"covey.environment/{purpose}/{slot_hash:x}/{attempt}".encode()).digest()
    return int.from_bytes(digest, "big") % size


def _create_dataset(options: ReasoningGymOptions) -> "ProceduralDataset":
    from reasoning_gym.factory import DATASETS, create_dataset

    if options.name not in DATASETS:
        raise _refusal(f"reasoning-gym has no generator {options.name!r}")
    for key, value in options.config.items():
        # A pool's parameters are a stranger's: no generator shall open files of its choice on this machine.
        if any(isinstance(each, str) and ("/" in each or "\\" in each) for each in (value, *_listed(value))):
            raise _refusal(f"config {key!r} names a path")
    try:
        return create_dataset(options.name, seed=options.seed, size=ITEMS, **options.config)
    except (AssertionError, TypeError, ValueError) as error:
        raise _refusal(f"reasoning-gym refuses the config of {options.name!r}: {error}") from error


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _refusal(message: str) -> OperatorError:
    return OperatorError("bad_environment", message, fix="Correct the environment in the pool's parameters.")
