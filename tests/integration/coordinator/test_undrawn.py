"""Undrawn pay is limited by what cases can take from a contributor, not by its whole stake."""

import pytest

from covey.chain.deterrence import UNDRAWN_PART
from covey.protocol import eip712
from tests.fakes.network import PRICE, CoordinatorHarness
from tests.integration.coordinator.handing import hand_in

pytestmark = pytest.mark.integration


async def test_submit__second_submission_of_a_contributor__is_beyond_a_quarter_of_what_cases_take(
    harness: CoordinatorHarness,
):
    """A submission pays 20 x 3 = 60.

    Cases take at most 4 x 60 of the stake of 300 in a span, so undrawn pay is limited to 60.
    """
    assert PRICE * 20 * UNDRAWN_PART == harness.ctx.terms.max_slashes * harness.ctx.terms.slash_amount == 240
    audited = []
    for name in ("node", "node-2"):
        async with harness.client(name) as client:
            receipt = await hand_in(harness, client, name.encode(), node=name)
        with harness.ctx.database.read() as rows:
            row = rows.get_submission(eip712.compute_struct_hash(receipt))
            assert row is not None
            audited.append(row.audited)
    assert audited == [None, True]
