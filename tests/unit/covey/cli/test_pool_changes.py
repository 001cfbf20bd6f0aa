"""Commands that change price, roles and heir of a pool, on a chain whose answers the test chooses."""

import pytest

from covey import cli
from covey.chain.structs import PoolRole, RoleHolder
from covey.errors import OperatorError
from covey.protocol.ids import ZERO_ADDRESS
from covey.protocol.prices import ScheduledPrice
from tests.fakes.account import ALICE, BOB, HASH, invoke, runner

pytestmark = pytest.mark.unit
CHAIN = ["--pool", "1", "--deployment", "d.json", "--key-file", "k"]


def list_calls(opened, monkeypatch):
    calls = []
    send = opened.send

    def note(call):
        calls.append((call.label, *call.arguments))
        return send(call)

    monkeypatch.setattr(opened, "send", note)
    return calls


def test_price__in_the_tokens_unit__is_sent_and_says_when_it_holds(opened, monkeypatch):
    """The token has one decimal."""
    calls = list_calls(opened, monkeypatch)
    prices = ScheduledPrice(reward_per_million=3, start=0), ScheduledPrice(reward_per_million=25, start=160)
    opened.contracts.pools._values["get_prices"] = prices
    found = invoke("pool", "price", "2.5", "--pool", "1")
    assert found == {"reward_per_million": 25, "holds_from": 160, "transaction": HASH}
    assert calls == [("set_price", 1, 25)]
    shown = invoke("pool", "show", "--pool", "1", key=False)
    assert (shown["next_reward_per_million"], shown["next_price_from"]) == (25, 160)


def test_rotate__pending__names_both_accounts_and_the_date(opened, monkeypatch):
    calls = list_calls(opened, monkeypatch)
    opened.contracts.pools._values["get_role"] = RoleHolder(account=ALICE, next=BOB, next_from=160)
    found = invoke("pool", "rotate", "signer", BOB, "--pool", "1")
    assert found == {"role": "signer", "account": ALICE, "next": BOB, "holds_from": 160, "transaction": HASH}
    assert calls == [("propose_role", 1, PoolRole.SIGNER, BOB)]
    shown = invoke("pool", "show", "--pool", "1", key=False)
    assert (shown["next_signer"], shown["next_signer_from"]) == (BOB, 160)


def test_rotate__cancelled__has_no_next_account(opened):
    found = invoke("pool", "rotate", "arbiter", ALICE, "--pool", "1")
    assert found == {"role": "arbiter", "account": ALICE, "next": None, "holds_from": None, "transaction": HASH}


@pytest.mark.parametrize(("text", "heir"), [(BOB, BOB), ("none", ZERO_ADDRESS)])
def test_heir__address_or_none__is_sent(opened, monkeypatch, text, heir):
    calls = list_calls(opened, monkeypatch)
    assert invoke("pool", "heir", text, "--pool", "1")["heir"] == (None if text == "none" else BOB)
    assert calls == [("set_heir", 1, heir)]


def test_heir__zero_address__is_refused(opened):
    result = runner.invoke(cli.app, ["pool", "heir", ZERO_ADDRESS, *CHAIN])
    assert isinstance(result.exception, OperatorError)
    assert (result.exception.code, opened.sent) == ("example_address", [])
