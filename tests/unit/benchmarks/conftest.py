"""Fixtures of the tests of benchmarks."""

import pytest

from benchmarks import results


@pytest.fixture(autouse=True)
def commit(monkeypatch: pytest.MonkeyPatch) -> str:
    """Commit of every result that a test builds, so that no test starts git."""
    monkeypatch.setattr(results, "describe_commit", lambda: "92e42ca")
    return "92e42ca"
