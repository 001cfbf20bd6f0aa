"""The newest policy is the newest one that is on the disk and that the engine accepts."""

import pytest

from worker.policy_cache import PolicyCache

pytestmark = pytest.mark.unit


def test_newest__fetched_and_not_refused__by_hand() -> None:
    assert PolicyCache().newest is None
    assert PolicyCache(fetched={0, 2, 3}).newest == 3
    assert PolicyCache(fetched={0, 2, 3}, refused={3}).newest == 2
    assert PolicyCache(fetched={3}, refused={3}).newest is None
