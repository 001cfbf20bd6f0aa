import pytest

from benchmarks.harness import find_misses
from benchmarks.network.check import MOST, build_claims, read_stages

pytestmark = pytest.mark.unit
OUTPUT = """== setup python: 95 s
................ [100%]
4015 passed, 160 skipped in 380.10s
== tests in python: 391 s
== make test: 500 s
=== not a stage: 3 s
"""


def test_read_stages__output_of_make__seconds_by_name():
    assert read_stages(OUTPUT.splitlines()) == {"setup python": 95, "tests in python": 391, "make test": 500}


def test_build_claims__a_slow_test_stage__misses_its_bar():
    claims = build_claims(read_stages(OUTPUT.splitlines()), 700.0)
    assert {claim.name: claim.value for claim in claims} == {
        "ci_run_s": 700,
        "make_test_s": 500,
        "stage.setup_python": 95,
        "stage.tests_in_python": 391,
        "stage.make_test": 500,
    }
    assert find_misses(claims, most=MOST) == ["make_test_s is 500.000, above 480.0"]


def test_build_claims__tests_never_ended__is_no_number():
    assert [claim.name for claim in build_claims({}, 3.0)] == ["ci_run_s"]
