"""One write at a time, and nothing is written after a failure."""

import threading
from functools import partial

import pytest

from trainer.checkpoints.saver import Saver

pytestmark = pytest.mark.unit


def test_start__previous_write_runs__waits_for_it() -> None:
    saver, order, may_end = Saver(), list[str](), threading.Event()

    def write() -> None:
        assert may_end.wait(60)
        order.append("first")

    saver.start(write)
    saver.check()  # does not wait
    assert order == []
    threading.Timer(0.05, may_end.set).start()
    saver.start(lambda: order.append("second"))
    saver.close()
    assert order == ["first", "second"]


def test_saver__write_has_failed__every_call_raises_its_error_and_nothing_else_is_written() -> None:
    saver, has_run, later = Saver(), threading.Event(), list[str]()

    def fail() -> None:
        has_run.set()
        raise OSError("no space left")

    saver.start(fail)
    assert has_run.wait(60)
    start = partial(saver.start, lambda: later.append("written"))
    for call in (saver.wait, saver.check, start, saver.wait, saver.close):
        with pytest.raises(OSError, match="no space left"):
            call()
    assert later == []


def test_wait_for_policy__rest_is_being_written__does_not_wait_for_it() -> None:
    saver, order, may_end = Saver(), list[str](), threading.Event()

    def write_rest() -> None:
        assert may_end.wait(60)
        order.append("rest")

    saver.wait_for_policy()  # nothing was written yet
    saver.start(lambda: order.append("policy"), write_rest)
    saver.wait_for_policy()
    assert order == ["policy"]
    may_end.set()
    saver.close()
    assert order == ["policy", "rest"]


def test_start__policy_fails__the_rest_is_not_written() -> None:
    saver, order = Saver(), list[str]()

    def fail() -> None:
        raise OSError("no space left")

    saver.start(fail, lambda: order.append("rest"))
    for call in (saver.wait_for_policy, saver.wait, saver.close):
        with pytest.raises(OSError, match="no space left"):
            call()
    assert order == []
