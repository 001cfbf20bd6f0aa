"""Deployments to a real Anvil: whole, interrupted at each transaction, and resumed."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from covey.chain import abi_codec, deploying
from covey.chain.account_lock import lock_file
from covey.chain.deploy_journal import DeployJournal
from covey.chain.deploying import deploy, send_and_wait
from covey.chain.fees import FeeLimits
from covey.chain.json_rpc import ChainClient
from covey.errors import OperatorError, TransientError
from covey.protocol.accounts import read_gas

pytestmark = pytest.mark.integration

NAMES = ("PoolRegistry", "NodeRegistry", "PolicyRegistry", "StakeManager", "EpochLedger", "SlashingCourt")


class Killed(Exception):
    """The process ended here."""


def resume(chain, journal: Path, **options):
    return deploy(chain.client.rpc_url, chain.wallets["deployer"], journal=journal, **options)


def test_deploy__stake_manager__names_the_court_and_ledger_that_followed(chain):
    def read(function: str) -> object:
        data = chain.client.call(chain.deployment.stake_manager, abi_codec.encode_call("StakeManager", function, ()))
        return abi_codec.decode_result("StakeManager", function, data)[0]

    assert read("LEDGER") == chain.deployment.epoch_ledger
    assert read("COURT") == chain.deployment.slashing_court


def test_deploy__deployer_sends_something_else__is_refused(chain):
    deployer = chain.wallets["deployer"]

    def disturb(line: str) -> None:
        if line == "deploying EpochLedger":
            send_and_wait(chain.client, deployer, to=deployer.address, data=b"", chain_id=chain.deployment.chain_id)

    with pytest.raises(OperatorError, match="nonce_used"):
        deploy(chain.client.rpc_url, deployer, token=chain.deployment.token, say=disturb)


@pytest.mark.parametrize("is_sent", [False, True])
def test_deploy__killed_before_or_after_each_transaction__goes_on_and_repeats_none(
    chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sent: bool
):
    journal, deployer = tmp_path / "d.journal", chain.address("deployer")
    first = chain.client.count_transactions(deployer)
    send = ChainClient.send_raw
    for number in range(len(NAMES)):
        sent: list[bytes] = []

        def die(client: ChainClient, raw: bytes, sent: list[bytes] = sent, number: int = number) -> None:
            if is_sent:
                send(client, raw)
                sent.append(raw)
                raise Killed
            if chain.client.count_transactions(deployer) == first + number:
                raise Killed
            send(client, raw)
            sent.append(raw)

        with monkeypatch.context() as patch:
            patch.setattr(ChainClient, "send_raw", die)
            with pytest.raises(Killed):
                resume(chain, journal, token=chain.deployment.token)
        assert len(sent) == (1 if is_sent or number > 0 else 0)
    said: list[str] = []
    made = resume(chain, journal, token=chain.deployment.token, say=said.append)
    assert chain.client.count_transactions(deployer) == first + len(NAMES)
    assert said[0].startswith("resuming the deployment to chain 31337")
    record = DeployJournal(journal).record
    assert record is not None
    assert {each.name: each.address for each in record.contracts} == made.get_contracts()
    assert [len(each.attempts) for each in record.contracts] == [1] * len(NAMES)
    assert resume(chain, journal, token=chain.deployment.token) == made
    assert chain.client.count_transactions(deployer) == first + len(NAMES)


def test_deploy__node_is_lost_while_a_transaction_is_not_mined__goes_on_with_it(
    chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal, deployer = tmp_path / "d.journal", chain.address("deployer")
    first = chain.client.count_transactions(deployer)
    chain.client.request("evm_setAutomine", False)
    monkeypatch.setattr(deploying, "MINE_SECONDS", 0.2)
    with pytest.raises(TransientError, match="not_mined"):
        resume(chain, journal, token=chain.deployment.token)
    chain.client.request("anvil_setNextBlockBaseFeePerGas", hex(10**12))
    with pytest.raises(TransientError, match="not_mined"):
        resume(chain, journal, token=chain.deployment.token)
    chain.client.request("evm_mine")
    assert chain.client.count_transactions(deployer) == first
    with pytest.raises(TransientError, match="fee_too_high"):
        resume(chain, journal, token=chain.deployment.token)
    with pytest.raises(TransientError, match="allows no dearer one"):
        resume(chain, journal, token=chain.deployment.token, limits=FeeLimits(max_fee=10**13, max_priority_fee=1))
    chain.client.request("evm_setAutomine", True)
    resume(chain, journal, token=chain.deployment.token, limits=FeeLimits(max_fee=10**13))
    record = DeployJournal(journal).record
    assert record is not None
    assert [len(each.attempts) for each in record.contracts] == [2, 1, 1, 1, 1, 1]
    assert chain.client.count_transactions(deployer) == first + len(NAMES)


def test_deploy__journal_of_another_deployment__is_refused(chain, tmp_path: Path):
    journal = tmp_path / "d.journal"
    resume(chain, journal, token=chain.deployment.token)
    with pytest.raises(OperatorError, match=rf"other_deployment: .*token {chain.deployment.token}, not None"):
        resume(chain, journal)
    with pytest.raises(OperatorError, match=r"other_deployment: .*deployer"):
        deploy(chain.client.rpc_url, chain.wallets["operator"], token=chain.deployment.token, journal=journal)
    kept = DeployJournal(journal)
    assert kept.record is not None
    kept.save(replace(kept.record, start_hash="0x" + "11" * 32))
    with pytest.raises(OperatorError, match=r"other_deployment: .*another chain"):
        resume(chain, journal, token=chain.deployment.token)


def test_deploy__contracts_of_another_version_in_the_journal__is_refused_and_sends_nothing(
    chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal, deployer, load = tmp_path / "d.journal", chain.address("deployer"), abi_codec.load_artifact

    def stop(line: str) -> None:
        if line == "deploying NodeRegistry":
            raise Killed

    with pytest.raises(Killed):
        resume(chain, journal, token=chain.deployment.token, say=stop)
    first = chain.client.count_transactions(deployer)
    with monkeypatch.context() as patch:
        patch.setattr(abi_codec, "load_artifact", lambda name: replace(load(name), bytecode=load(name).bytecode[:-1]))
        with pytest.raises(OperatorError, match=r"other_deployment: .*PoolRegistry from another version"):
            resume(chain, journal, token=chain.deployment.token)
    assert chain.client.count_transactions(deployer) == first
    resume(chain, journal, token=chain.deployment.token)


def test_deploy__spending_of_a_day_is_reached__stops_and_goes_on_when_more_is_allowed(chain, tmp_path: Path):
    journal, deployer = tmp_path / "d.journal", chain.address("deployer")
    first, said = chain.client.count_transactions(deployer), list[str]()
    resume(chain, tmp_path / "whole.journal", token=chain.deployment.token)
    whole = DeployJournal(tmp_path / "whole.journal").record
    assert whole is not None
    costs = [read_gas(bytes.fromhex(each.attempts[0].raw)) * each.attempts[0].max_fee for each in whole.contracts]
    limits = FeeLimits(max_spend=int(1.2 * (costs[0] + costs[1])))
    with pytest.raises(TransientError, match="spend_limit"):
        resume(chain, journal, token=chain.deployment.token, limits=limits, say=said.append)
    assert 1 <= chain.client.count_transactions(deployer) - first - len(NAMES) < len(NAMES)
    with pytest.raises(TransientError, match="spend_limit"):
        resume(chain, journal, token=chain.deployment.token, limits=limits)
    resume(chain, journal, token=chain.deployment.token)
    assert chain.client.count_transactions(deployer) == first + 2 * len(NAMES)


def test_deploy__another_process_deploys_with_the_account__is_busy(
    chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deploying, "lock_file", partial(lock_file, timeout_s=0.1))

    def begin_another(line: str) -> None:
        if line == "deploying NodeRegistry":
            resume(chain, tmp_path / "other.journal", token=chain.deployment.token)

    with pytest.raises(TransientError, match="account_busy"):
        resume(chain, tmp_path / "d.journal", token=chain.deployment.token, say=begin_another)


def test_deploy__code_at_an_address_is_not_the_journals__is_refused(chain, tmp_path: Path):
    journal = tmp_path / "d.journal"
    made = resume(chain, journal, token=chain.deployment.token)
    chain.client.request("anvil_setCode", made.node_registry, "0x00")
    with pytest.raises(OperatorError, match=f"other_deployment: the journal has NodeRegistry at {made.node_registry}"):
        resume(chain, journal, token=chain.deployment.token)


def test_deploy__confirmations__waits_for_the_blocks(chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deploying, "MINE_SECONDS", 0.2)
    with pytest.raises(TransientError, match="not_mined: the chain did not reach block"):
        resume(chain, tmp_path / "d.journal", token=chain.deployment.token, confirmations=3)
    chain.client.request("anvil_mine", "0x3")
    resume(chain, tmp_path / "d.journal", token=chain.deployment.token, confirmations=3)
