"""Stages that the Makefile prints, and the measurements that they make."""

import pytest

from benchmarks.measurement import find_misses
from benchmarks.network.check import build_measurements, read_stages

pytestmark = pytest.mark.unit
OUTPUT = """== setup python: 95 s
................ [100%]
4015 passed, 160 skipped in 380.10s
== tests in python: 391 s
== make test: 500 s
=== not a stage: 3 s
"""


def test_read_stages__output_of_make__seconds_by_name() -> None:
    assert read_stages(OUTPUT.splitlines()) == {"setup python": 95, "tests in python": 391, "make test": 500}


def test_build_measurements__a_slow_test_stage__misses_its_bar() -> None:
    measurements = build_measurements(read_stages(OUTPUT.splitlines()), 700.0)
    assert {each.name: each.value for each in measurements} == {
        "ci_run_s": 700,
        "make_test_s": 500,
        "stage.setup_python": 95,
        "stage.tests_in_python": 391,
        "stage.make_test": 500,
    }
    assert find_misses(measurements) == ["make_test_s is 500, above 480"]


def test_build_measurements__tests_never_ended__has_no_time_of_tests() -> None:
    assert [each.name for each in build_measurements({}, 3.0)] == ["ci_run_s"]
