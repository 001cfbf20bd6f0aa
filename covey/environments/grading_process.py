"""The grading process: `covey.sandbox` calls `build` once, then calls the resulting function for each reply."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, NonNegativeInt, ValidationError

from covey.environments.base import EnvironmentSpec, Grade, GradeLimit, LimitCode, Reply
from covey.environments.registry import load
from covey.errors import ProtocolError

FACTORY = "covey.environments.grading_process:build"
"""Import path under which a sandbox finds `build`."""


MAX_REWARD = 1e6
"""Maximum absolute value of a grade's reward."""


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    verification: dict[str, JsonValue]
    target: NonNegativeInt | None
    text: str
    finished: bool
    tokens: NonNegativeInt


class _Grade(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    reward: float = Field(ge=-MAX_REWARD, le=MAX_REWARD)
    parts: dict[str, float] = {}
    limit: LimitCode | Literal[""] = ""


def pack_spec(spec: EnvironmentSpec) -> bytes:
    """Serialize a spec as the `setup` of `build`."""
    return json.dumps({"kind": spec.kind, "options": dict(spec.options)}).encode()


def pack_reply(reply: Reply) -> bytes:
    """Serialize a reply as the payload of the function that `build` returns."""
    return json.dumps({name: getattr(reply, name) for name in _Reply.model_fields}).encode()


def unpack_grade(answer: bytes) -> Grade:
    """Parse the grade that a grading process returned.

    Raises ProtocolError("malformed_grade") if it is not a grade: an answer that has taken over the process may
    send any bytes.
    """
    try:
        grade = _Grade.model_validate_json(answer)
    except ValidationError as error:
        raise ProtocolError("malformed_grade", "the output of a grading process is not a valid grade") from error
    return Grade(reward=grade.reward, parts=grade.parts, limit=grade.limit)


def build(setup: bytes) -> Callable[[bytes], bytes]:
    """Build the function that grades a pool's replies. `setup` is the output of `pack_spec`.

    The function takes the output of `pack_reply` and returns the input of `unpack_grade`. It raises
    ProtocolError("malformed_grading") for any other payload.
    Raises OperatorError("bad_environment") if the environment cannot be built.
    """
    spec = json.loads(setup)
    environment = load(EnvironmentSpec(kind=spec["kind"], options=spec["options"]))
    environment.warm_up()

    def grade(payload: bytes) -> bytes:
        reply = _read_reply(payload)
        try:
            result = environment.grade(reply)
        except GradeLimit as limit:
            result = replace(environment.grade_wrong(reply), limit=limit.code)
        return json.dumps({"reward": result.reward, "parts": dict(result.parts), "limit": result.limit}).encode()

    return grade


def _read_reply(payload: bytes) -> Reply:
    try:
        # Not validate_json, because its strict mode rejects integers beyond 64 bits, which a task may contain.
        checked = _Reply.model_validate(json.loads(payload))
    except (ValidationError, ValueError, RecursionError) as error:
        raise ProtocolError("malformed_grading", "the input of a grading process cannot be read") from error
    return Reply(**{name: getattr(checked, name) for name in _Reply.model_fields})
