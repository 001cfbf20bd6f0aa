"""Commands of a dispute, run as typed on a real chain. Anyone can run each of them."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.chain.contracts import OMISSION_BOND
from covey.chain.structs import Accusation, Balance, BondKind
from covey.chain.wallet import save_key
from covey.console.account import Account
from covey.console.pool_watcher import PoolWatcher
from covey.devnet.deploy import derive_key
from covey.errors import OperatorError, ProtocolError
from covey.network.watch_steps import WatchStep, WatchVerb, list_steps
from covey.protocol.api.common import VerdictBody
from covey.protocol.api.worker import SubmissionResponse
from covey.protocol.eip712 import compute_struct_hash, sign
from covey.protocol.messages import Countersignature, Receipt, Verdict
from covey.protocol.verdict import Decision, Reason, Severity
from tests.integration.chain.conftest import Chain
from tests.integration.chain.making import make_header, make_receipt, make_verdict, post, propose, word
from worker.submission_store import SignedSubmission, SubmissionStore

pytestmark = pytest.mark.integration


class Terminal:
    """Runs `covey ...` with the key of one account, and returns the command's JSON."""

    def __init__(self, chain: Chain, folder: Path, pool: int) -> None:
        self.pool, self._folder = pool, folder
        chain.deployment.save(folder / "deployment.json")

    def get_key_file(self, name: str) -> Path:
        file = self._folder / f"{name}.key"
        if not file.exists():
            save_key(file, derive_key("test", name))
        return file

    def __call__(self, *arguments: str, key: str, pool: bool = True) -> Any:
        options = ["--deployment", str(self._folder / "deployment.json"), "--key-file", str(self.get_key_file(key))]
        options += ["--pool", str(self.pool)] if pool else []
        result = CliRunner().invoke(cli.app, [*arguments, *options, "--json"])
        if result.exception is not None:
            raise result.exception
        return json.loads(result.stdout)


@pytest.fixture
def covey(chain: Chain, tmp_path: Path) -> Terminal:
    terminal = Terminal(chain, tmp_path, chain.open_pool())
    chain.join(terminal.pool)
    return terminal


def keep(chain: Chain, folder: Path, receipt: Receipt, *, is_promised: bool = True) -> Path:
    """Write the file of a receipt as a worker keeps it, before or after it is countersigned."""
    store = SubmissionStore(folder)
    signature = sign(receipt, chain.domain("slashing_court"), chain.wallets["node"])
    submission = SignedSubmission(receipt=receipt, signature=signature, file=b"rows", first_time=chain.now())
    store.add(submission)
    name = f"{receipt.task}-{receipt.lease}.json"
    if not is_promised:
        return folder / name
    now = chain.now()
    promise = Countersignature(receipt_hash=compute_struct_hash(receipt), signed_at=now - 5, due_by=now - 1)
    signed = sign(promise, chain.domain("epoch_ledger"), chain.wallets["operator"])
    answer = SubmissionResponse(
        receipt_hash=promise.receipt_hash, signed_at=promise.signed_at, due_by=promise.due_by, signature=signed
    )
    store.close(submission, answer)
    return folder / "sent" / name


def test_rewards_challenge__receipt_in_no_epoch__is_paid_and_the_ether_comes_back(chain, covey, tmp_path):
    chain.bond("operator", covey.pool, BondKind.OPERATOR, 500)
    receipt = make_receipt(chain, covey.pool)
    file = keep(chain, tmp_path / "outgoing", receipt)
    post(chain, covey.pool, make_header(chain, covey.pool, work_root=word(1), reward_root=word(1), units=50))
    answer = covey("rewards", "challenge", str(file), key="contributor")
    assert (answer["receipt_hash"], answer["bond_wei"]) == (compute_struct_hash(receipt), OMISSION_BOND)
    assert answer["answer_until"] == chain.now() + 10
    with pytest.raises(ProtocolError, match="WindowOpen"):
        covey("rewards", "resolve", str(file), key="contributor")
    chain.advance(10)
    before = chain.contracts.token.balance_of(chain.address("contributor"))
    assert covey("rewards", "resolve", str(file), key="contributor")["state"] == "upheld"
    assert chain.contracts.token.balance_of(chain.address("contributor")) == before + 150
    assert covey("rewards", "withdraw-ether", key="contributor", pool=False)["wei"] == OMISSION_BOND
    assert chain.client.get_balance(chain.contracts.ledger.address) == 0
    with pytest.raises(OperatorError, match="nothing_to_withdraw"):
        covey("rewards", "withdraw-ether", key="contributor", pool=False)


