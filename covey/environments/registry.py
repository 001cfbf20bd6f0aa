"""Environments by kind: `load` builds one from the spec in a pool's parameters.

`build_grading` is the order for `grading.grade_json`, which grades in a process that may die (validator).
"""

import json
from collections.abc import Callable, Mapping

from covey.environments.base import Environment, EnvironmentSpec
from covey.environments.reasoning_gym import ReasoningGymEnvironment
from covey.errors import OperatorError

KINDS: Mapping[str, Callable[[Mapping[str, object]], Environment]] = {"reasoning_gym": ReasoningGymEnvironment}

DEMO = EnvironmentSpec(
    kind="reasoning_gym",
    options={"name": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 5}},
)
"""The task that the shipped tiny model half knows."""


def load(spec: EnvironmentSpec) -> Environment:
    """The environment of a spec.  Raises OperatorError("bad_environment") if there is none such."""
    if spec.kind not in KINDS:
        raise OperatorError(
            "bad_environment",
            f"there is no environment of kind {spec.kind!r}",
            fix=f"Name one of {sorted(KINDS)} in the pool's parameters, or install the release that has it.",
        )
    return KINDS[spec.kind](spec.options)


def build_grading(spec: EnvironmentSpec, items: list[tuple[int, str, bool, int]]) -> bytes:
    """The payload of `grading.grade_json` for (draw, text, finished, tokens) of each completion."""
    names = ("draw", "text", "finished", "tokens")
    rows = [dict(zip(names, item, strict=True)) for item in items]
    return json.dumps({"spec": {"kind": spec.kind, "options": dict(spec.options)}, "items": rows}).encode()
