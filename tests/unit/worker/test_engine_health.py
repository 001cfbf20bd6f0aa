"""Engine failures are counted per lease and consecutively, and each counts once."""

import pytest

from tests.fakes.tools import make_task
from worker.engine_health import EngineHealth
from worker.leases import HeldLease

pytestmark = pytest.mark.unit


def hold(*, begun: float, deaths: int = 0) -> HeldLease:
    return HeldLease(order=make_task(), since=0.0, begun=begun, deaths=deaths)


def test_record_failure__deaths_over_one_lease__add_up() -> None:
    health = EngineHealth(clock=lambda: 10.0)
    assert health.record_failure("engine_died", hold(begun=1.0)) == (1, 1)
    assert health.record_failure("engine_died", hold(begun=1.0, deaths=2)) == (3, 3)


def test_record_failure__of_another_kind__counts_nothing() -> None:
    assert EngineHealth().record_failure("wrong_policy", hold(begun=1.0, deaths=1)) == (1, 0)


def test_record_failure__hang_with_other_tasks_in_the_engine__counts_once_and_is_not_a_death() -> None:
    now = [0.0]
    health = EngineHealth(clock=lambda: now[0])
    totals = []
    for _ in range(2):
        begun = now[0]
        now[0] += 5.0
        codes = ("engine_timeout", "engine_timeout", "engine_died")
        totals.append([health.record_failure(code, hold(begun=begun)).total for code in codes])
        now[0] += 1.0
    assert totals == [[1, 1, 0], [2, 2, 0]]


def test_record_success__after_a_hang__resets_the_count() -> None:
    now = [0.0]
    health = EngineHealth(clock=lambda: now[0])
    now[0] = 5.0
    assert health.record_failure("engine_timeout", hold(begun=0.0)).total == 1
    health.record_success()
    assert health.record_failure("engine_timeout", hold(begun=6.0)).total == 1
