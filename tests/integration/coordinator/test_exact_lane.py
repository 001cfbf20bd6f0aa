"""Execution contracts over HTTP: nodes and validators name theirs, and work goes to validators with the same one."""

import pytest

from covey.errors import ProtocolError, TransientError
from covey.protocol.api.validator import JudgeOrder
from tests.fakes.network import CoordinatorHarness
from tests.fakes.pool import make_contract
from tests.integration.coordinator.handing import build_reveal, claim_order, commit, hand_in

pytestmark = pytest.mark.integration
CONTRACT = make_contract().digest


async def claim(harness: CoordinatorHarness, validator: int, contract: str) -> JudgeOrder | None:
    async with harness.client(f"validator-{validator}") as client:
        order = await claim_order(client, wait_seconds=0, contract=contract)
        assert order is None or isinstance(order, JudgeOrder)
        return order


async def test_register__contract__waits_for_a_quorum_of_its_validators(harness: CoordinatorHarness) -> None:
    async with harness.client("node") as node:
        with pytest.raises(ProtocolError, match="wrong_contract: the pool does not accept the execution contract 0x"):
            await node.register(make_contract(torch="1.0").digest)
        for validator in (0, 1):
            assert (await node.get_status()).execution_contracts == {CONTRACT: validator}
            with pytest.raises(TransientError, match=f"no_validators: {validator} validators have the "):
                await node.register(CONTRACT)
            assert await claim(harness, validator, CONTRACT) is None
        await node.register(CONTRACT)
        assert (await node.get_status()).execution_contracts == {CONTRACT: 2}
        assert (await node.get_pool()).requirements.execution_contracts == {CONTRACT: make_contract().describe()}


async def test_claim__work_under_a_contract__only_validators_with_it_judge(harness: CoordinatorHarness) -> None:
    for validator, contract in ((0, ""), (1, CONTRACT), (2, CONTRACT)):
        assert await claim(harness, validator, contract) is None
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node, contract=CONTRACT)
    harness.run_job("dispatch_validation")
    assert await claim(harness, 0, "") is None
    for validator in (1, 2):
        order = await claim(harness, validator, CONTRACT)
        assert order is not None
        assert order.contract == CONTRACT
        async with harness.client(f"validator-{validator}") as client:
            await commit(harness, client, build_reveal(harness, validator, order))
    assert await claim(harness, 0, "") is None
    with harness.ctx.database.read() as rows:
        row = rows.find_submission(task=receipt.task, lease=receipt.lease)
        assert row is not None
        assert (row.contract, {turn.validator for turn in row.judgements}) == (
            CONTRACT,
            {harness.chain.address("validator-1"), harness.chain.address("validator-2")},
        )
