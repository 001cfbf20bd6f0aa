"""The table of both schemes: what it counts of prepared replays, and what its measurements say."""

import math
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.verification import schemes
from benchmarks.verification.attacks import SUBMISSION
from benchmarks.verification.schemes import (
    BARS,
    CHEATS,
    CONFIRM_RATE,
    DRAWS,
    QUORUM,
    RULES,
    WHOLE_RATE,
    SchemeTable,
    build_table,
    compute_old_rate,
)
from covey.demo.cheats import Wrapped
from covey.protocol.params import PoolParams, VerificationParams
from covey.toploc.proofs import Distances
from validator.replay import RolloutDistances

pytestmark = pytest.mark.unit


class PreparedCounter:
    """Counter of submissions of 16 rows of 10 tokens, in which the first `false` rows lose a token by 100."""

    def __init__(self, *, ends_well: bool = True) -> None:
        self.counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.rules, self.name, self._ends_well = VerificationParams(), "test", ends_well
        self.worker = SimpleNamespace(build_submissions=self._build)

    def _build(self, requests: Sequence[Any], completions: Sequence[Any]) -> list[tuple[Any, ...]]:
        rows = [SimpleNamespace(prompt=(1, 2, i // 4), tokens=each.tokens) for i, each in enumerate(completions)]
        return [tuple(rows[start : start + SUBMISSION]) for start in range(0, len(rows), SUBMISSION)]

    def ends_well(self, rollouts: tuple[Any, ...]) -> bool:
        return self._ends_well

    def measure(self, rollouts: tuple[Any, ...]) -> list[RolloutDistances]:
        return [make_distances(is_false=row.tokens[0] == 9) for row in rollouts]

    def count(self, name: str, hits: float, n: int) -> None:
        self.counts[name][0] += int(hits)
        self.counts[name][1] += n


def make_distances(*, is_false: bool) -> RolloutDistances:
    window = Distances(sign_exponent_mismatches=0, mantissa_mean=0.0, mantissa_median=0.0, mantissa_rest=0.0)
    margins = np.full(10, 100.0 * is_false, np.float32)
    return RolloutDistances(windows=(window,), margins=margins, deviations=np.zeros(10), finished=False)


def make_completions(*, submissions: int, false: int) -> list[Any]:
    return [SimpleNamespace(tokens=(9 if i % SUBMISSION < false else 5,) * 10) for i in range(submissions * SUBMISSION)]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> SchemeTable:
    """A table that has counted honest work."""
    monkeypatch.setattr(schemes, "NODE_SUBMISSIONS", 5)
    counter: Any = PreparedCounter()
    table = SchemeTable(counter, "fp32")
    honest = make_completions(submissions=8, false=0)
    table.count("honest", [], honest, honest)
    return table


def count_cheat(table: SchemeTable, false: int, submissions: int = 8) -> dict[str, Any]:
    """Count a cheat with this number of false rows, and return the measurements of the table by name."""
    honest = make_completions(submissions=submissions, false=0)
    table.count("some", [], make_completions(submissions=submissions, false=false), honest)
    return {each.name: each for each in build_table(table.counter.counts)}


def test_count__honest_work__is_never_caught_and_sets_the_costs(table: SchemeTable) -> None:
    measurements = {each.name: each for each in build_table(table.counter.counts)}
    assert (measurements["caught.fp32.honest"].value, measurements["caught.fp32.honest"].n) == (0, 8)
    assert (measurements["nodes_above.fp32"].value, measurements["nodes_above.fp32"].n) == (0, 10)
    assert "until.fp32.honest" not in measurements
    # Three of 16 rows have 30 tokens and two to three of four prompts of three tokens; all have 160 and 12.
    assert 33 / 172 < measurements["rows_tokens.fp32"].value < 39 / 172
    assert measurements["old_rate.fp32"].value == compute_old_rate(measurements["rows_tokens.fp32"].value)


@pytest.mark.parametrize(("false", "share"), [(16, 1.0), (8, 0.9), (1, 0.1875), (0, 0.0)])
def test_count__false_rows__are_caught_as_often_as_three_of_16_hold_one(
    table: SchemeTable, false: int, share: float
) -> None:
    """The shares by hand are 1 - C(16 - false, 3) / C(16, 3), and the rest is caught by whole replays."""
    found = count_cheat(table, false)
    is_false = false > 0
    expected = share + (1 - share) * WHOLE_RATE * is_false
    assert found["caught.fp32.some"].value == pytest.approx(expected, abs=0.05)
    assert (found["caught.fp32.some"].value == expected) or 0 < false < 16
    old = compute_old_rate(found["rows_tokens.fp32"].value) * is_false
    assert found["caught.fp32.some"].peer.startswith(f"old {old:.1%}; whole {is_false:.0%}; rows ")
    if is_false:
        assert f"{false / 16:.0%} of completions changed" in found["caught.fp32.some"].peer
        assert found["until.fp32.some"].value == pytest.approx(1 / expected, rel=0.3)
        assert float(found["until.fp32.some"].peer.removeprefix("old ")) == pytest.approx(1 / old, rel=0.3)
    else:
        assert math.isnan(found["until.fp32.some"].value)
        assert found["until.fp32.some"].peer == "old none"


def test_count__cheap_checks_that_reject__catch_it_under_both_schemes(table: SchemeTable) -> None:
    table.counter._ends_well = False  # type: ignore[attr-defined]
    found = count_cheat(table, 16)
    assert found["caught.fp32.some"].value == 1
    assert found["caught.fp32.some"].peer.startswith("old 100.0%; whole 100%; rows 100.0%")
    assert (found["until.fp32.some"].value, found["until.fp32.some"].peer) == (1, "old 1.0")


def test_count__cheat_in_int8__says_how_many_are_found_within_ten(table: SchemeTable) -> None:
    """Rows never see what a whole replay sees, so a newcomer is found at once and others at the first whole replay."""
    table._rejects = lambda submission, rows: len(rows) == SUBMISSION  # type: ignore[method-assign]
    honest = make_completions(submissions=8, false=0)
    table.count("int8_last_2", [], honest, honest)
    found = {each.name: each for each in build_table(table.counter.counts)}
    within = found["within_10.fp32.int8_last_2"]
    old = compute_old_rate(found["rows_tokens.fp32"].value)
    assert within.value == pytest.approx(1 - (1 - WHOLE_RATE) ** 10, abs=0.2)
    assert within.peer.endswith("newcomer 100.0%")
    assert float(within.peer.split("%")[0].removeprefix("old ")) == pytest.approx(100 * (1 - (1 - old) ** 10), abs=15)


def test_build_table__other_counts__stay_as_they_are(table: SchemeTable) -> None:
    table.counter.counts["false_rejects"] = [0, 7]
    found = {each.name: each for each in build_table(table.counter.counts)}
    assert (found["false_rejects"].value, found["false_rejects"].unit, found["false_rejects"].n) == (0, "count", 7)
    assert not any(name.startswith("table.") for name in found)


def test_compute_old_rate__by_hand__costs_as_much_as_rows_and_a_few_whole_replays() -> None:
    new = 2 * 0.1 + 0.9 * 1.1 * 0.2  # a quorum of two for a tenth, one validator and some confirmations for the rest
    assert compute_old_rate(0.2) == pytest.approx(new / 2)
    assert (WHOLE_RATE, CONFIRM_RATE, RULES.audit_rows) == (0.1, 0.1, 3)
    assert PoolParams.model_fields["quorum"].default == QUORUM
    assert DRAWS >= 60


def test_cheats__each__builds_an_engine_in_both_formats_and_has_a_bar() -> None:
    for name, build in CHEATS.items():
        for dtype in ("float32", "bfloat16"):
            engine: Any = build(dtype)
            while isinstance(engine, Wrapped):
                engine = engine._engine
            assert engine._dtype == dtype, name
        assert f"caught.fp32.{name}" in BARS.names


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("caught.fp32.false_text_in_all", 1.0, None),
        ("caught.bf16.false_text_in_half", None, None),
        ("within_10.bf16.int8_last_2", 0.99, None),
        ("caught.bf16.honest", None, 0.0),
        ("nodes_above.bf16", None, 0.0),
    ],
)
def test_bars__name__has_the_limit_of_its_cheat(name: str, least: float | None, most: float | None) -> None:
    bar, _ = BARS.get(name)
    assert (bar.least if bar else None, bar.most if bar else None) == (least, most)
