"""Processes of the benchmarks of verification: sums of their counts, and what misses its bar."""

import argparse
import json
import math
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import results
from benchmarks.measurement import Bar, Measurement
from benchmarks.verification import detection, exact, runner
from benchmarks.verification.runner import (
    VerificationBars,
    build_measurements,
    conclude,
    find_failures,
    get_path,
    run_all,
    run_one,
    scale_count,
)

pytestmark = pytest.mark.unit

BARS = VerificationBars(rates={"detection.a.": (0.999, 3000)}, sizes={"honest_windows": 30_000}, most={"cost": 0.3})
FULL = {"detection.a.int8": (1.0, 3000), "honest_windows": (30_000, 30_000), "cost": (0.3, 5), "false_rejects": (0, 9)}


def make_measurements(**changes: tuple[float, int]) -> list[Measurement]:
    return [Measurement(name=name, value=value, unit="", n=n) for name, (value, n) in (FULL | changes).items()]


def make_options(scale: float) -> argparse.Namespace:
    return argparse.Namespace(scale=scale, dtype=None, one=None)


@pytest.mark.parametrize(
    ("changes", "scale", "failure"),
    [
        ({}, 1.0, None),
        ({"detection.a.int8": (2996 / 3000, 3000)}, 1.0, "detection.a.int8 is 0.9987, below 0.999"),
        ({"detection.a.int8": (2997 / 3000, 3000)}, 1.0, None),
        ({"detection.a.int8": (299 / 300, 300)}, 0.1, None),
        ({"detection.a.int8": (298 / 300, 300)}, 0.1, "detection.a.int8 is 0.9933, below 0.999"),
        ({"detection.a.int8": (1.0, 2999)}, 1.0, "detection.a.int8 has an n of 2999, less than 3000"),
        ({"honest_windows": (29_999, 29_999)}, 1.0, "honest_windows has an n of 29999, less than 30000"),
        ({"detection.b.int8": (0.1, 10)}, 1.0, None),
        ({"until.b.int8": (math.nan, 10)}, 1.0, None),
        ({"detection.a.int8": (math.nan, 3000)}, 0.1, "detection.a.int8 is nan, below 0.999"),
        ({"exact.fp32.false_rejects": (1, 9)}, 0.1, "exact.fp32.false_rejects is 1, above 0"),
        ({"false_slashes": (2, 9)}, 1.0, "false_slashes is 2, above 0"),
        ({"forgery_passes.constant": (1, 9)}, 1.0, "forgery_passes.constant is 1, above 0"),
        ({"cost": (0.301, 5)}, 1.0, "cost is 0.301, above 0.3"),
    ],
)
def test_find_failures__one_changed_measurement__is_named_alone(
    changes: dict[str, tuple[float, int]], scale: float, failure: str | None
) -> None:
    assert find_failures(make_measurements(**changes), BARS, scale) == ([] if failure is None else [failure])


def test_find_failures__measurements_that_are_absent__are_named() -> None:
    bars = VerificationBars(rates={"detection.a.": (0.999, 3000)}, names=("detection.a.int4",), sizes={"windows": 9})
    assert find_failures(make_measurements(), bars, 0.1) == [
        "detection.a.int4 was not measured",
        "windows was not measured",
    ]


@pytest.mark.parametrize("bench", [detection, exact])
def test_bars__each_rate__is_that_of_a_name_that_must_be_present(bench: ModuleType) -> None:
    for prefix in bench.BARS.rates:
        assert any(name.startswith(prefix) for name in bench.BARS.names)


def test_build_measurements__counts__are_rates_or_counts_by_name() -> None:
    measurements = build_measurements({"token_match.fp32": [3, 4], "exact_false_rejects": [0, 7]})
    assert [(each.name, each.value, each.unit, each.n) for each in measurements] == [
        ("exact_false_rejects", 0, "count", 7),
        ("token_match.fp32", 0.75, "rate", 4),
    ]


@pytest.mark.parametrize(("count", "scale", "share"), [(150, 1.0, 150), (48, 0.1, 5), (3, 0.1, 1)])
def test_scale_count__a_share__is_at_least_one(count: int, scale: float, share: int) -> None:
    assert scale_count(count, scale) == share


def write(**hits: int) -> None:
    """Write the counts of the four processes, each of 10 windows."""
    for architecture in ("qwen2", "llama"):
        for dtype in ("float32", "bfloat16"):
            path = get_path("some", architecture, dtype)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"scale": 0.5, "counts": {name: [n, 10] for name, n in hits.items()}}))


def test_conclude__four_files__are_added_up_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bars = VerificationBars(rates={"detection.": (0.9, 100)})
    write(**{"detection.x": 10, "false_rejects": 0})
    cost = Measurement(name="cost", value=0.2, unit="", n=5)
    assert conclude("some", make_options(0.5), bars, [], lambda: [cost]) == 0
    measurements = results.read(Path("build/bench/some.json"))[1]["some"].measurements
    assert [(each.name, each.value, each.n, each.bar) for each in measurements] == [
        ("detection.x", 1.0, 40, Bar(least=0.9)),
        ("false_rejects", 0, 40, Bar(most=0)),
        ("cost", 0.2, 5, None),
    ]
    write(**{"detection.x": 8, "false_rejects": 0})
    assert conclude("some", make_options(0.5), bars, []) == 1


def test_conclude__files_of_another_scale_or_none__are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert conclude("some", make_options(1.0), BARS, []) == 1
    assert "qwen2-float32.json is missing. Run make bench NAME=some without --dtype." in capsys.readouterr().err
    write(honest_windows=10)
    assert conclude("some", make_options(1.0), BARS, []) == 1
    assert "has scale 0.5, not 1.0. Run its number format again." in capsys.readouterr().err
    assert not Path("build/bench/some.json").exists()


@pytest.mark.parametrize(("codes", "succeeded", "count"), [([0, 0, 0, 0], True, 4), ([0, 1], False, 2)])
def test_run_all__architectures_of_a_format_together__stop_after_a_failure(
    codes: list[int], succeeded: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def popen(command: list[str]) -> Any:
        commands.append(command)
        code = codes[len(commands) - 1]
        return SimpleNamespace(wait=lambda: code)

    monkeypatch.setattr(runner.subprocess, "Popen", popen)
    assert run_all("exact", make_options(0.1)) is succeeded
    assert len(commands) == count
    assert commands[1][1:] == ["-m", "benchmarks", "exact", "--scale", "0.1", "--dtype", "float32", "--one", "llama"]


def test_run_one__counts__go_to_the_file_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "prepare_process", lambda threads: None)
    options = argparse.Namespace(scale=0.1, dtype="bfloat16", one="llama")
    run_one("exact", options, lambda *values: {"-".join(map(str, values)): [1, 2]})
    values = json.loads(get_path("exact", "llama", "bfloat16").read_text())
    assert values == {"scale": 0.1, "counts": {"llama-bfloat16-0.1": [1, 2]}}
