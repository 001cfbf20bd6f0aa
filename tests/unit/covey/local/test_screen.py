import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from covey.local import screen as screens
from covey.local.keeper import KeptProcess
from covey.local.screen import STATUS_SECONDS, Screen, describe_alarms
from covey.protocol.api.public import PauseView, StatusView
from covey.protocol.learning_signs import LearningSign

pytestmark = pytest.mark.unit
EVIL = "\x1b]0;evil\x07\x1b[2J [bold]"
HARMLESS = "?]0;evil??[2J [bold]"


def build_console(*, is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=200, color_system=None)


def get_shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_say__what_a_terminal_obeys__is_gone(tmp_path: Path):
    console = build_console(is_terminal=False)
    Screen(console, tmp_path, None).say(f"worker ended with 1: {EVIL}")
    assert get_shown(console) == f"worker ended with 1: {HARMLESS}\n"


def test_show__last_line_of_a_log__is_shown_without_what_a_terminal_obeys(tmp_path: Path):
    log, console = tmp_path / "worker.log", build_console(is_terminal=True)
    log.write_text(f"{EVIL}\n")
    running: Any = SimpleNamespace(log=log, pid=77, exit_code=None)
    with Screen(console, tmp_path, None) as screen:
        screen.show([KeptProcess(name="worker", command="worker run", running=running)])
    assert HARMLESS in get_shown(console)
    assert "\x1b]0;" not in get_shown(console)
    assert "77" in get_shown(console)


def test_show__given_up__is_failed_with_its_error(tmp_path: Path):
    log, console = tmp_path / "worker.log", build_console(is_terminal=True)
    log.write_text("exiting\n")
    running: Any = SimpleNamespace(log=log, pid=77, exit_code=1)
    with Screen(console, tmp_path, None) as screen:
        kept = KeptProcess(name="worker", command="worker run", running=running, why="no_key: gone", is_given_up=True)
        screen.show([kept])
    assert "failed" in get_shown(console)
    assert "no_key: gone" in get_shown(console)
    assert "exiting" not in get_shown(console)


def build_status(*signs: LearningSign, reason: str = "") -> StatusView:
    return StatusView(
        pool=1,
        time=1_700_000_000,
        block=5,
        ended=False,
        settled=False,
        step=3,
        steps=(),
        tasks={},
        submissions={},
        reasons={},
        nodes={},
        validators={},
        execution_contracts={},
        epochs=(),
        signs=signs,
        pause=PauseView(since=1, reason=reason) if reason else None,
    )


def test_describe_alarms__signs_and_a_pause__name_the_setting_and_the_command(tmp_path: Path):
    assert describe_alarms(build_status(), tmp_path) == ()
    status = build_status(LearningSign.NO_LIVE_GROUP, LearningSign.TRUNCATED, reason="its operator has paused it")
    first, second, pause = describe_alarms(status, Path("mypool"))
    assert first.startswith("the run cannot learn: most completions are cut at the token limit. Create a pool with a ")
    assert "max_completion_tokens" in first
    assert second.startswith("the run cannot learn: no group has rewards that differ. Select tasks")
    assert pause == "the pool is paused: its operator has paused it. Resume with covey pool resume mypool"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_show__alarms_and_a_pause__are_said_once_when_they_begin_and_a_pause_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
):
    console, now = build_console(is_terminal=is_terminal), [1000.0]
    statuses = [
        build_status(),
        build_status(LearningSign.NO_ANSWER),
        build_status(LearningSign.NO_ANSWER),
        build_status(LearningSign.NO_ANSWER, reason=f"a reason{EVIL}"),
        build_status(LearningSign.NO_ANSWER, reason=f"a reason{EVIL}"),
        build_status(),
        build_status(),
    ]

    async def ask(url: str) -> StatusView:
        return statuses.pop(0)

    monkeypatch.setattr(screens, "_ask", ask)
    monkeypatch.setattr(screens.time, "monotonic", lambda: now[0])
    said: list[str] = []
    with Screen(console, tmp_path, "http://127.0.0.1:1") as screen:
        monkeypatch.setattr(screen, "say", said.append)
        while statuses:
            screen.show([])
            now[0] += STATUS_SECONDS
    alarm = "the run cannot learn: most finished completions contain no answer that can be extracted"
    assert [line.partition(". ")[0] for line in said if not line.startswith("pool 1, step 3")] == [
        alarm,
        f"the pool is paused: a reason{EVIL}",
        "new tasks go on",
    ]
    if is_terminal:
        assert f"a reason{HARMLESS}" in get_shown(console)
        assert "\x1b]0;" not in get_shown(console)


def test_show__restarting__is_shown_with_its_error_instead_of_its_last_line(tmp_path: Path):
    log, console = tmp_path / "trainer.log", build_console(is_terminal=True)
    log.write_text("starting once more\n")
    kept = KeptProcess(
        name="trainer",
        command="trainer run",
        running=SimpleNamespace(log=log, pid=77, exit_code=None),
        is_steady=False,
        why="bad_environment: too few rows",
    )
    with Screen(console, tmp_path, None) as screen:
        screen.show([kept])
    assert "restarting" in get_shown(console)
    assert "bad_environment: too few rows" in get_shown(console)
    assert "starting once more" not in get_shown(console)