def test_rewards_challenge__receipt_without_a_promise__is_refused_before_anything_is_sent(chain, covey, tmp_path):
    file = keep(chain, tmp_path / "outgoing", make_receipt(chain, covey.pool), is_promised=False)
    with pytest.raises(OperatorError, match="no_promise"):
        covey("rewards", "challenge", str(file), key="contributor")
    other = keep(chain, tmp_path / "other", make_receipt(chain, covey.pool + 1))
    with pytest.raises(OperatorError, match="wrong_pool"):
        covey("rewards", "challenge", str(other), key="contributor")


def test_case_equivocation__two_files_for_one_lease__slashes_at_once(chain, covey, tmp_path):
    files = [
        keep(chain, tmp_path / str(i), make_receipt(chain, covey.pool, work_key=word(i)), is_promised=i == 1)
        for i in (1, 2)
    ]
    with pytest.raises(OperatorError, match="no_equivocation"):
        covey("case", "equivocation", str(files[0]), str(files[0]), key="deployer")
    answer = covey("case", "equivocation", *map(str, files), key="deployer")
    assert (answer["node"], answer["contributor"]) == (chain.address("node"), chain.address("contributor"))
    assert chain.contracts.stakes.stake_of(covey.pool, BondKind.CONTRIBUTOR, chain.address("contributor")) == 40


def report(chain: Chain, monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict) -> None:
    """Let the coordinator report these verdicts about their receipt, signed by their validators."""
    wallets = {wallet.address: wallet for wallet in chain.wallets.values()}
    domain = chain.domain("slashing_court")
    detail = SimpleNamespace(
        receipt_hash=verdicts[0].receipt_hash,
        receipt=None,
        kind=None,
        verdicts=[VerdictBody.of(each) for each in verdicts],
        signatures=[sign(each, domain, wallets[each.validator]) for each in verdicts],
    )
    monkeypatch.setattr("covey.console.account.Account.get_submission", lambda *_: detail)


def test_case_slash_signer__verdict_of_a_vetoed_case__costs_its_bond(chain, covey, monkeypatch):
    receipt = make_receipt(chain, covey.pool)
    vetoed = propose(chain, covey.pool, receipt)
    chain.send("arbiter", chain.contracts.court.veto(vetoed))
    verdict = make_verdict(chain, covey.pool, receipt, 0)
    earlier = dataclasses.replace(verdict, outcome=Decision.ACCEPT, reason=Reason.NONE)  # on the cheap checks
    report(chain, monkeypatch, earlier, verdict)
    slash, url = ("case", "slash-signer", vetoed.receipt_hash), ("--coordinator-url", "http://c")
    with pytest.raises(ProtocolError, match="unknown_verdict"):
        covey(*slash, chain.address("validator-1"), *url, key="deployer")
    covey(*slash, verdict.validator, *url, key="deployer")
    bond = chain.contracts.stakes.get_balance(covey.pool, BondKind.VALIDATOR, verdict.validator)
    assert bond == Balance(bonded=5, leaving=0)


