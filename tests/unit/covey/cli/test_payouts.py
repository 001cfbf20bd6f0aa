"""Payee and credits, on a chain whose answers the test chooses."""

import pytest

from covey import cli
from covey.chain.structs import Unbonding
from covey.errors import OperatorError
from tests.fakes.account import ALICE, BOB, HASH, SIGNER, Contract, invoke, runner

pytestmark = pytest.mark.unit

POOL = ["--pool", "1"]


def test_rewards_payee__address__is_named_for_the_pool(opened):
    opened.contracts.ledger = Contract(BOB, payee_of=ALICE)
    assert invoke("rewards", "payee", ALICE, *POOL) == {
        "contributor": SIGNER.address,
        "payee": ALICE,
        "transaction": HASH,
    }
    assert (opened.sent, opened.calls) == (["set_payee"], [(1, ALICE)])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], (SIGNER.address, SIGNER.address)),
        (["--to", ALICE], (SIGNER.address, ALICE)),
        (["--account", ALICE], (ALICE, ALICE)),
    ],
)
def test_rewards_withdraw_credit__both_contracts_owe__are_both_asked(opened, options, expected):
    opened.contracts.ledger = Contract(BOB, credit_of=30)
    opened.contracts.stakes = Contract(ALICE, credit_of=12)
    paid = invoke("rewards", "withdraw-credit", *options, *POOL)
    assert paid == {"paid": 42, "to": expected[1], "transactions": [HASH, HASH]}
    assert opened.calls == [(1, *expected)] * 2


def test_rewards_withdraw_credit__nothing_is_owed__sends_nothing(opened):
    opened.contracts.ledger = opened.contracts.stakes = Contract(BOB, credit_of=0)
    result = runner.invoke(cli.app, ["rewards", "withdraw-credit", "--deployment", "d.json", "--key-file", "k", *POOL])
    assert isinstance(result.exception, OperatorError)
    assert result.exception.code == "nothing_to_withdraw"
    assert opened.sent == []


def test_rewards_show__credit__is_named_with_the_command_that_withdraws_it(opened):
    opened.contracts.ledger = Contract(BOB, epochs_of=2, claimed_of=0, deduction_of=0, credit_of=30)
    shown = invoke("rewards", "show", "--coordinator-url", "http://away", *POOL)
    assert (shown["credit"], shown["credit_command"]) == (30, "covey rewards withdraw-credit")


@pytest.mark.parametrize("command", ["withdraw", "show"])
def test_stake__credit__is_named_with_the_command_that_withdraws_it(opened, command):
    unbondings = [Unbonding(amount=2, available_at=95)]
    opened.contracts.stakes = Contract(ALICE, stake_of=0, locked_of=0, unbondings_of=unbondings, credit_of=12)
    shown = invoke("stake", command, *POOL)
    assert (shown["credit"], shown["credit_command"]) == (12, "covey rewards withdraw-credit")


def test_stake_withdraw__only_a_credit_is_left__says_how_to_withdraw_it(opened):
    opened.contracts.stakes = Contract(ALICE, stake_of=0, locked_of=0, unbondings_of=[], credit_of=12)
    result = runner.invoke(cli.app, ["stake", "withdraw", "--deployment", "d.json", "--key-file", "k", *POOL])
    assert isinstance(result.exception, OperatorError)
    assert "but the token refused to pay 1.2" in result.exception.message
    assert result.exception.fix == "Run covey rewards withdraw-credit"
