"""Items of reasoning-gym's generators, which are the same in every process.

For most generators `open_items` creates items in this process. Items of the generators in `HASHED` depend on
the order of sets of strings, and so on the interpreter's hash seed. They are created in a sandbox process,
where that seed is 0 and no earlier item has changed any state. `REFUSED` lists the generators whose items
cannot be reproduced, or whose answers cannot be graded.
"""

import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import localcontext
from typing import Any, Protocol, cast

import numpy
from pydantic import BaseModel, ConfigDict, JsonValue

from covey.environments.environment import build_refusal
from covey.sandbox import CallLimits, Sandbox, SandboxError, is_inside

COMPOSITE = "composite"
"""Name of the generator that mixes several others."""
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
"""Generators whose items depend on the interpreter's hash seed."""
REFUSED: Mapping[str, str] = {
    "codeio": "creates different tasks in each run, because it runs programs that use random numbers without a seed",
    "propositional_logic": "accepts every statement that follows from its premises, such as a copy of the first one",
}
"""Generators that are refused, with the reason for each."""
# Exceptions that graders raise when they parse free text. Any other exception is a defect and must stay visible.
UNGRADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError)
_FACTORY = "covey.environments.kinds.reasoning_gym.reasoning_items:build_items"
_LIMITS = CallLimits(cpu_seconds=120.0, wall_seconds=600.0, memory_bytes=2 << 30)


class ReasoningGymOptions(BaseModel):
    """Options of kind "reasoning_gym". Example: {"name": "spell_backward", "seed": 0}."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    """Name of the generator. The generator "composite" mixes several, and its config is {"datasets": [{"name",
    "weight", "config"}, ...]}."""
    config: dict[str, JsonValue] = {}
    """Settings of the generator. The generator's defaults apply to all others."""
    seed: int = 0
    """Seed from which the generator's items are created."""


Entry = Mapping[str, Any]
"""One item as the generator returns it: "question", "answer" (None if it has none) and "metadata"."""


class Items(Protocol):
    """The items of one generator, accessed by index."""

    def __getitem__(self, item: int) -> Entry:
        """Return the item with index `item`."""

    def score_answer(self, answer: str, entry: Entry) -> float:
        """Return the generator's own score for an answer to an item, from 0 to 1."""


def open_items(options: ReasoningGymOptions, count: int) -> Items:
    """Open the first `count` items of a generator.

    Raises OperatorError("bad_environment") if this module or the package rejects the generator or its config.
    """
    items = _create(options, count)
    if is_inside() or not HASHED.intersection(list_generators(options)):
        return items
    return SandboxedItems(options, count)


@contextmanager
def preserve_globals() -> Iterator[None]:
    """Restore what generators change for the whole process: the decimal context and numpy's global random state.

    Without this, `decimal_arithmetic` would round every later Decimal of this thread to its own precision.
    """
    state = numpy.random.get_state()
    try:
        with localcontext():
            yield
    finally:
        numpy.random.set_state(state)


def list_generators(options: ReasoningGymOptions) -> set[str]:
    """Return the names of all generators involved: the configured one and, if it is a composite, its components."""
    parts = options.config.get("datasets") if options.name == COMPOSITE else None
    listed = parts if isinstance(parts, list) else []
    return {options.name} | {str(part.get("name")) for part in listed if isinstance(part, dict)}


class SandboxedItems:
    """Items that are created in a sandbox process, each in its own fork.

    The process starts when the first item is requested and ends with this object. Of an item's metadata it contains
    only the name of the generator, because not every generator's metadata can be written as JSON.
    """

    def __init__(self, options: ReasoningGymOptions, count: int) -> None:
        setup = json.dumps({"options": options.model_dump(), "count": count}).encode()
        self._name = options.name
        self._sandbox = Sandbox(_FACTORY, setup=setup, limits=_LIMITS)
        weakref.finalize(self, self._sandbox.close)

    def __getitem__(self, item: int) -> Entry:
        """Return the item with index `item`.

        Raises OperatorError("bad_environment") if the generator fails to create it.
        """
        return cast(Entry, self._ask({"item": item}))

    def score_answer(self, answer: str, entry: Entry) -> float:
        """Return the generator's score, or 0 if the generator cannot parse the answer."""
        return float(cast(float, self._ask({"item": entry["item"], "answer": answer})))

    def _ask(self, order: Mapping[str, JsonValue]) -> JsonValue:
        try:
            answer: JsonValue = json.loads(self._sandbox.call(json.dumps(order).encode(), attempts=2))
        except SandboxError as error:
            raise build_refusal(
                f"the reasoning-gym generator {self._name} failed to create item {order['item']}: {error}"
            ) from error
        return answer


def build_items(setup: bytes) -> Callable[[bytes], bytes]:
    """Build the function that serves `SandboxedItems` in the sandbox process.

    The function takes a request and returns an item or a score, both as JSON.
    """
    settings = json.loads(setup)
    items = _create(ReasoningGymOptions.model_validate(settings["options"]), settings["count"])

    def serve(payload: bytes) -> bytes:
        order = json.loads(payload)
        entry = items[order["item"]]
        if "answer" in order:
            try:
                return json.dumps(items.score_answer(order["answer"], entry)).encode()
            except UNGRADABLE:
                return b"0"
        answer = entry["answer"]
        item = {"item": order["item"], "question": str(entry["question"])}
        metadata = {"source_dataset": find_generator(settings["options"]["name"], entry)}
        return json.dumps(item | {"answer": None if answer is None else str(answer), "metadata": metadata}).encode()

    return serve


def find_generator(name: str, entry: Entry) -> str:
    """Return the name of the generator of an item, where `name` is the configured one, which may be a composite."""
    return str(entry["metadata"]["source_dataset"]) if name == COMPOSITE else name


def _create(options: ReasoningGymOptions, count: int) -> Items:
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import DATASETS, create_dataset

    if options.name not in DATASETS:
        raise build_refusal(f"reasoning-gym has no generator called {options.name!r}")
    for name in sorted(list_generators(options) & REFUSED.keys()):
        raise build_refusal(f"the reasoning-gym generator {name} {REFUSED[name]}")
    # Strangers write a pool's parameters, so no generator may open files that they name on this machine.
    if any("/" in text or "\\" in text for text in list_strings(options.config)):
        raise build_refusal(
            f"the config of the reasoning-gym generator {options.name!r} contains a path, which is not allowed"
        )
    config: dict[str, object] = dict(options.config)
    try:
        if options.name == COMPOSITE:
            parts = config.pop("datasets", None)
            if not isinstance(parts, list) or any(part["name"] == COMPOSITE for part in parts):
                raise build_refusal("the composite has no list called datasets, or the list contains another composite")
            config["datasets"] = [DatasetSpec(**({"config": {}} | part)) for part in parts]
        return cast(Items, create_dataset(options.name, seed=options.seed, size=count, **config))
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise build_refusal(f"reasoning-gym rejected the config of {options.name!r}: {error}") from error


def list_strings(value: object) -> Iterator[str]:
    """Yield all strings in a JSON value, including the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from list_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from list_strings(item)
