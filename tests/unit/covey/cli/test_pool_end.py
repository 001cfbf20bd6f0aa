"""`covey pool end` and `covey pool refund` on a pool whose windows a test controls."""

import json

import pytest

from covey import cli
from covey.chain.structs import BondKind
from covey.chain.wallet import load_key, save_key, wallet_from_key
from covey.cli import pool_end, waiting
from covey.console import account as accounts
from covey.console import options
from covey.errors import OperatorError
from tests.fakes.account import HASH, SIGNER, invoke, runner
from tests.fakes.bonds import CLOSING, UNBOND, BondedAccount, BondedPool

pytestmark = pytest.mark.unit
OPERATOR = BondKind.OPERATOR, SIGNER.address
CHAIN = ["--pool", "1", "--deployment", "d.json", "--key-file", "k"]


@pytest.fixture
def pool(monkeypatch):
    pool = BondedPool(SIGNER.address)
    pool.bonded[OPERATOR] = 10
    return pool


@pytest.fixture
def operator(pool, monkeypatch):
    account = BondedAccount(pool, SIGNER)
    monkeypatch.setattr(options, "open_account", lambda *_, folder=None: account)
    monkeypatch.setattr(BondedAccount, "with_key", lambda self, file: BondedAccount(pool, load_key(file)))
    return account


@pytest.fixture
def passing(pool, monkeypatch):
    """Let the chain's clock pass instead of this process."""

    def pass_time(_, seconds):
        pool.now += max(1, int(seconds))

    monkeypatch.setattr(waiting.threading.Event, "wait", pass_time)


def test_end__without_a_terminal__is_confirmed_by_yes_only(operator):
    result = runner.invoke(cli.app, ["pool", "end", *CHAIN])
    assert isinstance(result.exception, OperatorError)
    assert (result.exception.code, operator.sent) == ("not_confirmed", [])
    assert "--yes" in result.exception.fix
    assert invoke("pool", "end", "--yes", "--pool", "1") == {
        "pool": 1,
        "state": "ended",
        "refund_from": 1000 + CLOSING,
        "escrow": 100,
        "owed": 15,
        "operator_bond": 10,
        "transaction": HASH,
    }
    assert operator.sent == ["end_pool"]


@pytest.mark.parametrize(("answer", "sent"), [("y", ["end_pool"]), ("n", []), ("", [])])
def test_end__on_a_terminal__asks_with_amounts_and_the_date_of_the_refund(operator, monkeypatch, answer, sent):
    monkeypatch.setattr(pool_end, "is_terminal", lambda: True)
    result = runner.invoke(cli.app, ["pool", "end", *CHAIN], input=f"{answer}\n")
    assert operator.sent == sent
    rows = dict(line.strip().split("  ", 1) for line in result.stderr.splitlines() if "  " in line.strip())
    assert rows["escrow"] == "10 CVT"
    assert rows["owed"].startswith("1.5 CVT")
    assert rows["refund from"].endswith(", in 9 minutes")
    assert "cannot be undone" in result.stderr
    if sent:
        assert "refund_from  1970-01-01" in result.stdout
        assert "covey stake unbond AMOUNT --kind operator" in result.stdout
        assert "covey pool end FOLDER --wait --refund" in result.stdout


def test_end__ended_pool__is_not_ended_again(operator, pool):
    invoke("pool", "end", "--yes", "--pool", "1")
    assert invoke("pool", "end", "--pool", "1")["transaction"] is None
    assert operator.sent == ["end_pool"]


def test_end__refund_without_wait__unbonds_now_and_can_be_repeated(operator, pool):
    invoke("pool", "end", "--yes", "--refund", "--pool", "1")
    assert operator.sent == ["end_pool", "unbond"]
    invoke("pool", "end", "--refund", "--pool", "1")
    pool.now += CLOSING
    invoke("pool", "end", "--refund", "--pool", "1")
    assert operator.sent == ["end_pool", "unbond", "withdraw", "refund_pool"]
    assert (pool.funded, pool.unbondings[OPERATOR]) == (15, [])
    invoke("pool", "end", "--refund", "--pool", "1")
    assert len(operator.sent) == 4


