"""Validators sign the header of an epoch, and the operator's coordinator posts it with a quorum of their signatures."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.db.models import SubmissionRow
from coordinator.domain.submissions import to_receipt
from covey import cli
from covey.chain.history import History
from covey.chain.wallet import save_key
from covey.devnet import deploy
from covey.protocol import eip712
from covey.protocol.ids import Hash
from covey.protocol.verdict import Reason, Severity
from covey.runtime.cycle import CycleResult
from tests.fakes.network import CoordinatorHarness, create_pool, open_harness
from tests.fakes.pool import make_hash, make_params
from tests.integration.chain.conftest import Chain
from tests.integration.coordinator.handing import FILE, decide, hand_in, refuse
from validator.epoch_signing import REFUSED_SECONDS, Attester
from validator.kept_epochs import KeptEpochs
from validator.own_verdicts import OwnVerdicts

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def standing(running: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorHarness]:
    pool = create_pool(running, make_params(max_submission_bytes=24_576, epoch_leaves=1), header_quorum=2)
    with open_harness(running, pool, tmp_path_factory.mktemp("coordinator")) as harness:
        yield harness


class Signing:
    """The signing cycle of a validator, with its home. It knows the verdicts that it has revealed."""

    def __init__(self, harness: CoordinatorHarness, index: int, home: Path) -> None:
        self._harness, self._name, self.home = harness, f"validator-{index}", home / f"validator-{index}"
        self.home.mkdir()
        self.now = 0.0
        self._attester = Attester(lambda: self.now)
        self.verdicts = OwnVerdicts(self.home / "verdicts.sqlite3")
        self.address = harness.wallet(self._name).address

    def learn(self, row: SubmissionRow) -> None:
        """Store the validator's verdict on a submission, as it does when it commits to it."""
        for turn in row.turns:
            if turn.validator == self.address and turn.verdict is not None:
                self.verdicts.add(turn.verdict, to_receipt(row, self._harness.ctx.config.pool))

    async def cycle(self) -> CycleResult:
        ctx, chain = self._harness.ctx, self._harness.chain
        async with self._harness.client(self._name) as client:
            network = SimpleNamespace(
                pool=ctx.config.pool,
                chain=chain.client,
                contracts=chain.contracts,
                coordinator=client,
                wallet=self._harness.wallet(self._name),
                terms=ctx.terms,
                receipt_domain=ctx.receipt_domain,
                ledger_domain=chain.domain("epoch_ledger"),
            )
            values: Any = SimpleNamespace(
                network=network, verdicts=self.verdicts, epochs=KeptEpochs(self.home / "epochs")
            )
            return await self._attester.cycle(values)


@pytest.fixture
def validators(harness: CoordinatorHarness, tmp_path: Path) -> list[Signing]:
    return [Signing(harness, index, tmp_path) for index in range(3)]


async def work(harness: CoordinatorHarness, validators: list[Signing], file: bytes = FILE) -> Hash:
    """Have a submission of 20 units judged by validators 0 and 1. Return the hash of its receipt."""
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node, file)
    await decide(harness)
    receipt_hash = eip712.compute_struct_hash(receipt)
    with harness.ctx.database.read() as rows:
        row = rows.get_submission(receipt_hash)
        assert row is not None
        for each in validators:
            each.learn(row)
    return receipt_hash


async def post(harness: CoordinatorHarness) -> int:
    """Run what closes and posts epochs. Return the number of epochs on chain."""
    harness.run_job("settle")
    await harness.follow()
    return harness.chain.contracts.ledger.epochs_of(harness.ctx.config.pool)


async def test_post__two_of_three_have_signed__two_epochs_are_on_chain(
    harness: CoordinatorHarness, validators: list[Signing]
):
    await work(harness, validators)
    assert await post(harness) == 0
    assert await validators[2].cycle() is CycleResult.DONE
    assert await validators[2].cycle() is CycleResult.IDLE, "it has signed"
    assert await post(harness) == 0
    assert await validators[0].cycle() is CycleResult.DONE
    assert await post(harness) == 1
    await harness.follow()
    assert await validators[1].cycle() is CycleResult.IDLE, "the epoch is posted"

    # The second epoch continues the rewards of the first one, which validator 1 has to download.
    await work(harness, validators, FILE + b"2")
    harness.chain.advance(25)
    harness.clock.offset += 25
    assert await post(harness) == 1
    assert [await each.cycle() for each in validators[:2]] == [CycleResult.DONE] * 2
    assert await post(harness) == 2
    assert sorted(path.name for path in (validators[1].home / "epochs").iterdir()) == ["1.json", "1.signature"]
    await harness.follow()
    with harness.ctx.database.read() as rows:
        assert rows.find_attestations(1, Hash(rows.get_epoch(1).header_hash)) == {}


