"""Bars of claims, and how a benchmark ends."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.harness import Measurement, find_misses, finish

pytestmark = pytest.mark.unit


def make_claim(name: str, value: float) -> Measurement:
    return Measurement(name=name, value=value, unit="ratio", n=1)


def test_find_misses__values_at_and_beyond_their_bars__are_named_by_the_first_part_of_the_name() -> None:
    values = {"speed": 2.0, "speed.large": 1.9, "speed_by_cpu": 0.1, "size.large": 1.1, "size": 1.0, "other": 9.0}
    claims = [make_claim(name, value) for name, value in values.items()]
    assert find_misses(claims, least={"speed": 2.0}, most={"size": 1.0}) == [
        "speed.large is 1.900, below 2.0",
        "size.large is 1.100, above 1.0",
    ]
    assert find_misses(claims) == []


def test_find_misses__bar_with_the_whole_name__replaces_that_of_the_first_part() -> None:
    claims = [make_claim("speed.small", 1.9), make_claim("speed.large", 1.9), make_claim("size.small", 1.1)]
    assert find_misses(claims, least={"speed": 2.0, "speed.small": 1.8}, most={"size.small": 1.0}) == [
        "speed.large is 1.900, below 2.0",
        "size.small is 1.100, above 1.0",
    ]


def test_find_misses__no_number__reaches_no_bar() -> None:
    claims = [make_claim("speed", math.nan), make_claim("size", math.nan)]
    assert len(find_misses(claims, least={"speed": 0.0}, most={"size": 1.0})) == 2


@pytest.mark.parametrize("failures", [[], ["speed is 1.900, below 2.0"]])
def test_finish__claims__are_written_and_failures_told(
    failures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert finish("some", [make_claim("speed", 1.9)], failures) == len(failures)
    (claim,) = json.loads(Path("build/bench/some.json").read_text())["claims"]
    assert (claim["name"], claim["value"]) == ("speed", 1.9)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == failures
    assert "speed" in captured.out
