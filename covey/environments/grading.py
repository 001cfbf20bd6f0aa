"""Grading for a process that may die: `covey.sandbox` runs `grade_json`, bytes in and bytes out, for the validator.

Nobody else imports this module: it loads the generators at once, so that the sandbox's clock and memory limit, which
start when the import is done, measure the grading alone.  A death counts against the input.
"""

import functools
import json

import reasoning_gym  # noqa: F401
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from covey.environments.base import Environment, EnvironmentSpec
from covey.environments.registry import load
from covey.errors import ProtocolError


class _Item(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    draw: NonNegativeInt
    text: str
    finished: bool
    tokens: NonNegativeInt


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    options: dict[str, object]


class _Grading(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    spec: _Spec
    items: list[_Item]


def grade_json(payload: bytes) -> bytes:
    """Rewards of many completions of training prompts.

    In: {"spec": {"kind", "options"}, "items": [{"draw", "text", "finished", "tokens"}, ...]}, where `draw` is the
    drawn integer of the prompt and `tokens` the completion's length.  Out: {"rewards": [...]}, in the same order.
    Raises ProtocolError("malformed_grading") for anything else, OperatorError("bad_environment") for the spec.
    """
    try:
        # Not model_validate_json: it cuts integers beyond 64 bits out of strict mode, and draws may be 256 bits.
        grading = _Grading.model_validate(json.loads(payload))
    except (ValidationError, ValueError, RecursionError) as error:
        raise ProtocolError("malformed_grading", "the grading order does not parse") from error
    environment = _load_once(grading.spec.kind, json.dumps(grading.spec.options, sort_keys=True))
    prompts = {draw: environment.prompt(draw) for draw in {item.draw for item in grading.items}}
    rewards = [
        environment.reward(prompts[item.draw], item.text, finished=item.finished, completion_tokens=item.tokens)
        for item in grading.items
    ]
    return json.dumps({"rewards": rewards}).encode()


@functools.lru_cache(maxsize=4)
def _load_once(kind: str, options: str) -> Environment:
    # A grading process serves one pool for hours, and building an environment costs more than grading a group.
    return load(EnvironmentSpec(kind=kind, options=json.loads(options)))
