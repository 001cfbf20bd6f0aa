"""The order of the market's list and what it prints, without a chain."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.chain.amounts import TokenUnit
from covey.cli import market_command
from covey.network.market import Market
from covey.protocol.hardware_needs import HardwareNeeds, MachineHardware
from tests.fakes.pool import make_params
from tests.unit.covey.network.test_market import POOL

pytestmark = pytest.mark.unit
NEEDY = make_params(needs=HardwareNeeds(min_memory_bytes=2 << 30))
FOUND = [
    replace(POOL, pool=1, nodes=None),
    replace(POOL, pool=2),  # 50 of 100 smallest units: half a token per hour
    replace(POOL, pool=3, free_escrow=0),
    replace(
        POOL, pool=4, spent_per_day=48_000.0, params=NEEDY, unit=TokenUnit(3, "OTHER")
    ),  # 500 of 1000 smallest units: the same
    replace(POOL, pool=5, spent_per_day=9600.0),  # one token per hour
]


@pytest.fixture
def market(monkeypatch: pytest.MonkeyPatch):
    """Run `covey market` over FOUND, on a machine with 1 GiB of memory."""
    machine = MachineHardware(memory_bytes=1 << 30, free_disk_bytes=0)
    monkeypatch.setattr(market_command, "_open", lambda *_: None)
    listed = Market(pools=FOUND, total=10_000, closed=95, unread=9900, is_late=False, now=0)
    monkeypatch.setattr(market_command, "_read", lambda _, **__: listed)
    monkeypatch.setattr(market_command, "_look_at_machine", lambda _: machine)

    def run(*options: str) -> str:
        result = CliRunner().invoke(cli.app, ["market", "--deployment", str(Path("d.json")), *options])
        assert result.exit_code == 0, result.exception
        return result.stdout

    return run


def test_market__earnings__best_paid_first_and_pools_without_a_number_last(market):
    shown = json.loads(market("--sort", "earnings", "--json"))
    rows = [(each["pool"], each["expected_per_hour"]) for each in shown["pools"]]
    assert rows == [(5, 100), (2, 50), (4, 500), (3, 0), (1, None)]
    assert shown["misfits"] == {}


def test_market__fits__leaves_out_the_pool_that_asks_for_more(market):
    shown = json.loads(market("--fits", "--json"))
    assert [each["pool"] for each in shown["pools"]] == [1, 2, 3, 5]
    why = "The pool asks for 2.0 GiB of memory, and this machine has 1.0 GiB."
    assert shown["misfits"] == {"4": [why]}
    assert f"pool 4 does not fit this machine: {why}\n" in market("--fits")
    assert "does not fit" not in market()


def test_market__more_pools_than_the_limit__says_how_many_are_not_shown(market):
    printed = market()
    assert "10,000 pools, 5 shown\n" in printed
    assert "95 pools have ended or have no money left; --all lists them, too\n" in printed
    assert "9,900 older pools were not read; --limit lists more\n" in printed
    assert json.loads(market("--json"))["unread"] == 9900


def test_describe_rest__deadline__names_the_pools_that_were_not_read():
    late = Market(pools=[], total=30, closed=0, unread=30, is_late=True, now=0)
    assert market_command._describe_rest(late, shown=0) == [
        "30 pools, 0 shown",
        "30 pools were not read before the deadline; --timeout allows more seconds",
    ]
