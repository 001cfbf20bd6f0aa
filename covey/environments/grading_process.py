"""The grading process: `covey.sandbox` calls `build` once and its result for each reply, bytes in and bytes out."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, NonNegativeInt, ValidationError

from covey.environments.base import EnvironmentSpec, Grade, GradeLimit, LimitCode, Reply
from covey.environments.registry import load
from covey.errors import ProtocolError

FACTORY = "covey.environments.grading_process:build"
"""Where a sandbox finds `build`."""


MOST_REWARD = 1e6
"""Largest reward and cost that a grade may have."""


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    verification: dict[str, JsonValue]
    target: NonNegativeInt | None
    text: str
    finished: bool
    tokens: NonNegativeInt


class _Grade(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    reward: float = Field(ge=-MOST_REWARD, le=MOST_REWARD)
    parts: dict[str, float] = {}
    limit: LimitCode | Literal[""] = ""


def pack_spec(spec: EnvironmentSpec) -> bytes:
    """What `build` is given."""
    return json.dumps({"kind": spec.kind, "options": dict(spec.options)}).encode()


def pack_reply(reply: Reply) -> bytes:
    """What the function that `build` returns is given."""
    return json.dumps({name: getattr(reply, name) for name in _Reply.model_fields}).encode()


def unpack_grade(answer: bytes) -> Grade:
    """The grade that a grading process answered with; raise ProtocolError("malformed_grade").

    A grader that an answer has taken over may answer with anything.
    """
    try:
        found = _Grade.model_validate_json(answer)
    except ValidationError as error:
        raise ProtocolError("malformed_grade", "the answer of a grading process is not a grade") from error
    return Grade(reward=found.reward, parts=found.parts, limit=found.limit)


def build(setup: bytes) -> Callable[[bytes], bytes]:
    """A function that grades replies of a pool, from `pack_reply` to `unpack_grade`; `setup` is from `pack_spec`.

    The function raises ProtocolError("malformed_grading") for any other payload.
    Raises OperatorError("bad_environment") for the spec.
    """
    spec = json.loads(setup)
    environment = load(EnvironmentSpec(kind=spec["kind"], options=spec["options"]))
    environment.warm_up()

    def grade(payload: bytes) -> bytes:
        reply = _read_reply(payload)
        try:
            found = environment.grade(reply)
        except GradeLimit as limit:
            found = replace(environment.grade_wrong(reply), limit=limit.code)
        return json.dumps({"reward": found.reward, "parts": dict(found.parts), "limit": found.limit}).encode()

    return grade


def _read_reply(payload: bytes) -> Reply:
    try:
        # Not validate_json: it cuts integers beyond 64 bits out of strict mode, and a task may hold them.
        checked = _Reply.model_validate(json.loads(payload))
    except (ValidationError, ValueError, RecursionError) as error:
        raise ProtocolError("malformed_grading", "the reply to be graded does not parse") from error
    return Reply(**{name: getattr(checked, name) for name in _Reply.model_fields})
