"""A reward function of the user runs in the main thread, with a deadline."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from covey.environments.base import Grade, Reply
from covey.errors import OperatorError
from covey.standalone.main_thread import MainThread
from covey.standalone.user_grader import UserGrader

pytestmark = pytest.mark.unit


def build_reply(text: str) -> Reply:
    return Reply(verification={"prompt": f"What is {text}?"}, target=None, text=text, finished=True, tokens=1)


def grade_apart(function: Callable[[str], float], texts: list[str], *, seconds: float = 60.0) -> list[float]:
    """Grade in another thread, as a run in a notebook does, while this one makes the calls."""
    main = MainThread()
    grader = UserGrader(lambda replies: [Grade(reward=function(replies[0].text))], main.post, seconds=seconds)
    return main.run_apart(lambda: [grade.reward for grade in grader([build_reply(text) for text in texts])])


def test_grade__function_sets_an_alarm__works_in_the_main_thread():
    threads = []

    def function(text: str) -> float:
        threads.append(threading.current_thread())
        before = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 60)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        return float(text)

    assert grade_apart(function, ["1", "3"]) == [1.0, 3.0]
    assert threads == [threading.main_thread()] * 2
    assert signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL


def loop_without_end() -> None:
    while True:
        try:
            time.sleep(0.001)
        except Exception:  # a careless function hides every error
            continue


@pytest.mark.parametrize("function", [lambda: time.sleep(60), loop_without_end])
def test_grade__function_does_not_end__is_interrupted_and_the_row_is_named(function: Callable[[], object]):
    begun = time.monotonic()
    with pytest.raises(OperatorError, match=r"slow_reward: .* more than 0.01 s .* 'seven' of .* 'What is seven"):
        grade_apart(lambda _: float(bool(function())), ["seven"], seconds=0.01)
    assert time.monotonic() - begun < 10


def test_grade__function_raises__its_error_is_kept():
    def function(text: str) -> float:
        raise TimeoutError(text)

    with pytest.raises(TimeoutError, match="five"):
        grade_apart(function, ["five"])


def test_close__call_that_never_begins__is_cancelled():
    calls: list[Callable[[], None]] = []
    grader = UserGrader(lambda _: [Grade(reward=1.0)], calls.append, seconds=60)
    ended = []

    def ask() -> None:
        with pytest.raises(CancelledError):
            grader([build_reply("1")])
        ended.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.monotonic() + 10
    while not calls and time.monotonic() < deadline:
        time.sleep(0.001)
    grader.close()
    thread.join(timeout=10)
    assert ended == [True]
    calls[0]()  # the main thread comes too late, and nothing is called


def test_close__run_that_generates_on__later_calls_are_cancelled_too():
    calls: list[Callable[[], None]] = []
    grader = UserGrader(lambda _: [Grade(reward=1.0)], calls.append, seconds=60)
    grader.close()
    with ThreadPoolExecutor(max_workers=1) as generating:
        batch = generating.submit(grader, [build_reply("1")])
        try:
            assert isinstance(batch.exception(timeout=10), CancelledError)
        finally:
            for call in calls:
                call()
    assert not calls, "nobody makes the calls of a loop that has ended"


def test_grade__interrupt_in_the_function__the_call_is_made_again():
    main, stop, calls = MainThread(), threading.Event(), list[float]()
    main.on_interrupt = stop.set

    def function(replies: Sequence[Reply]) -> list[Grade]:
        calls.append(time.monotonic())
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return [Grade(reward=0.25)]

    grader = UserGrader(function, main.post, seconds=60)
    assert main.run_apart(lambda: grader([build_reply("1")])[0].reward) == 0.25
    assert stop.is_set(), "the run ends after its step"
    assert len(calls) == 2


def test_grade__second_interrupt_in_the_function__leaves_and_ends_the_wait():
    main, ended = MainThread(), threading.Event()

    def function(_: Sequence[Reply]) -> list[Grade]:
        raise KeyboardInterrupt

    grader = UserGrader(function, main.post, seconds=60)
    main.on_interrupt, main.on_leave = list, grader.close

    def generate() -> None:
        with pytest.raises(CancelledError):
            grader([build_reply("1")])
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        main.run_apart(generate)
    assert ended.wait(10)