def accept_falsely(chain: Chain, pool: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Accusation, Verdict]:
    """Open a case about work that one validator accepted after the cheap checks, and again after a whole replay."""
    receipt = make_receipt(chain, pool)
    accusation = propose(chain, pool, receipt)
    rejected = make_verdict(chain, pool, receipt, 2)
    partial = dataclasses.replace(rejected, outcome=Decision.ACCEPT, reason=Reason.NONE, severity=Severity.NONE)
    whole = dataclasses.replace(partial, severity=Severity.HARD)
    report(chain, monkeypatch, partial, whole)
    return accusation, whole


def test_case_slash_accept__work_of_an_executed_case__costs_its_bond(chain, covey, monkeypatch):
    executed, whole = accept_falsely(chain, covey.pool, monkeypatch)
    slash = ("case", "slash-accept", executed.receipt_hash, whole.validator, "--coordinator-url", "http://c")
    with pytest.raises(ProtocolError, match="which is locked, refutes no hard verdict"):
        covey(*slash, key="deployer")
    chain.advance(10)
    chain.send("deployer", chain.contracts.court.execute(executed))
    covey(*slash, key="deployer")
    bond = chain.contracts.stakes.get_balance(covey.pool, BondKind.VALIDATOR, whole.validator)
    assert bond == Balance(bonded=8, leaving=0)


def test_watch__refuted_verdict__is_slashed_for_once(chain, covey, monkeypatch, tmp_path):
    executed, whole = accept_falsely(chain, covey.pool, monkeypatch)
    about = f"{executed.receipt_hash} {whole.validator}"
    account = Account(tmp_path / "deployment.json", covey.get_key_file("deployer"), covey.pool)
    watcher = PoolWatcher(account, account.wallet.address, coordinator_url="http://c", folder=tmp_path)

    def look() -> list[WatchStep]:
        return [step for step in list_steps(watcher.look()) if step.verb is not WatchVerb.EXECUTE]

    assert look() == []
    chain.advance(10)
    chain.send("deployer", chain.contracts.court.execute(executed))
    (step,) = look()
    assert (step.verb, step.about) == (WatchVerb.SLASH_ACCEPT, about)
    account.send(watcher.build_call(step))
    assert chain.contracts.stakes.get_balance(covey.pool, BondKind.VALIDATOR, whole.validator).bonded == 8
    assert look() == []


def test_worker_rotate__node_of_the_contributor__is_replaced_by_one_that_signs(chain, covey, tmp_path):
    new = tmp_path / "new.key"
    answer = covey("worker", "rotate", chain.address("node"), "--node-key-file", str(new), key="contributor")
    nodes = chain.contracts.nodes
    assert new.exists()
    assert answer["previous"] == chain.address("node")
    assert nodes.contributor_of(covey.pool, answer["node"]) == chain.address("contributor")
    assert nodes.contributor_of(covey.pool, chain.address("node")) is None
    with pytest.raises(OperatorError, match="same_key"):
        covey("worker", "rotate", answer["node"], "--node-key-file", str(new), key="contributor")
    with pytest.raises(ProtocolError, match="NotContributor"):
        covey("worker", "rotate", answer["node"], "--node-key-file", str(tmp_path / "x.key"), key="deployer")


def test_pool_withdraw_invitation__invited__is_not_any_more(chain, covey):
    address = chain.address("deployer")
    covey("pool", "invite", address, key="operator")
    assert chain.contracts.nodes.is_invited(covey.pool, address)
    assert covey("pool", "withdraw-invitation", address, key="operator")["contributor"] == address
    assert not chain.contracts.nodes.is_invited(covey.pool, address)


def test_registry_pause__new_stake__waits_until_it_is_lifted(chain, covey):
    with pytest.raises(ProtocolError, match="AccessControl"):
        covey("registry", "pause", key="operator", pool=False)
    assert covey("registry", "pause", key="deployer", pool=False)["paused"] is True
    with pytest.raises(ProtocolError, match=r"PoolNotOpen|EnforcedPause"):
        covey("stake", "add", "10", "--raw", key="contributor")
    assert covey("registry", "unpause", key="deployer", pool=False)["paused"] is False
    covey("stake", "add", "10", "--raw", key="contributor")