async def test_cycle__posted_epoch_that_the_coordinator_has_not_seen__is_neither_signed_nor_refused(
    harness: CoordinatorHarness, validators: list[Signing]
):
    await work(harness, validators)
    harness.run_job("settle")
    for each in validators[:2]:
        await each.cycle()
    harness.run_job("settle")
    harness.ctx.sender.pump()
    assert harness.chain.contracts.ledger.epochs_of(harness.ctx.config.pool) == 1
    with capture_logs() as logs:
        assert await validators[2].cycle() is CycleResult.IDLE
    assert [log["event"] for log in logs if log["log_level"] == "error"] == []
    assert not (validators[2].home / "epochs").exists()


async def test_cycle__leaf_with_more_units_than_were_counted__is_signed_by_none_that_judged_it(
    harness: CoordinatorHarness, validators: list[Signing]
):
    receipt_hash = await work(harness, validators)
    with harness.ctx.database.write() as rows:
        rows.get_submission(receipt_hash).units = 40
    harness.run_job("settle")
    with capture_logs() as logs:
        for each in validators[:2]:
            for _ in range(3):
                assert await each.cycle() is CycleResult.IDLE
                each.now += REFUSED_SECONDS
    errors = [(log["event"], log["epoch"], log["code"]) for log in logs if log["log_level"] == "error"]
    assert errors == [("epoch was not signed", 0, "false_leaf")] * 2, "each says it once"
    assert not (validators[0].home / "epochs").exists()
    await validators[2].cycle()  # It has not judged this work.
    assert await post(harness) == 0


async def test_cycle__quorum_of_others_has_outvoted_a_hard_rejection__is_signed(
    harness: CoordinatorHarness, validators: list[Signing]
):
    receipt_hash = await work(harness, validators)
    with harness.ctx.database.read() as rows:
        row = rows.get_submission(receipt_hash)
        receipt, accepted = to_receipt(row, harness.ctx.config.pool), row.turns[0].verdict
    rejected = replace(accepted, outcome=2, reason=int(Reason.PROOF), severity=int(Severity.HARD), units=0)
    validators[2].verdicts.add(replace(rejected, validator=validators[2].address), receipt)
    harness.run_job("settle")
    assert await validators[2].cycle() is CycleResult.DONE
    validators[0].verdicts.add(rejected, receipt)
    assert await validators[0].cycle() is CycleResult.IDLE, "only one other validator has accepted it"


async def test_attest__by_another_key_or_over_another_header__is_refused(
    harness: CoordinatorHarness, validators: list[Signing]
):
    async with harness.client("validator-0") as client, harness.client("node") as node:
        assert await client.find_awaiting_epoch() is None
        assert await refuse(client.attest(make_hash("none"), "0x" + "11" * 65)) == ("not_awaited", 409)
        await work(harness, validators)
        harness.run_job("settle")
        awaiting = await client.find_awaiting_epoch()
        assert awaiting is not None
        await validators[1].cycle()
        kept = (validators[1].home / "epochs" / "0.signature").read_text()
        assert await refuse(client.attest(Hash(awaiting.header_hash), kept)) == ("bad_signature", 401)
        assert await refuse(node.find_awaiting_epoch()) == ("not_a_validator", 403)
        with harness.ctx.database.read() as rows:
            assert list(rows.find_attestations(0, Hash(awaiting.header_hash))) == [validators[1].address]


async def test_operator_vanishes__kept_files_and_signatures__post_the_epoch(
    harness: CoordinatorHarness, validators: list[Signing], tmp_path: Path
):
    await work(harness, validators)
    harness.run_job("settle")
    for each in validators[:2]:
        await each.cycle()
    harness.chain.advance(3600)
    pool, key_file = harness.ctx.config.pool, tmp_path / "key"
    save_key(key_file, deploy.derive_key("test", "validator-0"))
    harness.chain.deployment.save(tmp_path / "deployment.json")
    words = ["epoch", "post", str(validators[0].home / "epochs" / "0.json"), "--json", "--key-file", str(key_file)]
    words += ["--pool", str(pool), "--deployment", str(tmp_path / "deployment.json")]
    for each in validators[:2]:
        words += ["--attestation", (each.home / "epochs" / "0.signature").read_text()]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0, result.output
    posted = History(client=harness.chain.client, contracts=harness.chain.contracts).find_epoch(pool, 0)
    assert posted is not None
    assert posted.header.compute_hash() == json.loads(result.stdout)["header_hash"]
