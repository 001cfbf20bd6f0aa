"""`covey worker leave` with a real chain and a coordinator: stake and rewards come back, and nothing is done twice."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.chain.structs import BondKind
from covey.chain.wallet import load_key
from tests.fakes.network import MIN_STAKE, CoordinatorHarness
from tests.integration.coordinator.handing import decide, hand_in
from tests.integration.coordinator.test_enrolling import count_sent, enroll, key_of, make_folder

pytestmark = pytest.mark.integration
UNBOND_SECONDS = 20


def leave(folder: Path, key_file: Path):
    result = CliRunner().invoke(cli.app, ["worker", "leave", str(folder), "--key-file", str(key_file), "--json"])
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


async def test_leave__enrolled_worker__stake_and_rewards_come_back(
    harness: CoordinatorHarness, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Two nodes of the contributor work elsewhere, so their stake of 100 each stays."""
    contracts, pool = harness.chain.contracts, harness.ctx.ledger.pool
    contributor, key = harness.chain.address("contributor"), key_of(tmp_path, "contributor")
    folder = make_folder(harness, tmp_path / "mine", workers=1)
    await asyncio.to_thread(enroll, capsys, folder, key)
    for content in (b"first", b"second"):
        async with harness.client("node") as node:
            await hand_in(harness, node, content)
        await decide(harness)
    harness.run_job("settle")
    for _ in range(2):
        await harness.follow()
    staked = contracts.stakes.stake_of(pool, BondKind.CONTRIBUTOR, contributor)
    money = contracts.token.balance_of(contributor)
    first = await asyncio.to_thread(leave, folder, key)
    node = load_key(folder / "keys/node-1.key").address
    assert contracts.nodes.contributor_of(pool, node) is None
    assert first["nodes"] == [node]
    assert (first["kept"], first["unbonding"], first["done"]) == (2 * MIN_STAKE, staked - 2 * MIN_STAKE, False)
    assert first["withdraw_from"] <= harness.chain.now() + UNBOND_SECONDS
    sent = count_sent(harness, "contributor")
    again = await asyncio.to_thread(leave, folder, key)
    assert (again["withdraw_from"], count_sent(harness, "contributor")) == (first["withdraw_from"], sent)
    harness.chain.advance(UNBOND_SECONDS)
    last = await asyncio.to_thread(leave, folder, key)
    assert (last["done"], last["unbonding"], last["claimed"]) == (True, 0, 120)
    assert contracts.token.balance_of(contributor) - money == staked - 2 * MIN_STAKE + 120
