import contextlib
import io
import json
import sys
from pathlib import Path

import pytest
import structlog

from covey.runtime.log import configure, get_logger

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def clean_logger():
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_log__json__one_object_per_line_with_role_and_named_values(capsys):
    configure("worker", json=True)
    get_logger().info("task claimed", task=7)
    get_logger().warning("two\nlines")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["event"], first["task"], first["level"], first["role"]) == ("task claimed", 7, "info", "worker")
    assert first["timestamp"].endswith("Z")
    assert second["event"] == "two\nlines"


def test_log__line_and_its_end__are_one_write(monkeypatch):
    """A command that fails prints its error while another thread may log."""

    class Recorded(io.StringIO):
        def write(self, text):
            writes.append(text)
            return super().write(text)

    writes = []
    monkeypatch.setattr(sys, "stderr", Recorded())
    configure("origin", json=True)
    get_logger().info("x")
    assert [text[-1:] for text in writes] == ["\n"]


def test_log__disk_is_full__loses_lines_and_goes_on(tmp_path, monkeypatch):
    """A log line must not end the work that it is about."""
    with Path("/dev/full").open("w") as full, (tmp_path / "log").open("w") as log:
        configure("coordinator", json=True)
        for stream in (full, full, log):
            monkeypatch.setattr(sys, "stderr", stream)
            get_logger().warning("x" * 100_000 if stream is full else "y")
        with contextlib.suppress(OSError):
            full.flush()
    assert [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()] == ["y"]


def test_log__not_a_terminal__defaults_to_json(capsys):
    configure("relay")
    get_logger().error("x")
    assert json.loads(capsys.readouterr().err)["role"] == "relay"


@pytest.mark.parametrize(("level", "shown"), [("debug", 3), ("info", 2), ("warning", 1), ("ERROR", 0)])
def test_log__level__nothing_below_it(capsys, level, shown):
    configure("worker", level=level, json=True)
    for name in ("debug", "info", "warning"):
        getattr(get_logger(), name)("x")
    assert len(capsys.readouterr().err.splitlines()) == shown


def test_log__exception__is_formatted_into_its_line(capsys):
    configure("worker", json=True)
    try:
        raise ValueError("why")
    except ValueError:
        get_logger().exception("failed")
    assert "ValueError: why" in json.loads(capsys.readouterr().err)["exception"]


def test_log__standard_output__stays_empty(capsys):
    configure("worker", json=False)
    get_logger().info("x", value=1)
    assert capsys.readouterr().out == ""
