"""Grading in a process that may die, the same for worker, validator and trainer."""

from collections.abc import Sequence
from dataclasses import replace

from covey.environments.base import Environment, EnvironmentSpec, Grade, Grader, Reply
from covey.environments.grading import pack_order, unpack_grade
from covey.log import get_logger
from covey.sandbox import ATTEMPTS, Sandbox, SandboxError


def build_grader(spec: EnvironmentSpec, environment: Environment, sandbox: Sandbox) -> Grader:
    """A grader of a pool's replies.  `environment`: that of `spec`, in this process.

    A reply whose grade ends by a limit, or by the death of its process, has the grade of a wrong answer.
    """

    def grade_one(reply: Reply, order: bytes) -> Grade:
        try:
            return unpack_grade(sandbox.call(order, attempts=ATTEMPTS))
        except SandboxError as error:
            get_logger().warning("a grade was ended", code=error.code)
            return replace(environment.grade_wrong(reply), limit=error.code)

    def grade(replies: Sequence[Reply]) -> Sequence[Grade]:
        found: dict[bytes, Grade] = {}
        orders = [pack_order(spec, reply) for reply in replies]
        for reply, order in zip(replies, orders, strict=True):
            if order not in found:  # siblings often answer alike
                found[order] = grade_one(reply, order)
        return [found[order] for order in orders]

    return grade
