"""The grading process: `covey.sandbox` runs `grade_json`, bytes in and bytes out.  A death counts against the input."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, JsonValue, NonNegativeInt, ValidationError

from covey.environments.base import Environment, EnvironmentSpec, Grade, GradeLimit, Reply
from covey.environments.registry import load
from covey.errors import ProtocolError


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    verification: dict[str, JsonValue]
    target: NonNegativeInt | None
    text: str
    finished: bool
    tokens: NonNegativeInt


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    options: dict[str, JsonValue]


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    spec: _Spec
    reply: _Reply


def pack_order(spec: EnvironmentSpec, reply: Reply) -> bytes:
    """The payload of `grade_json`."""
    values = {name: getattr(reply, name) for name in _Reply.model_fields}
    return json.dumps({"spec": {"kind": spec.kind, "options": dict(spec.options)}, "reply": values}).encode()


def unpack_grade(answer: bytes) -> Grade:
    """The grade that `grade_json` answered with."""
    return Grade(**json.loads(answer))


def build(setup: bytes) -> Callable[[bytes], bytes]:
    """Factory of `grade_json` for a sandbox; `setup` is ignored."""
    return grade_json


def grade_json(payload: bytes) -> bytes:
    """Grade one reply, from `pack_order` to `unpack_grade`.

    Raises ProtocolError("malformed_grading") for another payload, OperatorError("bad_environment") for the spec.
    """
    try:
        # Not model_validate_json: it cuts integers beyond 64 bits out of strict mode, and items may hold them.
        order = _Order.model_validate(json.loads(payload))
    except (ValidationError, ValueError, RecursionError) as error:
        raise ProtocolError("malformed_grading", "the grading order does not parse") from error
    environment = _load_once(order.spec.kind, json.dumps(order.spec.options, sort_keys=True))
    reply = Reply(**{name: getattr(order.reply, name) for name in _Reply.model_fields})
    try:
        grade = environment.grade(reply)
    except GradeLimit as limit:
        grade = replace(environment.grade_wrong(reply), limit=limit.code)
    return json.dumps({"reward": grade.reward, "parts": dict(grade.parts), "limit": grade.limit}).encode()


@functools.lru_cache(maxsize=4)
def _load_once(kind: str, options: str) -> Environment:
    # A grading process serves one pool for hours, and building an environment costs more than grading an answer.
    return load(EnvironmentSpec(kind=kind, options=json.loads(options)))
