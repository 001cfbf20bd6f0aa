import pytest

from covey.environments.base import EnvironmentSpec
from covey.environments.registry import DEMO, load
from covey.errors import OperatorError
from covey.grading import build_grader
from covey.sandbox import SandboxError

pytestmark = pytest.mark.unit
ASKING = EnvironmentSpec(kind=DEMO.kind, options={**DEMO.options, "targets": [10], "alpha": 0.01})
ENVIRONMENT = load(ASKING)


class Scripted:
    def __init__(self, *answers):
        self.answers, self.payloads, self.attempts = list(answers), [], []

    def call(self, payload, *, attempts):
        self.payloads.append(payload)
        self.attempts.append(attempts)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def build_replies(*texts):
    return [ENVIRONMENT.prompt(3).build_reply(text, finished=True, tokens=14) for text in texts]


def test_grade__answers__as_grades_in_order():
    sandbox = Scripted(b'{"reward": 0.5}', b'{"reward": 1.0}')
    found = build_grader(ASKING, ENVIRONMENT, sandbox)(build_replies("a", "b"))
    assert [grade.reward for grade in found] == [0.5, 1.0]
    assert sandbox.attempts == [2, 2]  # one slow child is the machine's fault


def test_grade__siblings_that_answer_alike__are_graded_once():
    sandbox = Scripted(b'{"reward": 0.5}', b'{"reward": 1.0}')
    found = build_grader(ASKING, ENVIRONMENT, sandbox)(build_replies("a", "b", "a", "a"))
    assert [grade.reward for grade in found] == [0.5, 1.0, 0.5, 0.5]
    assert len(sandbox.payloads) == 2


@pytest.mark.parametrize("code", ["sandbox_died", "sandbox_timeout", "sandbox_output"])
def test_grade__grader_dies_on_one_reply__is_a_wrong_answer_with_its_length_and_costs_no_other(code):
    """Four tokens too many cost 0.04: an end by a limit must not be worth more than a wrong answer."""
    sandbox = Scripted(SandboxError(code, "x"), b'{"reward": 0.96}')
    dead, alive = build_grader(ASKING, ENVIRONMENT, sandbox)(build_replies("a", "b"))
    assert (dead.reward, dead.limit) == (pytest.approx(-0.04), code)
    assert (alive.reward, alive.limit) == (0.96, "")


def test_grade__grader_does_not_start__is_not_the_inputs_fault():
    with pytest.raises(OperatorError):
        build_grader(ASKING, ENVIRONMENT, Scripted(OperatorError("sandbox_start", "x", fix="y")))(build_replies("a"))
