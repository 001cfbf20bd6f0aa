"""Validators that withdraw their bonds, with the real contracts: the case about a cheat opens all the same."""

from collections.abc import Iterator

import pytest

from covey.chain.structs import BondKind, OnChainCaseState
from covey.errors import ProtocolError
from covey.protocol.api.validator import JudgeOrder, RevealOrder
from tests.fakes.network import CoordinatorHarness, create_pool, open_harness
from tests.fakes.pool import make_params
from tests.integration.chain.conftest import Chain
from tests.integration.coordinator.handing import REJECT, build_reveal, claim_order, commit, decide, hand_in

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def standing(running: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorHarness]:
    """A pool whose three validators have bonded 20 each, as its terms require."""
    pool = create_pool(running, make_params(groups_per_step=8), validator_bond=20)
    for index in range(3):
        running.bond(f"validator-{index}", pool, BondKind.VALIDATOR, 20)
    with open_harness(running, pool, tmp_path_factory.mktemp("coordinator")) as harness:
        yield harness


def unbond(harness: CoordinatorHarness, name: str) -> None:
    """Withdraw the smallest amount, which makes the bond too small."""
    stakes, pool = harness.chain.contracts.stakes, harness.ctx.ledger.pool
    harness.chain.send(name, stakes.unbond(pool, BondKind.VALIDATOR, 1))


async def test_seek_signatures__validator_unbonds_after_its_verdict__the_third_one_signs_and_the_case_opens(
    harness: CoordinatorHarness,
):
    """The court refused such a case with BondTooSmall, and nobody else was asked: the cheat kept its stake."""
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node)
    await decide(harness, **REJECT)
    unbond(harness, "validator-0")
    await harness.follow()
    async with harness.client("stranger") as anybody:
        status = await anybody.get_status()
    active = {address: (view.bond, view.is_active) for address, view in status.validators.items()}
    assert active[harness.chain.address("validator-0")] == (19, False)
    assert active[harness.chain.address("validator-2")] == (20, True)
    async with harness.client("validator-0") as client:
        with pytest.raises(ProtocolError, match=r"not_a_validator: .* its bond is 19"):
            await claim_order(client, wait_seconds=0)

    harness.run_job("seek_signatures")
    async with harness.client("validator-2") as client:
        order = await claim_order(client, wait_seconds=0)
        assert isinstance(order, JudgeOrder)
        request = build_reveal(harness, 2, order, **REJECT)
        await commit(harness, client, request)
        assert await claim_order(client, wait_seconds=0) == RevealOrder(judgement=request.judgement)
        await client.reveal_verdict(request)
        (case,) = await client.list_hard_cases()
    signed = {body.validator: (body.to_message(), by) for body, by in zip(case.verdicts, case.signatures, strict=True)}
    powerful = [signed[harness.chain.address(f"validator-{index}")] for index in (1, 2)]
    verdicts, signatures = [verdict for verdict, _ in powerful], [by for _, by in powerful]
    court = harness.chain.contracts.court
    harness.chain.send("validator-2", court.propose(receipt, case.signature, verdicts, signatures))
    await harness.follow()
    with harness.ctx.database.read() as rows:
        (row,) = rows.list_cases()
    assert row.state.value == OnChainCaseState.LOCKED.name
    harness.run_job("seek_signatures")
    async with harness.client("validator-1") as client:
        assert await claim_order(client, wait_seconds=0) is None
