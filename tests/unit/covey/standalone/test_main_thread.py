"""The main thread of a notebook serves a run in another thread."""

import signal
import threading

import pytest

from covey.standalone.main_thread import MainThread

pytestmark = pytest.mark.unit


def interrupt(main: MainThread) -> None:
    """Send SIGINT to the main thread, which makes calls by now."""
    is_serving = threading.Event()
    main.post(is_serving.set)
    assert is_serving.wait(10)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_run_apart__function__runs_elsewhere_and_its_calls_here():
    main, seen = MainThread(), list[threading.Thread]()

    def function() -> threading.Thread:
        made = threading.Event()
        main.post(lambda: seen.append(threading.current_thread()))
        main.post(made.set)
        assert made.wait(10)
        return threading.current_thread()

    assert main.run_apart(function) is not threading.main_thread()
    assert seen == [threading.main_thread()]


def test_run_apart__interrupt__the_first_one_asks_for_the_end():
    main, stop = MainThread(), threading.Event()
    main.on_interrupt = stop.set

    def function() -> str:
        interrupt(main)
        assert stop.wait(10)
        return "ended"

    assert main.run_apart(function) == "ended"


def test_run_apart__interrupt_without_a_function_for_it__is_raised_at_once():
    main, left, ended = MainThread(), threading.Event(), threading.Event()
    main.on_leave = left.set

    def function() -> None:
        interrupt(main)
        if left.wait(10):  # nobody ends this if the main thread waits for the function first
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        main.run_apart(function)
    assert ended.wait(10)
