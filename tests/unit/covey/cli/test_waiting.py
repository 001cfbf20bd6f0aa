import pytest

from covey.cli import waiting
from covey.cli.waiting import Awaited, wait_for
from covey.errors import TransientError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("at", "pause"), [(None, 5), (90, 5), (103, 5), (112, 12), (160, 60), (100_000, 60)])
def test_choose_pause__by_hand__until_it_is_there_within_bounds(at, pause):
    assert Awaited(what="x", at=at, now=100).choose_pause() == pause


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(waiting, "MIN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "REPEAT_SECONDS", 0.0)


def awaited(what):
    return Awaited(what=what, at=None, now=0)


def test_wait_for__what_changes_and_errors_that_pass__are_said_until_it_is_there(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "MIN_PAUSE_SECONDS", 0.0)
    answers = [awaited("a"), awaited("a"), TransientError("away", "x\x1b[2J"), awaited("b"), "done"]

    def look():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert wait_for(look, seconds=60) == "done"
    assert capsys.readouterr().err.splitlines() == ["a", "away: x?[2J; retrying every 0 s", "b"]


def test_wait_for__long_wait__is_said_again(quick, capsys):
    answers = [awaited("a"), awaited("a"), None]
    assert wait_for(lambda: answers.pop(0), seconds=60) is None
    assert capsys.readouterr().err.splitlines() == ["a", "a"]


def test_wait_for__deadline__returns_what_is_awaited_or_raises(quick):
    assert wait_for(lambda: awaited("a"), seconds=0) == awaited("a")

    def fail():
        raise TransientError("away", "x")

    with pytest.raises(TransientError):
        wait_for(fail, seconds=0)
