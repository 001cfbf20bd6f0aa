"""A pool with a fee for verdicts on a real chain: an epoch pays validators and the contributor, and false fees show."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.chain.history import History
from covey.chain.wallet import save_key
from covey.devnet import deploy
from covey.protocol.epoch_file import EpochFile
from covey.protocol.object_keys import build_epoch_key
from tests.fakes.network import PRICE, CoordinatorHarness, create_pool, open_harness
from tests.fakes.pool import make_params
from tests.integration.chain.conftest import Chain
from tests.integration.coordinator.handing import settle

pytestmark = pytest.mark.integration
FEE, UNITS = 7, 40


@pytest.fixture(scope="module")
def standing(running: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorHarness]:
    params = make_params(max_submission_bytes=24_576, max_staleness=1, epoch_leaves=2)
    pool = create_pool(running, params, verdict_fee=FEE, epoch_verdicts=100)
    with open_harness(running, pool, tmp_path_factory.mktemp("coordinator")) as harness:
        yield harness


class Commands:
    """Runs commands of the pool with keys of the chain's fixture."""

    def __init__(self, harness: CoordinatorHarness, folder: Path) -> None:
        self._harness, self._folder = harness, folder
        harness.chain.deployment.save(folder / "deployment.json")

    async def __call__(self, key: str, *words: str) -> list[dict[str, Any]]:
        """Return the printed lines."""
        file = self._folder / f"{key}.key"
        if not file.exists():
            save_key(file, deploy.derive_key("test", key))
        options = ["--json", "--key-file", str(file), "--coordinator-url", self._harness.url]
        options += ["--deployment", str(self._folder / "deployment.json"), "--pool", str(self._harness.ctx.ledger.pool)]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._folder)
            result = await asyncio.to_thread(CliRunner().invoke, cli.app, [*words, *options])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return [json.loads(line) for line in result.stdout.splitlines()]


async def test_verdict_fees__two_validators_and_the_contributor__are_paid_and_the_rest_is_refunded(
    harness: CoordinatorHarness, tmp_path: Path
):
    """Two submissions of 20 units with two verdicts each."""
    await settle(harness)
    chain, pool = harness.chain, harness.ctx.ledger.pool
    ledger, token, run = chain.contracts.ledger, chain.contracts.token, Commands(harness, tmp_path)
    (posted,) = History(client=chain.client, contracts=chain.contracts).list_epochs(pool)
    assert (posted.header.verdicts, posted.record.reward) == (4, UNITS * PRICE + 4 * FEE)
    assert [(line["event"], line["code"]) for line in await run("validator-1", "watch", "--once")] == [
        ("epoch", "true")
    ]

    chain.advance(20)
    expected = {"validator-0": 2 * FEE, "validator-1": 2 * FEE, "contributor": UNITS * PRICE}
    for name, amount in expected.items():
        who = chain.address(name)
        (shown,) = await run(name, "rewards", "show")
        assert (shown["earned"], shown["claimable"]) == (amount, amount)
        before = token.balance_of(who)
        (claimed,) = await run(name, "rewards", "claim")
        assert claimed["claimed"] == amount == token.balance_of(who) - before

    chain.send("operator", chain.contracts.pools.end_pool(pool))
    chain.advance(chain.contracts.pools.closes_at(pool) - chain.now())
    chain.send("operator", ledger.refund_pool(pool))
    assert (ledger.escrow_of(pool), ledger.owed_of(pool)) == (0, 0)
    assert ledger.get_settlement(pool).posted == sum(expected.values())


async def test_watch__fees_that_no_verdict_earned__are_found(harness: CoordinatorHarness, tmp_path: Path):
    """The signer posts another epoch without work that pays each of two accounts for one verdict."""
    await settle(harness)
    chain, pool = harness.chain, harness.ctx.ledger.pool
    (posted,) = History(client=chain.client, contracts=chain.contracts).list_epochs(pool)
    data = harness.ctx.store.get(build_epoch_key(pool, posted.header.data_hash), max_bytes=1 << 20)
    true, number = EpochFile.from_bytes(data, posted.header), posted.epoch + 1
    accounts = [chain.address("validator-0"), chain.address("operator")]
    rewards = true.rewards | {each: true.rewards.get(each, 0) + FEE for each in accounts}
    false = replace(
        true,
        epoch=number,
        leaves=(),
        previous_hash=posted.record.header_hash,
        rewards=rewards,
        verdicts=dict.fromkeys(accounts, 1),
    )
    chain.advance(chain.contracts.pools.get_terms(pool).epoch_length)
    header = false.build_header(chain=harness.ctx.ledger.chain_id, ledger=harness.ctx.ledger.address)
    chain.send("operator", chain.contracts.ledger.post(header, {}))
    folder = tmp_path / "watch" / "epochs"
    folder.mkdir(parents=True)
    (folder / f"{header.data_hash}.json").write_bytes(false.to_bytes())
    lines = await Commands(harness, tmp_path)("arbiter", "watch", "--once")
    found = [line for line in lines if line["event"] == "epoch"]
    assert [line["code"] for line in found] == ["true", "false_rewards"]
    assert "has false fees" in found[1]["text"]
