"""Two machines with one node key: the second machine is refused before it gets the lease of the first one."""

import asyncio

import pytest

from covey.errors import ProtocolError
from covey.protocol.status import TaskState
from tests.fakes.network import CoordinatorHarness
from tests.fakes.pool import INSTANCE
from tests.integration.coordinator.handing import refuse

pytestmark = pytest.mark.integration
OTHER = "f" * 32


async def test_claim_task__two_machines_with_one_key__never_get_the_same_lease(harness: CoordinatorHarness):
    async with harness.client("node") as first, harness.client("node") as second:
        await first.register()
        claims = harness.claim(first, instance=INSTANCE), harness.claim(second, instance=OTHER)
        found = await asyncio.gather(*claims, return_exceptions=True)
    (refused,) = [each for each in found if isinstance(each, ProtocolError)]
    assert (refused.code, refused.status) == ("another_instance", 409)
    assert len([each for each in found if not isinstance(each, BaseException)]) == 1
    with harness.ctx.database.read() as rows:
        assert len(rows.list_tasks(TaskState.ASSIGNED)) == 1


async def test_claim_task__first_one_was_heard_two_minutes_ago__serves_the_other(harness: CoordinatorHarness):
    async with harness.client("node") as client:
        await client.register()
        lost = await harness.claim(client)
        other = {"instance": OTHER, "free_slots": 1, "cached_version": None}
        harness.clock.offset += 119
        assert await refuse(client.send_heartbeat(**other)) == ("another_instance", 409)
        harness.clock.offset += 2
        taken = await harness.claim(client, instance=OTHER, wait_seconds=0.5)
        assert taken is None, "the leases of the first one were dropped: the node pauses"
        first = {"instance": INSTANCE, "free_slots": 1, "cached_version": None}
        assert await refuse(client.send_heartbeat(**first)) == ("another_instance", 409)
    with harness.ctx.database.read() as rows:
        assert rows.get_task(lost.task).state is TaskState.EXPIRED
