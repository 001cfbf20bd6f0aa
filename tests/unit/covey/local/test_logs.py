from pathlib import Path

import pytest

from covey.local import logs
from covey.local.logs import TAIL_BYTES, contains_since, read_error, read_last, read_last_lines, rotate

pytestmark = pytest.mark.unit


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker.log"


def test_read_last__of_a_long_log__reads_its_end_only(log: Path):
    log.write_bytes(b"x" * (10 * TAIL_BYTES) + b"\nlast but one\n\xff last \n\n")
    assert read_last(log) == "\ufffd last"
    assert read_last_lines(log, 2) == ["last but one", "\ufffd last"]
    assert len(read_last_lines(log, 5)[0]) < TAIL_BYTES


def test_read_last__empty__says_so(log: Path):
    log.touch()
    assert read_last(log) == f"{log} is empty"


def test_log__deleted_while_its_process_runs__is_empty(log: Path):
    rotate(log)
    assert not log.exists()
    assert read_last_lines(log, 5) == []
    assert not contains_since(log, 0, "worker started")


def test_has_said__since_the_start__also_in_a_log_that_was_cut(log: Path):
    log.write_text("worker started\n")
    begun = log.stat().st_size
    assert not contains_since(log, begun, "worker started")
    with log.open("a") as file:
        file.write("worker started\n")
    assert contains_since(log, begun, "worker started")
    log.write_text("runs\n")
    assert contains_since(log, begun, "runs")


def test_rotate__over_the_limit__moves_it_and_its_process_continues(log: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 10)
    older = log.with_name("worker.log.1")
    log.write_text("1234567890")
    rotate(log)
    assert not older.exists()
    with log.open("a") as output:  # as a process holds it
        output.write("1")
        output.flush()
        rotate(log)
        assert (log.read_text(), older.read_text()) == ("", "12345678901")
        output.write("later")
    assert log.read_text() == "later"
    log.write_text("another that is too long")
    rotate(log)
    assert older.read_text() == "another that is too long"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("starts\ncovey: bad_port: port 9 is taken\n", "bad_port: port 9 is taken"),
        ("covey: bad_port: port 9 is taken\nresource_tracker: 1 leaked\n", "bad_port: port 9 is taken"),
        ("Traceback (most recent call last):\n  x()\nValueError: no\n\nhint\n", "ValueError: no"),
        ("  raise\npydantic_core._pydantic_core.ValidationError: 1 error\nkind\n  Field required\n",
         "pydantic_core._pydantic_core.ValidationError: 1 error"),
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("Killed\n", "Killed"),
        ('{"event": "Error: "}\nlast\n', "last"),
    ],
)  # fmt: skip
def test_read_error__log_of_a_process_that_ended__is_the_line_with_the_error(log: Path, text: str, error: str):
    log.write_text(f"covey: old: of an earlier start\n{text}")
    assert read_error(log, len("covey: old: of an earlier start\n")) == error


def test_read_error__nothing_was_logged__says_so(log: Path):
    assert read_error(log, 0) == f"{log} is empty"
    log.write_text("covey: old: of an earlier start\n")
    assert read_error(log, log.stat().st_size) == f"{log} is empty"
