"""Grades replies in sandbox processes, in the same way for worker, validator and trainer.

Replies that are graded by comparing strings need no sandbox. A machine that grades only such replies starts
no sandbox process. Limits count CPU seconds and are set by the pool's parameters. A role that checks a grade
allows `CHECKING_PATIENCE` times as much, so that no reward depends on the speed of a machine.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from covey.environments.base import Environment, EnvironmentSpec, Grade, Reply
from covey.environments.grading_process import FACTORY, pack_reply, pack_spec, unpack_grade
from covey.errors import OperatorError, ProtocolError
from covey.protocol.params import GradingParams
from covey.runtime.log import get_logger
from covey.runtime.settings import SandboxSettings
from covey.sandbox import ATTEMPTS, CallLimits, CallOutcome, Sandbox, SandboxError

CHECKING_PATIENCE = 4
"""CPU time limit of a role that checks a grade, as a multiple of the worker's limit."""
ANSWER_BYTES = 64 << 10
"""Maximum size in bytes of what a grading process returns for one reply."""


class GradingPool:
    """Grades the replies to one pool's prompts in processes that are kept warm.

    It is a `Grader`, and several threads may call it. Example: `with GradingPool(spec, environment,
    params.grading, settings) as grade: grades = grade(replies)`.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        environment: Environment,
        limits: GradingParams,
        settings: SandboxSettings,
        *,
        patience: int = 1,
    ) -> None:
        """Prepare the sandbox. `environment` must be built from `spec`, and `patience` multiplies the time limits.

        Raises OperatorError("unisolated_programs") if grading executes programs, this machine offers only resource
        limits, and the settings do not allow that.
        """
        self._environment = environment
        self._ended = Counter[str]()
        seconds = patience * limits.cpu_seconds
        whole = CallLimits.for_cpu(seconds, memory_bytes=limits.memory_bytes, output_bytes=ANSWER_BYTES)
        python = environment.grading_python
        self._sandbox = Sandbox(
            FACTORY,
            setup=pack_spec(spec),
            processes=settings.count_grading_processes(),
            limits=replace(whole, processes=limits.processes),
            isolation=settings.isolation,
            packages=python.packages,
            interpreter=python.interpreter,
        )
        if environment.requires_isolation and not settings.allow_unisolated_programs:
            self._require_isolation()

    def __call__(self, replies: Sequence[Reply]) -> list[Grade]:
        """Grade each reply in a sandbox process or, if that only compares strings, in this process.

        If a limit or the death of the process stops the grading, the reply gets the grade of a wrong answer with
        `Grade.limit` set. Raises TransientError or OperatorError if no process starts.
        """
        payloads = [pack_reply(reply) for reply in replies]
        distinct = dict(zip(payloads, replies, strict=True))  # siblings often give the same answer
        plain = {payload: reply for payload, reply in distinct.items() if self._environment.is_plain(reply)}
        grades = {payload: self._environment.grade(reply) for payload, reply in plain.items()}
        others = [payload for payload in distinct if payload not in plain]
        outcomes = self._sandbox.run_many(others, attempts=ATTEMPTS)
        for payload, outcome in zip(others, outcomes, strict=True):
            grades[payload] = self._read(outcome, distinct[payload])
        return [grades[payload] for payload in payloads]

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds that sandbox processes have used for grading so far."""
        return self._sandbox.cpu_seconds

    def close(self) -> None:
        """End the grading processes."""
        self._sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, outcome: CallOutcome, reply: Reply) -> Grade:
        try:
            grade = unpack_grade(outcome.unwrap())
        except SandboxError as error:
            grade = replace(self._environment.grade_wrong(reply), limit=error.code)
        except ProtocolError as error:  # an answer has taken over the process, or the process is another version
            get_logger().error("no grade from a grading process, the reply counts as wrong", error=str(error))
            grade = replace(self._environment.grade_wrong(reply), limit="sandbox_died")
        if grade.limit:
            self._ended[grade.limit] += 1
            seconds = round(outcome.cpu_seconds, 3)
            get_logger().warning(
                "grading of a reply stopped at a limit", code=grade.limit, cpu_seconds=seconds, ended=dict(self._ended)
            )
        return replace(grade, cpu_seconds=outcome.cpu_seconds)

    def _require_isolation(self) -> None:
        isolation = self._sandbox.isolation
        if isolation.level == "limits":
            raise OperatorError(
                "unisolated_programs",
                "the pool's tasks run programs written by a model, but this machine can only "
                "limit their resources, not isolate them",
                fix="Install covey[isolation] and check with covey doctor, or accept the risk with "
                "allow_unisolated_programs = true",
            )


def is_explained_by_limit(claimed: float, found: Grade, wrong: Grade, limits: GradingParams) -> bool:
    """Return whether a limit may explain why a claimed reward differs from the grade that the checking role found.

    That is so if the checking role reached its limit. It is also so if the claimed reward is that of a wrong
    answer and the grading took long. A worker's machine, which may be up to `CHECKING_PATIENCE` times slower, may
    then have reached its own limit. The death of a grading process is not a limit: an answer that kills the
    process does so on every machine, and is wrong.
    """
    is_slow = found.cpu_seconds >= limits.cpu_seconds / CHECKING_PATIENCE
    return found.limit not in {"", "sandbox_died"} or (is_slow and claimed == wrong.reward)
