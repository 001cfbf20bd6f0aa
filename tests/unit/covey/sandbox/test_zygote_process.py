import pytest

from covey.errors import ProtocolError
from covey.sandbox import CallLimits, SandboxError
from covey.sandbox.zygote_messages import Cause, Ending
from covey.sandbox.zygote_process import _judge

pytestmark = pytest.mark.unit


def judge(written: bytes, cause: Cause = "exit", status: int = 0, *, is_over: bool = False):
    ending = Ending(cause=cause, status=status, cpu_seconds=0.5, peak_bytes=7, is_clean=True)
    return _judge(written, ending, CallLimits(), is_over=is_over)


def test_judge__answer__comes_with_cpu_time_and_peak_memory():
    outcome = judge(b"o42")
    assert (outcome.answer, outcome.error, outcome.cpu_seconds, outcome.peak_bytes) == (b"42", None, 0.5, 7)
    assert outcome.unwrap() == b"42"


@pytest.mark.parametrize(
    ("written", "cause", "status", "code"),
    [
        (b"", "exit", 0, "sandbox_died"),
        (b"?", "exit", 0, "sandbox_died"),
        (b"o42", "exit", 1, "sandbox_died"),  # half an answer
        (b"o42", "signal", 11, "sandbox_died"),
        (b"o42", "cpu", 0, "sandbox_cpu"),  # answered, but its children had used too much CPU time
        (b"o42", "wall", 9, "sandbox_timeout"),
        (b"o42", "memory", 9, "sandbox_memory"),
        (b"m", "exit", 0, "sandbox_memory"),
        (b"xMemoryMapping", "exit", 0, "sandbox_died"),
        (b"", "processes", 9, "sandbox_died"),
    ],
)
def test_judge__no_answer__is_the_error_of_its_cause(written: bytes, cause: Cause, status: int, code: str):
    outcome = judge(written, cause, status)
    assert outcome.answer is None
    assert isinstance(outcome.error, SandboxError)
    assert (outcome.error.code, outcome.error.is_limit) == (code, code != "sandbox_died")
    with pytest.raises(SandboxError):
        outcome.unwrap()


def test_judge__answer_too_long__wins_over_the_cause():
    error = judge(b"o" + bytes(99), "stopped", 9, is_over=True).error
    assert error is not None
    assert error.code == "sandbox_output"


def test_judge__protocol_error__is_passed_on():
    error = judge(b"rtoo_odd\none\ntwo").error
    assert isinstance(error, ProtocolError)
    assert (error.code, error.message) == ("too_odd", "one\ntwo")


def test_judge__name_of_an_exception__is_cut_to_letters_and_digits():
    error = judge(b"xEvil\n\x1b[31m" + b"a" * 500).error
    assert error is not None
    assert error.message == "the call raised an unexpected Evil31m" + "a" * 54
