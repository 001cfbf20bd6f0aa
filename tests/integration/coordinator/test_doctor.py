"""`covey doctor --config` with a real chain and a real coordinator."""

import json

import pytest

from covey import cli
from covey.chain.wallet import save_key
from covey.cli.doctor import gathering
from covey.devnet import deploy
from covey.runtime.http import find_free_ports
from tests.fakes.network import MIN_STAKE, CoordinatorHarness
from tests.fakes.raw_server import HANG_S, RawServer

pytestmark = pytest.mark.integration


@pytest.fixture
def write(harness: CoordinatorHarness, tmp_path):
    """Write settings of a role with the key of one of the pool's accounts."""

    def write(role, name, **changes):
        key = tmp_path / f"{name}.key"
        if not key.exists():
            save_key(key, deploy.derive_key("test", name))
        values = {
            "home": str(tmp_path / role),
            "pool": harness.ctx.ledger.pool,
            "deployment": str(harness.ctx.config.deployment),
            "key_file": str(key),
            "coordinator_url": harness.url,
        }
        values |= {"origin_root": str(tmp_path / "origin")} if role == "trainer" else {}
        file = tmp_path / f"{role}.toml"
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in (values | changes).items()))
        return file

    return write


def examine(capsys, file, *options):
    """Return the exit code and the rows by name."""
    try:
        code = cli.app(["doctor", "--config", str(file), "--json", *options], standalone_mode=False) or 0
    finally:
        text = capsys.readouterr().out
    return code, {row["name"]: row for row in json.loads(text)}


@pytest.mark.parametrize(("role", "name"), [("worker", "node"), ("trainer", "trainer"), ("validator", "validator-0")])
def test_doctor__role_that_is_ready__is_well(harness: CoordinatorHarness, write, relay, capsys, role, name):
    code, rows = examine(capsys, write(role, name, relays=[relay]))
    assert (code, {n: row for n, row in rows.items() if row["status"] != "ok"}) == (0, {})
    assert rows["relays"]["detail"] == "1 of 1 relays serve policy 1"
    assert "weights need 4 KiB" in rows["memory"]["detail"]


def test_doctor__coordinator_that_runs__has_its_port_and_no_relay(
    harness: CoordinatorHarness, write, relay, tmp_path, capsys
):
    file = tmp_path / "coordinator.toml"
    config = harness.ctx.config
    values = {"home": tmp_path / "c", "pool": config.pool, "deployment": config.deployment, "key_file": config.key_file}
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()) + f"port = {config.port}\n")
    code, rows = examine(capsys, file)
    assert (code, rows["port"]["status"], rows["relays"]["status"]) == (1, "ok", "fail")
    assert (rows["role"]["status"], rows["bond"]["status"]) == ("ok", "warn")
    code, rows = examine(capsys, file, "--set", f"relays={relay}", "--set", f"port={find_free_ports(1)[0]}")
    assert (code, rows["port"]["detail"].endswith("is free"), rows["relays"]["status"]) == (0, True, "ok")


def test_doctor__stranger_and_a_relay_that_is_away__each_is_said_without_secrets(
    harness: CoordinatorHarness, write, relay, capsys
):
    file = write("worker", "stranger", relays=[relay.replace("http://", "http://user:secret@"), "http://127.0.0.1:9"])
    code, rows = examine(capsys, file)
    assert (code, rows["registration"]["status"], rows["stake"]["status"]) == (1, "fail", "skip")
    assert "covey worker register" in rows["registration"]["fix"]
    assert (rows["relays"]["status"], "http://127.0.0.1:9" in rows["relays"]["detail"]) == ("warn", True)
    assert "secret" not in json.dumps(rows)


def test_doctor__unbonded_stake_and_a_clock_that_is_wrong__fail(harness: CoordinatorHarness, write, unbond, capsys):
    unbond()
    harness.clock.offset = -20
    code, rows = examine(capsys, write("worker", "node"))
    assert (code, rows["stake"]["status"], rows["clock"]["status"]) == (1, "fail", "fail")
    assert f"requires {2 * MIN_STAKE} for 2 node" in rows["stake"]["detail"]
    assert f"covey stake add {MIN_STAKE + 1} --raw" in rows["stake"]["fix"]
    assert "ahead of the coordinator" in rows["clock"]["detail"]


def test_doctor__for_people__amounts_are_in_tokens_unless_raw(harness: CoordinatorHarness, write, capsys):
    file = str(write("worker", "node"))
    for options, stake in (([], "0.0000000000000003 CVT"), (["--raw"], str(3 * MIN_STAKE))):
        cli.app(["doctor", "--config", file, *options], standalone_mode=False)
        assert f"has a free stake of {stake}, but the pool" in capsys.readouterr().out


@pytest.mark.parametrize("is_silent", [False, True], ids=["closes", "silent"])
def test_doctor__node_of_the_chain_without_answers__is_asked_once(
    harness: CoordinatorHarness, write, capsys, monkeypatch, is_silent: bool
):
    """The node accepts connections. It ends them, or it is silent until the test ends and only a timeout remains."""
    if is_silent:
        monkeypatch.setattr(gathering, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(gathering, "CHAIN_SECONDS", HANG_S)  # The shorter timeout, that of one request, has to work.
    with RawServer(lambda path, send: is_silent and node.is_closed.wait(2 * HANG_S) and False) as node:
        code, rows = examine(capsys, write("worker", "node"), "--set", f"rpc_url={node.url}")
        assert (code, rows["chain"]["status"], rows["pool"]["status"]) == (1, "fail", "skip")
        assert node.url in rows["chain"]["detail"]
        assert len(node.paths) == 1
