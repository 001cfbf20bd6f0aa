"""One seed of `make chaos`, with faults for less time. Every night runs more of them."""

import pytest

from tests.chaos.__main__ import run_seed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_chaos__one_seed__every_promise_is_kept(capsys: pytest.CaptureFixture[str]):
    assert run_seed(0, work_s=7.0) == [], capsys.readouterr().out
