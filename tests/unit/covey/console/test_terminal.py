import pytest

from covey.console.terminal import describe_time, quote

pytestmark = pytest.mark.unit


def test_quote__what_a_terminal_obeys__is_gone():
    assert quote("a\x1b[2Jb\u202ec\nd\x00é") == "a?[2Jb?c d?é"


def test_describe_time__in_local_time_with_the_seconds(monkeypatch):
    monkeypatch.setenv("TZ", "UTC-2")
    import time

    time.tzset()
    try:
        assert describe_time(1_700_000_000, now=1_699_999_903) == "2023-11-15 00:13:20 UTC, in 97 s"
        assert describe_time(1_700_000_000, now=1_700_000_005) == "2023-11-15 00:13:20 UTC, 5 s ago"
    finally:
        monkeypatch.undo()
        time.tzset()
