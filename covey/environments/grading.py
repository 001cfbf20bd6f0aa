"""The grading process: `covey.sandbox` calls `build` once and its result for replies, bytes in and bytes out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, JsonValue, NonNegativeInt, TypeAdapter, ValidationError

from covey.environments.base import EnvironmentSpec, Grade, GradeLimit, Reply
from covey.environments.registry import load
from covey.errors import ProtocolError

FACTORY = "covey.environments.grading:build"
"""Where a sandbox finds `build`."""


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    verification: dict[str, JsonValue]
    target: NonNegativeInt | None
    text: str
    finished: bool
    tokens: NonNegativeInt


_REPLIES = TypeAdapter(list[_Reply])


def pack_spec(spec: EnvironmentSpec) -> bytes:
    """What `build` is given."""
    return json.dumps({"kind": spec.kind, "options": dict(spec.options)}).encode()


def pack_replies(replies: Sequence[Reply]) -> bytes:
    """What the function that `build` returns is given."""
    return json.dumps([{name: getattr(reply, name) for name in _Reply.model_fields} for reply in replies]).encode()


def unpack_grades(answer: bytes) -> list[Grade]:
    """The grades that a grading process answered with, in the order of the replies."""
    return [Grade(**grade) for grade in json.loads(answer)]


def build(setup: bytes) -> Callable[[bytes], bytes]:
    """A function that grades replies of a pool, from `pack_replies` to `unpack_grades`; `setup` is from `pack_spec`.

    The function raises ProtocolError("malformed_grading") for any other payload.
    Raises OperatorError("bad_environment") for the spec.
    """
    spec = json.loads(setup)
    environment = load(EnvironmentSpec(kind=spec["kind"], options=spec["options"]))
    environment.warm_up()

    def grade(reply: Reply) -> Grade:
        try:
            return environment.grade(reply)
        except GradeLimit as limit:
            return replace(environment.grade_wrong(reply), limit=limit.code)

    def grade_all(payload: bytes) -> bytes:
        grades = [grade(reply) for reply in _read_replies(payload)]
        return json.dumps([{"reward": g.reward, "parts": dict(g.parts), "limit": g.limit} for g in grades]).encode()

    return grade_all


def _read_replies(payload: bytes) -> list[Reply]:
    try:
        # Not validate_json: it cuts integers beyond 64 bits out of strict mode, and a task may hold them.
        checked = _REPLIES.validate_python(json.loads(payload))
    except (ValidationError, ValueError, RecursionError) as error:
        raise ProtocolError("malformed_grading", "the replies to be graded do not parse") from error
    return [Reply(**{name: getattr(each, name) for name in _Reply.model_fields}) for each in checked]