def test_end__wait_and_refund__takes_back_everything_with_validators_of_the_folder(operator, pool, passing, tmp_path):
    (tmp_path / "keys").mkdir()
    for number, key in ((1, b"\x31" * 32), (2, b"\x32" * 32)):
        save_key(tmp_path / "keys" / f"validator-{number}.key", key)
    listed = wallet_from_key(b"\x31" * 32).address
    pool.validators.append(listed)
    pool.bonded[BondKind.VALIDATOR, listed] = 7
    (tmp_path / "coordinator.toml").write_text('home = "c"\npool = 1\ndeployment = "d.json"\nkey_file = "k"\n')
    result = runner.invoke(cli.app, ["pool", "end", str(tmp_path), "--yes", "--wait", "--refund", "--json"])
    assert result.exit_code == 0, result.exception
    found = json.loads(result.stdout)
    assert (found["escrow"], found["operator_bond"]) == (15, 0)
    assert set(pool.bonded.values()) == {0}
    assert not any(pool.unbondings.values())
    assert 1000 + CLOSING + UNBOND <= pool.now <= 1000 + CLOSING + UNBOND + 20
    lines = result.stderr.splitlines()
    assert any(line.startswith("Take back escrow and bonds: 1970-01-01") for line in lines)
    assert "refunded 8.5 CVT of the escrow" in lines
    assert f"withdrew 0.7 CVT, the stake of the validator {listed}" in lines


def test_end__wait_alone__waits_until_the_refund_opens(operator, pool, passing):
    invoke("pool", "end", "--yes", "--wait", "--pool", "1")
    assert 1000 + CLOSING <= pool.now <= 1000 + CLOSING + 10
    assert operator.sent == ["end_pool"]


def test_end__chain_that_does_not_move__ends_at_the_deadline(operator, pool, monkeypatch):
    monkeypatch.setattr(waiting, "SPARE_SECONDS", -float(CLOSING))
    result = runner.invoke(cli.app, ["pool", "end", "--yes", "--wait", *CHAIN])
    assert result.exception.code == "pool_not_closed"
    assert "Run this command again" in result.exception.fix


def test_pool_show__ended_pool__says_when_the_refund_opens(operator, pool):
    assert "refund_from" not in invoke("pool", "show", "--pool", "1", key=False)
    invoke("pool", "end", "--yes", "--pool", "1")
    assert invoke("pool", "show", "--pool", "1", key=False)["refund_from"] == 1000 + CLOSING


def test_refund__active_or_not_closed__says_when_in_words(operator, pool):
    result = runner.invoke(cli.app, ["pool", "refund", *CHAIN])
    assert str(result.exception) == (
        "pool_not_closed: pool 1 has not ended: its state is active. Its escrow can be refunded 9 minutes after its "
        "end. End it for good with covey pool end"
    )
    invoke("pool", "end", "--yes", "--pool", "1")
    pool.now += CLOSING - 30
    result = runner.invoke(cli.app, ["pool", "refund", *CHAIN])
    assert result.exception.code == "pool_not_closed"
    assert ", in 30 s. Run this command again then" in str(result.exception)
    assert operator.sent == ["end_pool"]
    pool.now += 30
    assert invoke("pool", "refund", "--pool", "1") == {"refunded": 85, "escrow": 15, "transaction": HASH}


def test_with_key__another_key__shares_pool_and_node(tmp_path, monkeypatch):
    save_key(tmp_path / "k", b"\x31" * 32)
    account = accounts.Account.__new__(accounts.Account)
    account.pool, account._wallet = 3, SIGNER
    other = account.with_key(tmp_path / "k")
    assert (other.pool, other.wallet.address) == (3, wallet_from_key(b"\x31" * 32).address)
    assert account.wallet is SIGNER
