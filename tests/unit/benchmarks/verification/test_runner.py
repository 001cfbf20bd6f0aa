"""What becomes of counts: windows as rollouts of their own, sums over processes, and what falls short of its bar."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.harness import Measurement
from benchmarks.verification import detection, exact
from benchmarks.verification.runner import VerificationBars, build_claims, conclude, find_failures, get_path, split
from covey.toploc.proofs import Distances
from validator.replay import RolloutDistances

pytestmark = pytest.mark.unit

BARS = VerificationBars(rates={"detection.a.": (0.999, 3000)}, sizes={"honest_windows": 30_000}, most={"cost": 0.3})
FULL = {"detection.a.int8": (1.0, 3000), "honest_windows": (30_000, 30_000), "cost": (0.3, 5), "false_rejects": (0, 9)}


def make_claims(**changes: tuple[float, int]) -> list[Measurement]:
    return [Measurement(name=name, value=value, unit="", n=n) for name, (value, n) in (FULL | changes).items()]


def test_split__two_windows_of_a_finished_rollout__the_last_one_is_finished() -> None:
    windows = tuple(
        Distances(sign_exponent_mismatches=i, mantissa_mean=0.0, mantissa_median=0.0, mantissa_rest=0.0)
        for i in range(2)
    )
    both = RolloutDistances(
        windows=windows, margins=np.arange(40, dtype=np.float32), deviations=np.arange(40.0), finished=True
    )
    first, last = split(both)
    assert [each.windows for each in (first, last)] == [windows[:1], windows[1:]]
    assert (first.tokens, last.tokens, first.finished, last.finished) == (32, 8, False, True)
    assert (first.margins[-1], last.margins[0], last.deviations[0]) == (31, 32, 32)


@pytest.mark.parametrize(
    ("changes", "scale", "told"),
    [
        ({}, 1.0, None),
        ({"detection.a.int8": (2996 / 3000, 3000)}, 1.0, "detection.a.int8 is 0.9987, below 0.999"),
        ({"detection.a.int8": (2997 / 3000, 3000)}, 1.0, None),
        ({"detection.a.int8": (299 / 300, 300)}, 0.1, None),
        ({"detection.a.int8": (298 / 300, 300)}, 0.1, "detection.a.int8 is 0.9933, below 0.999"),
        ({"detection.a.int8": (1.0, 2999)}, 1.0, "detection.a.int8 has an n of 2999 only"),
        ({"honest_windows": (29_999, 29_999)}, 1.0, "honest_windows has an n of 29999 only"),
        ({"detection.b.int8": (0.1, 10)}, 1.0, None),
        ({"exact.fp32.false_rejects": (1, 9)}, 0.1, "exact.fp32.false_rejects is 1, not 0"),
        ({"false_slashes": (2, 9)}, 1.0, "false_slashes is 2, not 0"),
        ({"forgery_passes.constant": (1, 9)}, 1.0, "forgery_passes.constant is 1, not 0"),
        ({"cost": (0.301, 5)}, 1.0, "cost is 0.301, over 0.3"),
    ],
)
def test_find_failures__one_claim_changed__is_named_alone(
    changes: dict[str, tuple[float, int]], scale: float, told: str | None
) -> None:
    assert find_failures(make_claims(**changes), BARS, scale) == ([] if told is None else [told])


def test_find_failures__claims_that_are_not_there__are_named() -> None:
    bars = VerificationBars(rates={"detection.a.": (0.999, 3000)}, names=("detection.a.int4",), sizes={"windows": 9})
    assert find_failures(make_claims(), bars, 0.1) == ["detection.a.int4 was not measured", "windows was not measured"]


@pytest.mark.parametrize("bench", [detection, exact])
def test_bars__rates__are_of_claims_that_must_be_there(bench: ModuleType) -> None:
    for prefix in bench.BARS.rates:
        assert any(name.startswith(prefix) for name in bench.BARS.names)


def test_build_claims__rates_and_counts__by_name() -> None:
    claims = build_claims({"token_match.fp32": [3, 4], "exact_false_rejects": [0, 7]})
    assert [(each.name, each.value, each.unit, each.n) for each in claims] == [
        ("exact_false_rejects", 0, "count", 7),
        ("token_match.fp32", 0.75, "rate", 4),
    ]


def write(**hits: int) -> None:
    """What the four processes counted, each 10 windows."""
    for architecture in ("qwen2", "llama"):
        for dtype in ("float32", "bfloat16"):
            path = get_path("some", architecture, dtype)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"scale": 0.5, "counts": {name: [n, 10] for name, n in hits.items()}}))


def test_conclude__four_files__are_summed_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bars = VerificationBars(rates={"detection.": (0.9, 100)})
    write(**{"detection.x": 10, "false_rejects": 0})
    extra = Measurement(name="cost", value=0.2, unit="", n=5)
    assert conclude("some", 0.5, bars, lambda: [extra]) == 0
    told = json.loads(Path("build/bench/some.json").read_text())["claims"]
    assert [(each["name"], each["value"], each["n"]) for each in told] == [
        ("detection.x", 1.0, 40),
        ("false_rejects", 0, 40),
        ("cost", 0.2, 5),
    ]
    write(**{"detection.x": 8, "false_rejects": 0})
    assert conclude("some", 0.5, bars) == 1


def test_conclude__files_of_another_scale__are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(honest_windows=10)
    assert conclude("some", 1.0, BARS) == 1
    assert "is of scale 0.5, not 1.0: run that one again" in capsys.readouterr().err
    assert not Path("build/bench/some.json").exists()
