import pytest

from covey.console.terminal import Moment, describe_duration, describe_time, quote

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
        assert str(Moment(1_700_000_000, 1_699_989_200)) == "2023-11-15 00:13:20 UTC, in 3 hours"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (119.4, "119 s"), (120, "2 minutes"), (7199, "120 minutes"), (7200, "2 hours")),
        *((172_799, "48 hours"), (172_800, "2 days"), (604_800, "7 days")),
    ],
)
def test_describe_duration__at_the_borders_of_units(seconds, text):
    assert describe_duration(seconds) == text


def test_describe_time__what_a_contract_does_not_know_yet__is_never():
    assert describe_time((1 << 256) - 1, now=5) == "never"
