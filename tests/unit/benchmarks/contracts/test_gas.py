"""Measurements of gas from given figures, and the comparison with the baseline.

`make gas` runs the benchmark itself, with `gas_fixture`, in every check.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.contracts.gas import AIMS, build_measurements, find_growth
from benchmarks.measurement import find_misses

pytestmark = pytest.mark.unit

GAS = {
    "EpochLedger.post": 40_960,
    "EpochLedger.claim": 60_001,
    "EpochLedger.challengeOmission": 75_000,
    "SlashingCourt.propose": 110_000,
    "SlashingCourt.veto": 40_000,
    "SlashingCourt.execute": 80_000,
    "TestToken.approve": 46_329,
}


def make_fixture(**changes: Any) -> Any:
    values = {
        "gas": GAS,
        "first": GAS | {"EpochLedger.claim": 95_001},
        "filling_post": 75_705,
        "answer": 30_404.5,
        "run_post": 50_000,
        "claims": [60_000] * 300,
    }
    return SimpleNamespace(**{**values, **changes})


def test_build_measurements__figures__are_divided_by_submissions_and_contributors() -> None:
    measurements = {each.name: each for each in build_measurements(make_fixture())}
    assert measurements["post_gas_per_submission"].value == 10
    assert measurements["run_gas_per_submission"].value == pytest.approx((50_000 + 300 * 60_000) / 4096)
    assert measurements["claim_gas_of_300_contributors"].value == 60_000
    assert measurements["answer_gas_per_receipt"].value == 30_404.5
    assert measurements["TestToken.approve"].value == 46_329
    assert "EpochLedger.post" not in measurements
    assert AIMS.keys() <= measurements.keys()


def test_build_measurements__figures_beyond_an_aim__miss_it() -> None:
    misses = find_misses(build_measurements(make_fixture()))
    assert [miss.partition(" ")[0] for miss in misses] == ["claim_gas", "first_claim_gas"]


def test_find_growth__functions_that_grew_are_new_or_absent__are_named() -> None:
    baseline = {"A.a": 1000, "A.b": 1000, "A.c": 1000}
    assert find_growth({"A.a": 1050, "A.b": 1051, "A.d": 1}, baseline) == [
        "A.b takes 1051, 5.1% more than 1000",
        "A.c was not measured",
        "A.d is not in contracts/gas.json",
    ]
    assert find_growth(baseline, baseline) == []
