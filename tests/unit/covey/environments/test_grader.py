import pytest

from covey.environments import grader
from covey.environments.base import EnvironmentSpec, Grade, GradingPython
from covey.environments.grader import ANSWER_BYTES, GradingPool, is_explained_by_limit
from covey.environments.registry import DEMO, load
from covey.errors import OperatorError, ProtocolError
from covey.protocol.params import GradingParams
from covey.runtime.settings import SandboxSettings
from covey.sandbox import CallLimits, CallOutcome, SandboxError
from covey.sandbox.isolation import describe

pytestmark = pytest.mark.unit
LENGTHS = {"targets": [10], "alpha": 0.01}
ASKING = EnvironmentSpec(kind="reasoning_gym", options={"name": "chain_sum", **LENGTHS})
PLAIN = load(EnvironmentSpec(kind=DEMO.kind, options={**DEMO.options, **LENGTHS}))
ENVIRONMENT = load(ASKING)
LIMITS = GradingParams(cpu_seconds=2.0, memory_bytes=1 << 28, processes=7)


class Scripted:
    """A sandbox that returns scripted outcomes."""

    def __init__(self, function, **settings):
        self.function, self.settings, self.payloads = function, settings, []
        self.isolation = describe("limits")

    def run_many(self, payloads, *, attempts):
        assert attempts == 2  # one death or one slow process may be the machine's fault
        self.payloads += payloads
        return [self.outcomes.pop(0) for _ in payloads]


@pytest.fixture
def build(monkeypatch):
    monkeypatch.setattr(grader, "Sandbox", Scripted)

    def build(*outcomes, patience=1, environment=ENVIRONMENT, **settings):
        settings = SandboxSettings(grading_processes=3, **settings)
        pool = GradingPool(ASKING, environment, LIMITS, settings, patience=patience)
        pool._sandbox.outcomes = [
            CallOutcome(answer=each, cpu_seconds=0.5, peak_bytes=0)
            if isinstance(each, bytes)
            else CallOutcome(error=each, cpu_seconds=0.5, peak_bytes=0)
            for each in outcomes
        ]
        return pool

    return build


def build_replies(*texts):
    return [ENVIRONMENT.prompt(3).build_reply(text, finished=True, tokens=14) for text in texts]


@pytest.mark.parametrize("patience", [1, 4])
def test_pool__limits__are_those_of_the_parameters_times_the_patience(build, patience: int):
    sandbox = build(patience=patience)._sandbox
    assert sandbox.function == "covey.environments.grading_process:build"
    assert sandbox.settings["processes"] == 3
    assert sandbox.settings["limits"] == CallLimits(
        cpu_seconds=2.0 * patience,
        wall_seconds=12.0 * patience,
        memory_bytes=1 << 28,
        processes=7,
        output_bytes=ANSWER_BYTES,
    )


def test_grade__answers__become_grades_in_order(build):
    grades = build(b'{"reward": 0.5}', b'{"reward": 1.0}')(build_replies("a", "b"))
    assert grades == [Grade(reward=0.5, cpu_seconds=0.5), Grade(reward=1.0, cpu_seconds=0.5)]


def test_grade__siblings_with_the_same_answer__are_graded_once(build):
    pool = build(b'{"reward": 0.5}', b'{"reward": 1.0}')
    assert [grade.reward for grade in pool(build_replies("a", "b", "a", "a"))] == [0.5, 1.0, 0.5, 0.5]
    assert len(pool._sandbox.payloads) == 2


def test_grade__replies_that_are_only_compared__need_no_process(build):
    pool = build(environment=PLAIN)
    prompt = PLAIN.prompt(3)
    answer = prompt.text.splitlines()[0].split()[-1][::-1]
    replies = [prompt.build_reply(text, finished=True, tokens=14) for text in (answer, "b", answer)]
    assert [grade.reward for grade in pool(replies)] == pytest.approx([0.96, -0.04, 0.96])
    assert pool._sandbox.payloads == []


@pytest.mark.parametrize("code", ["sandbox_died", "sandbox_timeout", "sandbox_output"])
def test_grade__grader_dies_on_one_reply__that_answer_is_wrong_and_others_are_unaffected(build, code):
    """Four tokens too many cost 0.04, because a reply that ends by a limit must not earn more than a wrong answer."""
    dead, alive = build(SandboxError(code, "x"), b'{"reward": 0.96}')(build_replies("a", "b"))
    assert (dead.reward, dead.limit) == (pytest.approx(-0.04), code)
    assert (alive.reward, alive.limit) == (0.96, "")


@pytest.mark.parametrize(
    "answer",
    [
        ProtocolError("malformed_grading", "no"),
        b"",
        b"garbage",
        b"[]",
        b'{"reward": NaN}',
        b'{"reward": 1e400}',
        b'{"reward": 1e308}',
        b'{"reward": "1"}',
        b'{"reward": 1.0, "limit": "none"}',
        b'{"reward": 1.0, "more": 1}',
    ],
)
def test_grade__process_that_an_answer_has_taken_over__is_a_wrong_answer(build, answer):
    (grade,) = build(answer)(build_replies("a"))
    assert (grade.reward, grade.limit) == (pytest.approx(-0.04), "sandbox_died")


class Running:
    requires_isolation = True
    grading_python = GradingPython()


def test_pool__programs_on_the_last_level__are_refused_unless_the_operator_accepts_them(build):
    with pytest.raises(OperatorError, match="unisolated_programs") as caught:
        build(environment=Running())
    assert "allow_unisolated_programs" in caught.value.fix
    build(environment=Running(), allow_unisolated_programs=True)


@pytest.mark.parametrize(
    ("claimed", "found", "is_explained"),
    [
        (-0.04, Grade(reward=0.96, cpu_seconds=0.4), False),
        (-0.04, Grade(reward=0.96, cpu_seconds=0.5), True),  # 2 s on a machine four times slower
        (0.5, Grade(reward=0.96, cpu_seconds=1.9), False),
        (0.96, Grade(reward=-0.04, limit="sandbox_cpu", cpu_seconds=8.0), True),
        (0.96, Grade(reward=-0.04, cpu_seconds=7.9), False),
        (0.96, Grade(reward=-0.04, limit="sandbox_died", cpu_seconds=0.1), False),
    ],
)
def test_is_explained_by_limit__claim__only_if_a_limit_was_or_may_have_been_reached(claimed, found, is_explained):
    assert is_explained_by_limit(claimed, found, Grade(reward=-0.04), LIMITS) is is_explained
