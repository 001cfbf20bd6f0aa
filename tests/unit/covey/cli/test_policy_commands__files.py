"""`covey policy fetch` and `covey policy verify` on a real relay's files, with a chain that the test chooses."""

import json
import shutil
from types import SimpleNamespace

import pytest

from covey import cli
from covey.protocol.policy_record import RECORD_FILE, WEIGHTS_FILE
from tests.fakes.account import invoke, runner
from tests.fakes.offered_policies import DOMAIN, TRAINER
from tests.fakes.policy_relays import FakeRelay, OfferedPolicies, flip_bit

pytestmark = pytest.mark.unit

CHAIN = ["--pool", "1", "--deployment", "d.json"]


@pytest.fixture
def offered(tmp_path):
    offered = OfferedPolicies(tmp_path / "trainer", sizes={"w": 20_000})
    for _ in range(3):
        offered.offer()
    return offered


@pytest.fixture
def chain(opened, offered):
    """The chain of the account that commands open, with three policies."""
    opened.contracts.policies = SimpleNamespace(
        address=DOMAIN.contract, steps_of=lambda pool: 3, policy_of=lambda pool, step: offered.hash_of(step)
    )
    opened.contracts.deployment.chain_id = DOMAIN.chain_id
    opened.contracts.pools = SimpleNamespace(get_terms=lambda pool: SimpleNamespace(trainer=TRAINER.address))
    return opened


@pytest.fixture
def relay(offered):
    with FakeRelay(offered.store) as started:
        yield started.url


def fetch(tmp_path, relay, *arguments):
    folder = ("--folder", str(tmp_path / "policies"), "--relay", relay)
    return invoke("policy", "fetch", "--pool", "1", *folder, *arguments, key=False)


def test_fetch__first_the_oldest_then_the_newest__takes_an_anchor_and_then_deltas(chain, offered, relay, tmp_path):
    first = fetch(tmp_path, relay, "--step", "0")
    assert (first["step"], first["record"], first["ways"]) == (0, offered.hash_of(0), "anchor")
    newest = fetch(tmp_path, relay)
    assert (newest["step"], newest["ways"]) == (2, "delta+delta")
    offered.require_same(tmp_path / "policies" / f"2-{offered.hash_of(2)}", 2)
    assert fetch(tmp_path, relay)["ways"] == "none, it was here"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [((), "no_relays"), (("--relay", "relay"), "bad_relay"), (("--relay", "http://r:1", "--step", "3"), "no_policy")],
)
def test_fetch__what_cannot_be_fetched__is_said(chain, arguments, code):
    assert runner.invoke(cli.app, ["policy", "fetch", *CHAIN, *arguments]).exception.code == code


def test_verify__downloaded_policy__is_sound_until_a_bit_is_flipped(chain, relay, tmp_path):
    folder = fetch(tmp_path, relay)["folder"]
    assert invoke("policy", "verify", folder, "--pool", "1", key=False)["damage"] is None
    path = tmp_path / "policies" / folder.rpartition("/")[2] / WEIGHTS_FILE
    path.write_bytes(flip_bit(path.read_bytes(), -1))
    result = runner.invoke(cli.app, ["policy", "verify", folder, *CHAIN, "--json"])
    assert result.exit_code == 1
    assert "the tensor w in" in json.loads(result.stdout)["damage"]


def test_verify__exported_policy__needs_its_step(chain, offered, tmp_path):
    export = tmp_path / "export"
    shutil.copytree(offered.exports[1].folder, export)
    (export / RECORD_FILE).unlink(missing_ok=True)
    assert runner.invoke(cli.app, ["policy", "verify", str(export), *CHAIN]).exception.code == "no_step"
    assert invoke("policy", "verify", str(export), "--step", "1", "--pool", "1", key=False)["damage"] is None
    found = runner.invoke(cli.app, ["policy", "verify", str(export), "--step", "2", *CHAIN])
    assert (found.exit_code, "has the hash" in found.stdout) == (1, True)


def test_verify__no_policy_at_all__is_said(chain, tmp_path):
    (tmp_path / RECORD_FILE).write_text("{}")
    assert runner.invoke(cli.app, ["policy", "verify", str(tmp_path), *CHAIN]).exception.code == "damaged_policy"
