"""`covey worker leave` on a pool whose windows a test controls."""

import json
from contextlib import suppress
from types import SimpleNamespace

import pytest

from covey import cli
from covey.chain.structs import BondKind
from covey.chain.wallet import wallet_from_key
from covey.cli import leave, waiting
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.local import keeper
from covey.protocol.api.public import RewardView
from tests.fakes.account import ALICE, SIGNER, runner
from tests.fakes.bonds import UNBOND, BondedAccount, BondedPool

pytestmark = pytest.mark.unit
NODES = [wallet_from_key(bytes([byte]) * 32) for byte in (0x41, 0x42)]
ADDRESSES = [node.address for node in NODES]
STAKE = BondKind.CONTRIBUTOR, SIGNER.address


@pytest.fixture
def pool():
    pool = BondedPool(SIGNER.address, nodes=ADDRESSES)
    pool.bonded[STAKE] = 10
    return pool


@pytest.fixture
def account(pool, monkeypatch):
    account = BondedAccount(pool, SIGNER)
    account.contracts.ledger._values["claimed_of"] = 45
    monkeypatch.setattr(leave, "open_workers", lambda folder, key_file: (account, NODES, "http://c"))
    monkeypatch.setattr(keeper, "stop_keeper", lambda folder, say: account.sent.append("down"))
    return account


def run(*arguments):
    result = runner.invoke(cli.app, ["worker", "leave", "w", *arguments, "--json"])
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


def test_leave__first_time__does_everything_in_order_and_says_what_is_left(account, pool):
    assert run() == {
        "contributor": SIGNER.address,
        "nodes": ADDRESSES,
        "claimed": 0,
        "kept": 0,
        "unbonding": 10,
        "locked": 0,
        "withdraw_from": 1000 + UNBOND,
        "pending": 0,
        "accepted_units": 0,
        "done": False,
    }
    assert account.sent == ["down", "remove_node", "remove_node", "unbond"]
    assert run()["withdraw_from"] == 1000 + UNBOND
    assert len(account.sent) == 5  # only "down" again
    pool.now += UNBOND
    assert run()["done"]
    assert account.sent[-2:] == ["down", "withdraw"]
    assert run()["done"]
    assert account.sent[-2:] == ["withdraw", "down"]


def test_leave__for_people__has_amounts_dates_and_the_next_command(account):
    result = runner.invoke(cli.app, ["worker", "leave", "w"])
    assert "unbonding  1 CVT" in result.stdout
    assert "withdraw_from  1970-01-01" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(
        ", in 2 minutes. Run covey worker leave w again then, or now with --wait."
    )
    assert result.stderr.splitlines() == [
        *(f"removed the node {node}" for node in ADDRESSES),
        f"unbonding 1 CVT, the stake of the contributor {SIGNER.address}",
    ]


@pytest.mark.parametrize("crash_at", range(4))
def test_leave__crash_before_any_transaction__is_resumed(account, pool, crash_at):
    account.crash_at = crash_at + 1  # the first entry is "down"
    with suppress(ProtocolError):
        run()
        pool.now += UNBOND
        run()
    account.crash_at = None
    run()
    pool.now += UNBOND
    assert run()["done"]
    assert [name for name in account.sent if name != "down"] == ["remove_node", "remove_node", "unbond", "withdraw"]
    assert (pool.owners, pool.bonded[STAKE], pool.unbondings[STAKE]) == ({}, 0, [])


def test_leave__wait__claims_the_last_rewards_and_withdraws(account, pool, monkeypatch):
    def pass_time(_, seconds):
        pool.now += max(1, int(seconds))
        if pool.now > 1050:
            account.submissions = []
            account.reward = RewardView(epoch=1, contributor=SIGNER.address, cumulative=45, proof=())

    account.contracts.ledger.claimed_of = lambda *_: 45 if "claim" in account.sent else 30
    account.submissions = [
        SimpleNamespace(contributor=SIGNER.address, state="ACCEPTED", units=5, epoch=None, reason="none")
    ]
    monkeypatch.setattr(waiting.threading.Event, "wait", pass_time)
    found = run("--wait")
    assert (found["done"], found["claimed"], found["accepted_units"]) == (True, 15, 0)
    assert account.sent == ["down", "remove_node", "remove_node", "unbond", "claim", "withdraw"]
    assert pool.now >= 1000 + UNBOND


def test_leave__nodes_on_another_machine__keep_their_stake(account, pool):
    pool.owners["0xelsewhere"] = SIGNER.address  # the pool requires 5 for each node
    found = run()
    assert (found["kept"], found["unbonding"]) == (5, 5)


def test_leave__open_case__is_what_it_waits_for(account, pool):
    run()
    pool.locked = 3
    pool.now += UNBOND
    found = runner.invoke(cli.app, ["worker", "leave", "w"]).stdout
    assert "locked  0.3 CVT" in found
    assert "when the open case is decided: covey case show" in found
    assert "withdraw" not in account.sent


def test_leave__coordinator_away__stake_comes_back_and_rewards_are_left(account, pool, monkeypatch):
    def fail(*_, **__):
        raise TransientError("coordinator_unreachable", "no answer")

    monkeypatch.setattr(account, "list_submissions", fail)
    run()
    pool.now += UNBOND
    found = run()
    assert (found["done"], found["unbonding"], found["pending"]) == (False, 0, None)
    assert "Claim the rewards when the coordinator responds" in runner.invoke(cli.app, ["worker", "leave", "w"]).stdout


def test_leave__nodes_of_another_contributor__names_its_key_and_stops_nothing(account, pool):
    pool.owners[ADDRESSES[1]] = ALICE
    with pytest.raises(OperatorError) as caught:
        run()
    assert (caught.value.code, account.sent) == ("node_taken", [])
    assert f"--key-file with the key of {ALICE}" in caught.value.fix


def test_leave__many_unbondings__withdraws_before_it_unbonds(account, pool):
    """The contract refuses a seventeenth unbonding."""
    run()
    pool.now += UNBOND
    pool.bonded[STAKE] = 4
    run()
    assert account.sent[-2:] == ["withdraw", "unbond"]


def test_leave__nothing_is_left__says_what_the_key_in_the_folder_holds(account, pool, monkeypatch):
    run()
    pool.now += UNBOND
    account.token = SimpleNamespace(balance_of=lambda address: {SIGNER.address: 25}[address])
    account.client.get_balance = lambda address: {SIGNER.address: 10**18}[address]
    done = runner.invoke(cli.app, ["worker", "leave", "w"])
    assert "Nothing is left to do." in done.stdout
    assert f"Keep the key of {SIGNER.address}: its account holds" in done.stdout
    assert "1 ether" in done.stdout
