"""The thread of a jobs process that looks the validators up."""

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import app
from covey.chain.node_answers import Block

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


def build_context(refresh: Any) -> Any:
    chain = SimpleNamespace(
        note_head=lambda _: None, note_poll=lambda: None, refresh=refresh, is_static=True, active_validators=()
    )
    return SimpleNamespace(chain=chain, client=SimpleNamespace(get_block=lambda _: Block))


def test_look_at_validators__defect__ends_the_process_and_is_raised(monkeypatch: pytest.MonkeyPatch):
    ended, signals = threading.Event(), list[tuple[int, int]]()

    def kill(process: int, number: int) -> None:
        signals.append((process, number))
        ended.set()

    def fail(**_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(app.os, "kill", kill)
    with pytest.raises(KeyError, match="a defect"), app._look_at_validators(build_context(fail), wait_s=0.01):
        assert ended.wait(HANG_S)
    assert signals == [(os.getpid(), signal.SIGTERM)]


def test_look_at_validators__each_look__takes_no_older_ones(monkeypatch: pytest.MonkeyPatch):
    ages, seen = list[float](), threading.Event()

    def refresh(*, max_age_s: float) -> None:
        ages.append(max_age_s)
        if len(ages) == 3:
            seen.set()

    monkeypatch.setattr(app.os, "kill", lambda *_: pytest.fail("there is no defect"))
    with app._look_at_validators(build_context(refresh), wait_s=0.01):
        assert seen.wait(HANG_S)
    assert set(ages) == {0.0}
