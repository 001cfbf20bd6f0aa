import pytest

from covey import cli
from covey.chain import events
from covey.errors import TransientError
from covey.shardcast import policy_source
from tests.fakes.account import HASH, invoke, runner

pytestmark = pytest.mark.unit

CHAIN = ["--pool", "1", "--deployment", "d.json"]
HERE, AWAY = "http://here:9001", "http://away:9001"


def publish(step, pool=1):
    place = {"block_number": 50 + step, "block_hash": HASH, "transaction_hash": HASH, "log_index": 0}
    return events.PolicyPublished(pool=pool, step=step, record_hash=f"0x{step:064x}", **place)


@pytest.fixture
def relays(monkeypatch):
    """Replace two relays: one has the policies up to step 1, and the other does not answer."""

    def look_at_relay(url, *, pool, record_hash):
        if url == AWAY:
            raise TransientError("no_relay", "away")
        if int(record_hash, 16) > 1:
            raise TransientError("not_at_relays", "no route")

    monkeypatch.setattr(policy_source, "look_at_relay", look_at_relay)


def test_list__newest_first_with_the_time_of_the_block(opened):
    opened.history.policies = [publish(step) for step in range(4)] + [publish(9, pool=2)]
    found = invoke("policy", "list", "--limit", "3", "--pool", "1", key=False)["policies"]
    assert [(row["step"], row["block"], row["published_at"]) for row in found] == [
        (3, 53, 53),
        (2, 52, 52),
        (1, 51, 51),
    ]
    assert found[0]["record_hash"] == f"0x{3:064x}"
    assert found[0]["relays"] == {}
    plain = runner.invoke(cli.app, ["policy", "list", *CHAIN]).stdout.splitlines()
    assert [line.split()[0] for line in plain] == ["3", "2", "1", "0"]
    assert plain[0].endswith(", 47 s ago")


def test_list__relays__each_has_it_or_not(opened, relays):
    opened.history.policies = [publish(1), publish(2)]
    opened.list_relays = lambda url: ("http://x\x1b[2J", AWAY)
    arguments = ["--relay", HERE, "--coordinator-url", "http://c"]
    found = invoke("policy", "list", "--pool", "1", *arguments, key=False)["policies"]
    assert [row["relays"] for row in found] == [{HERE: False, AWAY: False}, {HERE: True, AWAY: False}]
    plain = runner.invoke(cli.app, ["policy", "list", *CHAIN, *arguments]).stdout
    assert [line.strip() for line in plain.splitlines() if "http" in line] == [
        f"missing from {HERE}: not_at_relays",
        f"missing from {AWAY}: no_relay",
        f"at {HERE}",
        f"missing from {AWAY}: no_relay",
    ]


def test_list__nothing_published_or_no_relay__is_said(opened):
    result = runner.invoke(cli.app, ["policy", "list", *CHAIN])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "pool 1 has not published any policy\n")
    assert runner.invoke(cli.app, ["policy", "list", *CHAIN, "--relay", "relay"]).exception.code == "bad_relay"
