"""Grading in a process that may die, the same for worker and validator."""

import json
from collections.abc import Callable, Sequence

from covey.log import get_logger
from covey.sandbox import ATTEMPTS, Sandbox, SandboxError


def build_grader(sandbox: Sandbox) -> Callable[[bytes], Sequence[float]]:
    """A function from the payload of `build_grading` to rewards; what ends every attempt at it earns nothing."""

    def grade(payload: bytes) -> Sequence[float]:
        try:
            rewards: list[float] = json.loads(sandbox.call(payload, attempts=ATTEMPTS))["rewards"]
        except SandboxError as error:
            get_logger().warning("grader died", code=error.code)
            return [0.0] * len(json.loads(payload)["items"])
        return rewards

    return grade
