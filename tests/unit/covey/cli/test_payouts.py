"""Payee and credits, on a chain whose answers the test chooses."""

import pytest

from covey import cli
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
