"""Environments by kind: `load` builds one from the spec in a pool's parameters, `require_fingerprint` compares its
prompts with those that the pool was made with.

`build_grading` is the order for `grading.grade_json`, which grades in a process that may die (validator).
"""

import json
from collections.abc import Callable, Mapping

from covey.environments.base import Environment, EnvironmentSpec
from covey.environments.reasoning_gym import ReasoningGymEnvironment
from covey.errors import OperatorError
from covey.protocol import canonical
from covey.protocol.ids import Hash

KINDS: Mapping[str, Callable[[Mapping[str, object]], Environment]] = {"reasoning_gym": ReasoningGymEnvironment}

DEMO = EnvironmentSpec(
    kind="reasoning_gym",
    options={"name": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 5}},
)
"""The task that the shipped tiny model half knows."""
FINGERPRINT_DRAWS = 32
"""Prompts that a fingerprint covers; a library that changed changes nearly all of them."""


def load(spec: EnvironmentSpec) -> Environment:
    """The environment of a spec.  Raises OperatorError("bad_environment") if there is none such."""
    if spec.kind not in KINDS:
        raise OperatorError(
            "bad_environment",
            f"there is no environment of kind {spec.kind!r}",
            fix=f"Name one of {sorted(KINDS)} in the pool's parameters, or install the release that has it.",
        )
    return KINDS[spec.kind](spec.options)


def compute_fingerprint(environment: Environment) -> Hash:
    """SHA-256 over the canonical JSON {"prompts": [{"target", "text"}, ...]} of draws 0 .. 31."""
    prompts = [environment.prompt(draw) for draw in range(FINGERPRINT_DRAWS)]
    rows = [{"text": prompt.text, "target": prompt.target} for prompt in prompts]
    return canonical.sha256(canonical.to_bytes({"prompts": rows}))


def require_fingerprint(environment: Environment, expected: Hash) -> None:
    """Raise OperatorError("environment_differs") unless this machine's prompts are the pool's: a wrong prompt costs the
    stake, so a worker with another version must not start, and a validator with one must not judge."""
    found = compute_fingerprint(environment)
    if found != expected:
        raise OperatorError(
            "environment_differs",
            f"this machine's prompts have the fingerprint {found}, the pool's have {expected}",
            fix="Install the version of the environment's library (reasoning-gym) that the pool was made with",
        )


def build_grading(spec: EnvironmentSpec, items: list[tuple[int, str, bool, int]]) -> bytes:
    """The payload of `grading.grade_json` for (draw, text, finished, tokens) of each completion."""
    names = ("draw", "text", "finished", "tokens")
    rows = [dict(zip(names, item, strict=True)) for item in items]
    return json.dumps({"spec": {"kind": spec.kind, "options": dict(spec.options)}, "items": rows}).encode()
