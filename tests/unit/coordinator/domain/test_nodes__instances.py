"""One worker serves a node: a second one with its key is refused while the first is heard."""

import pytest

from covey.errors import ProtocolError
from covey.protocol.status import TaskState
from tests.fakes.pool import FakePool, code_of, make_params

pytestmark = pytest.mark.unit
OTHER = "f" * 32


def test_record_signs__another_instance__is_refused_while_the_first_is_heard(pool: FakePool):
    """119.9 s of silence are too few, 120 suffice; a sign of life of the first begins them again."""
    pool.register("a")
    pool.wait("a")
    for seconds in (0.0, 119.9):
        pool.now = 1000.0 + seconds
        with pytest.raises(ProtocolError) as caught:
            pool.wait("a", instance=OTHER)
        assert (caught.value.code, caught.value.status) == ("another_instance", 409)
        assert f"was heard {seconds:.0f} s ago" in caught.value.message
    pool.wait("a")
    pool.register("a")
    pool.now += 119.9
    assert code_of(lambda: pool.wait("a", instance=OTHER)) == "another_instance"
    pool.now += 0.1
    pool.wait("a", instance=OTHER)
    assert (pool.node("a").instance, pool.node("a").seen_at) == (OTHER, pool.now)
    assert code_of(lambda: pool.wait("a")) == "another_instance"


def test_record_signs__another_instance_takes_over__leases_of_the_first_end_as_dropped(pool: FakePool):
    """What the first one signed for them, perhaps, is contradicted by nothing that the second one is given."""
    pool.params = make_params(lease_seconds=1000)
    pool.register("a")
    pool.publish(0)
    lost = pool.lease("a")
    pool.now += 120
    pool.wait("a", instance=OTHER)
    assert {t.id: t.state for t in pool.tasks()}[lost.id] is TaskState.EXPIRED
    assert (pool.node("a").dropped, pool.node("a").cooldown_until) == (1, pool.now + 5)


def test_collect_task__instance_that_was_displaced_while_it_waited__gets_nothing(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    pool.wait("a", instance=OTHER)
    assert pool.assign() == 1
    assert code_of(lambda: pool.collect("a")) == "another_instance"
    assert pool.collect("a", instance=OTHER) is not None
