import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from covey.local.keeper import KeptProcess
from covey.local.screen import Screen

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
