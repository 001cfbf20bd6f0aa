import json

import pytest

from covey.errors import OperatorError
from covey.grading import build_grader
from covey.sandbox import SandboxError

pytestmark = pytest.mark.unit
PAYLOAD = json.dumps({"items": [1, 2, 3]}).encode()


class Scripted:
    def __init__(self, answer):
        self.answer, self.payloads, self.attempts = answer, [], []

    def call(self, payload, *, attempts):
        self.payloads.append(payload)
        self.attempts.append(attempts)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_grade__answers__as_rewards():
    sandbox = Scripted(b'{"rewards": [0.0, 0.5, 1.0]}')
    assert build_grader(sandbox)(PAYLOAD) == [0.0, 0.5, 1.0]
    assert sandbox.payloads == [PAYLOAD]
    assert sandbox.attempts == [2]  # one slow child is the machine's fault


@pytest.mark.parametrize("code", ["sandbox_died", "sandbox_timeout", "sandbox_output"])
def test_grade__grader_dies_on_the_input__earns_nothing(code):
    assert build_grader(Scripted(SandboxError(code, "x")))(PAYLOAD) == [0.0, 0.0, 0.0]


def test_grade__grader_does_not_start__is_not_the_inputs_fault():
    with pytest.raises(OperatorError):
        build_grader(Scripted(OperatorError("sandbox_start", "x", fix="y")))(PAYLOAD)
