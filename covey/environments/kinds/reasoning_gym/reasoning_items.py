"""Items of reasoning-gym's generators, the same in every process.

`open_items` makes the items of most generators here.  Those of the generators in `HASHED` depend on the order of sets
of texts, and so on the interpreter's seed of hashes.  They are made in a sandbox process, where that seed is 0 and no
earlier item has changed anything.  `REFUSED` names the generators whose items no process can make twice.
"""

import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, cast

from pydantic import BaseModel, ConfigDict, JsonValue

from covey.environments.environment import build_refusal
from covey.sandbox import CallLimits, Sandbox, SandboxError, is_inside

COMPOSITE = "composite"
HASHED = frozenset(
    {
        "intermediate_integration",
        "isomorphic_strings",
        "knight_swap",
        "list_functions",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)
"""Generators whose items depend on the interpreter's seed of hashes."""
REFUSED: Mapping[str, str] = {"codeio": "it runs programs that draw random numbers without a seed"}
"""Generators whose items differ from run to run, and why."""
# Graders parse free text; these are what parsing raises.  Anything else is a defect and should be seen.
UNGRADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError)
_FACTORY = "covey.environments.kinds.reasoning_gym.reasoning_items:build_items"
_LIMITS = CallLimits(cpu_seconds=120.0, wall_seconds=600.0, memory_bytes=2 << 30)


class ReasoningGymOptions(BaseModel):
    """Options of kind "reasoning_gym".  Example: {"name": "spell_backward", "seed": 0}."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    """The generator. "composite" mixes several: its config is {"datasets": [{"name", "weight", "config"}, ...]}."""
    config: dict[str, JsonValue] = {}
    """Settings of the generator; the rest have the generator's own defaults."""
    seed: int = 0
    """Seed of the generator's items."""


Entry = Mapping[str, Any]
"""One item as the package makes it: "question", "answer" (None where the generator knows none) and "metadata"."""


class Items(Protocol):
    """Items of one generator by index."""

    def __getitem__(self, item: int) -> Entry:
        """The item of an index."""

    def score_answer(self, answer: str, entry: Entry) -> float:
        """The generator's own score of an answer to an item, from 0 to 1."""


def open_items(options: ReasoningGymOptions, count: int) -> Items:
    """The first `count` items of a generator.

    Raises OperatorError("bad_environment") for a generator or a config that is refused here or by the package.
    """
    items = _create(options, count)
    if is_inside() or not HASHED.intersection(list_generators(options)):
        return items
    return SandboxedItems(options, count)


def list_generators(options: ReasoningGymOptions) -> set[str]:
    """Names of the generators that take part: the one named, and the parts of a composite."""
    parts = options.config.get("datasets") if options.name == COMPOSITE else None
    listed = parts if isinstance(parts, list) else []
    return {options.name} | {str(part.get("name")) for part in listed if isinstance(part, dict)}


class SandboxedItems:
    """Items that a sandbox process makes, one fork for each.  The process starts at the first one and ends with this.

    An item has its index in place of the metadata, which not every generator has in JSON.
    """

    def __init__(self, options: ReasoningGymOptions, count: int) -> None:
        setup = json.dumps({"options": options.model_dump(), "count": count}).encode()
        self._name = options.name
        self._sandbox = Sandbox(_FACTORY, setup=setup, limits=_LIMITS)
        weakref.finalize(self, self._sandbox.close)

    def __getitem__(self, item: int) -> Entry:
        """Raises OperatorError("bad_environment") where the generator ends without an item."""
        return cast(Entry, self._ask({"item": item}))

    def score_answer(self, answer: str, entry: Entry) -> float:
        """The score, or 0 where the generator cannot read the answer."""
        return float(cast(float, self._ask({"item": entry["item"], "answer": answer})))

    def _ask(self, order: Mapping[str, JsonValue]) -> JsonValue:
        try:
            answer: JsonValue = json.loads(self._sandbox.call(json.dumps(order).encode(), attempts=2))
        except SandboxError as error:
            raise build_refusal(f"{self._name} does not make item {order['item']}: {error}") from error
        return answer


def build_items(setup: bytes) -> Callable[[bytes], bytes]:
    """The sandbox process's side of `SandboxedItems`: a function from an order to an item or a score, all in JSON."""
    told = json.loads(setup)
    items = _create(ReasoningGymOptions.model_validate(told["options"]), told["count"])

    def serve(payload: bytes) -> bytes:
        order = json.loads(payload)
        entry = items[order["item"]]
        if "answer" in order:
            try:
                return json.dumps(items.score_answer(order["answer"], entry)).encode()
            except UNGRADABLE:
                return b"0"
        answer = entry["answer"]
        made = {"item": order["item"], "question": str(entry["question"])}
        return json.dumps(made | {"answer": None if answer is None else str(answer)}).encode()

    return serve


def _create(options: ReasoningGymOptions, count: int) -> Items:
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import DATASETS, create_dataset

    if options.name not in DATASETS:
        raise build_refusal(f"reasoning-gym has no generator {options.name!r}")
    for name in sorted(list_generators(options) & REFUSED.keys()):
        raise build_refusal(f"the generator {name} makes other tasks in each run: {REFUSED[name]}")
    # A pool's parameters are a stranger's: no generator shall open files of its choice on this machine.
    if any("/" in text or "\\" in text for text in list_texts(options.config)):
        raise build_refusal(f"the config of {options.name!r} names a path")
    config: dict[str, object] = dict(options.config)
    try:
        if options.name == COMPOSITE:
            parts = config.pop("datasets", None)
            if not isinstance(parts, list) or any(part["name"] == COMPOSITE for part in parts):
                raise build_refusal("a composite lists its generators as datasets, and no composite among them")
            config["datasets"] = [DatasetSpec(**({"config": {}} | part)) for part in parts]
        return cast(Items, create_dataset(options.name, seed=options.seed, size=count, **config))
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise build_refusal(f"reasoning-gym refuses the config of {options.name!r}: {error}") from error


def list_texts(value: object) -> Iterator[str]:
    """All texts in a value of JSON, the keys of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from list_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from list_texts(each)
