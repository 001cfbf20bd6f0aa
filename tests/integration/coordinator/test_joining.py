"""`covey join` with a real chain and coordinator stakes nothing before checks have passed and the user has agreed."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from covey import cli
from covey.chain.history import History
from covey.chain.wallet import load_key, save_key
from covey.cli import join as module
from covey.devnet import deploy
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.local import joining
from covey.protocol.api.public import PoolView
from covey.protocol.hardware_needs import HardwareNeeds
from covey.protocol.ids import PoolId
from tests.fakes.network import MIN_STAKE, CoordinatorHarness, create_pool

pytestmark = pytest.mark.integration


@pytest.fixture
def join(harness: CoordinatorHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run `covey join` for the folder "mine" without starting its workers."""
    worked: list[Path] = []
    monkeypatch.setattr(module, "keep_up", lambda folder, console: worked.append(folder))
    monkeypatch.setattr(module, "is_terminal", lambda: True)
    harness.chain.deployment.save(tmp_path / "deployment.json")
    key = tmp_path / "contributor.key"
    save_key(key, deploy.derive_key("test", "contributor"))

    def run(*options: str, stakes: bool = False, typed: str | None = None) -> Result:
        signing = ["--key-file", str(key)] if stakes else []
        node = f"{harness.chain.client.rpc_url}/?key=secret"
        fixed = ["--deployment", str(tmp_path / "deployment.json"), "--rpc", node, "--gpus", "0", *signing]
        return CliRunner().invoke(cli.app, ["join", harness.url, str(tmp_path / "mine"), *fixed, *options], input=typed)

    run.worked = worked  # type: ignore[attr-defined]
    return run


def list_chain(harness: CoordinatorHarness) -> tuple[int, list[str]]:
    """Return the number of the contributor's transactions, and the nodes that it has registered."""
    who, client = harness.chain.address("contributor"), harness.chain.client
    history = History(client=client, contracts=harness.chain.contracts)
    return client.count_transactions(who), history.list_nodes(harness.ctx.ledger.pool, who)


def test_join__no_key__one_document_with_the_checks_and_what_comes_next(
    harness: CoordinatorHarness, join, tmp_path: Path
):
    """No relay serves the policy in this test."""
    before, result = list_chain(harness), join("--json")
    shown = json.loads(result.stdout)
    rows = {row["name"]: row for row in shown["checks"]}
    assert (result.exit_code, shown["enrolled"], rows["relays"]["status"]) == (0, None, "fail")
    assert not {"registration", "stake"} & rows.keys(), "which enrolling mends"
    mine = tmp_path / "mine"
    assert shown["next"] == [
        f"covey doctor --config {mine}/worker.toml",
        f"covey worker enroll {mine}",
        f"covey up {mine} --detach",
    ]
    assert "received 0.0000000000000002 CVT and ether for gas" in result.stderr
    assert list_chain(harness) == before


@pytest.mark.parametrize("options", [(), ("--json",), ("--yes",)])
def test_join__check_that_fails__ends_before_anything_is_staked(
    harness: CoordinatorHarness, join, tmp_path: Path, options
):
    before, result = list_chain(harness), join(*options, stakes=True, typed="y\n")
    assert (result.exit_code, list_chain(harness), join.worked) == (1, before, [])
    if "--json" in options:
        shown = json.loads(result.stdout)
        assert [row["name"] for row in shown["checks"] if row["status"] == "fail"] == ["relays"]
        assert shown["next"][1] == f"covey worker enroll {tmp_path / 'mine'} --key-file {tmp_path}/contributor.key"
    else:
        assert "fail: relays: 0 of 1 relays serve policy 0; " in result.stdout
        assert f"covey doctor --config {tmp_path / 'mine'}/worker.toml" in result.stdout


def test_join__no_is_typed__nothing_changes_on_chain(harness: CoordinatorHarness, join, relay, monkeypatch):
    monkeypatch.setenv("COVEY_RELAYS", relay)
    before, result = list_chain(harness), join(stakes=True, typed="n\n")
    assert (result.exit_code, list_chain(harness), join.worked) == (1, before, [])
    # the stake covers two of three nodes
    assert f"Stake 0 CVT in pool {harness.ctx.ledger.pool} and register 1 node(s)?" in result.stderr
    assert harness.chain.deployment.stake_manager in result.stderr
    assert "nothing was staked" in result.stderr
    assert "covey worker enroll" in result.stdout


def test_join__yes_is_typed__stakes_registers_and_works(
    harness: CoordinatorHarness, join, relay, monkeypatch, tmp_path: Path
):
    monkeypatch.setenv("COVEY_RELAYS", relay)
    before, result = list_chain(harness), join(stakes=True, typed="y\n")
    assert (result.exit_code, join.worked) == (0, [tmp_path / "mine"]), result.output
    sent, nodes = list_chain(harness)
    assert (sent, len(nodes)) == (before[0] + 1, 3), "one registration"
    assert "registered  1" in result.stdout


def test_join__json_and_yes__is_one_document(harness: CoordinatorHarness, join, relay, unbond, monkeypatch):
    """The stake was 300, and 201 of it is unbonding, so three nodes require 201 more."""
    unbond()
    monkeypatch.setenv("COVEY_RELAYS", relay)
    result = join("--json", "--yes", stakes=True)
    shown = json.loads(result.stdout)
    assert (result.exit_code, len(join.worked), shown["next"]) == (0, 1, [])
    assert (shown["enrolled"]["added"], shown["enrolled"]["backed"]) == (2 * MIN_STAKE + 1, 3)
    assert {row["status"] for row in shown["checks"]} <= {"ok", "warn"}


def test_join__parameters_that_the_chain_does_not_hold__are_refused(harness: CoordinatorHarness, join, tmp_path: Path):
    """The coordinator describes a pool with longer leases than the pool on chain."""
    changed = harness.ctx.params_text.replace('"lease_seconds":30', '"lease_seconds":31')
    assert changed != harness.ctx.params_text
    object.__setattr__(harness.ctx, "params_text", changed)
    try:
        result = join()
    finally:
        object.__setattr__(harness.ctx, "params_text", harness.ctx.params.to_text())
    assert isinstance(result.exception, ProtocolError)
    assert result.exception.code == "bad_params"
    assert not (tmp_path / "mine").exists()


def test_join__nobody_to_ask__is_refused_before_anything_is_made(join, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(module, "is_terminal", lambda: False)
    result = join(stakes=True)
    assert isinstance(result.exception, OperatorError)
    assert result.exception.code == "not_confirmed"
    assert not (tmp_path / "mine").exists()


def test_join__token_that_does_not_say_its_decimals__leaves_no_folder(
    harness: CoordinatorHarness, join, tmp_path: Path
):
    harness.chain.client.request("anvil_setCode", harness.ctx.terms.token, "0x")
    result = join()
    assert isinstance(result.exception, OperatorError)
    assert result.exception.code == "odd_token"
    assert not (tmp_path / "mine").exists()


def test_join__token_that_is_not_the_devnets_own__gives_ether_alone(harness: CoordinatorHarness, join, tmp_path: Path):
    deployment = harness.chain.deployment
    replace(deployment, token=deployment.pool_registry).save(tmp_path / "deployment.json")
    result = join("--json")
    address = load_key(tmp_path / "mine/keys/contributor.key").address
    assert result.exit_code == 0, result.exception
    assert f"test chain: {address} received ether for gas" in result.stderr
    assert harness.chain.client.get_balance(address) > 0
    assert harness.chain.contracts.token.balance_of(address) == 0


def test_join__test_money_that_is_not_given__is_a_warning(join, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def refuse(*arguments: object) -> None:
        raise TransientError("chain_unreachable", "the node has ended")

    monkeypatch.setattr("covey.local.pool_opening.give_test_money", refuse)
    result = join("--json")
    assert result.exit_code == 0, result.exception
    assert "warn: no test tokens were received: the node has ended" in result.stderr
    assert json.loads(result.stdout)["folder"] == str(tmp_path / "mine")


@pytest.fixture
def needy(harness: CoordinatorHarness, monkeypatch: pytest.MonkeyPatch) -> PoolId:
    """Let the coordinator describe a pool on chain that asks for more memory than any machine has."""
    params = harness.ctx.params.model_copy(update={"needs": HardwareNeeds(min_memory_bytes=1 << 50)})
    pool = create_pool(harness.chain, params)
    ask = joining.ask_for_pool

    async def ask_for_needy(url: str) -> PoolView:
        changes = {"pool": pool, "params": params.to_text(), "params_hash": params.compute_hash()}
        return (await ask(url)).model_copy(update=changes)

    monkeypatch.setattr(joining, "ask_for_pool", ask_for_needy)
    return pool


def test_join__machine_that_the_pool_does_not_fit__is_refused_before_anything_is_made(
    harness: CoordinatorHarness, join, needy: PoolId, tmp_path: Path
):
    before, result = list_chain(harness), join("--yes", stakes=True)
    assert isinstance(result.exception, OperatorError)
    assert result.exception.code == "machine_misfit"
    assert f"does not fit pool {needy}: The pool asks for 1048576.0 GiB of memory" in str(result.exception)
    assert list_chain(harness) == before
    assert not (tmp_path / "mine").exists()


def test_join__force__goes_on_with_a_warning(join, needy: PoolId, tmp_path: Path):
    result = join("--force", "--json")
    assert result.exit_code == 0, result.exception
    assert "warn: The pool asks for 1048576.0 GiB of memory, and this machine has " in result.stderr
    (sentence,) = json.loads(result.stdout)["misfits"]
    assert sentence.startswith("The pool asks for 1048576.0 GiB of memory")
    assert (tmp_path / "mine" / "worker.toml").exists()


def test_list_steps__blank_in_a_path__is_quoted():
    steps = module._list_steps(Path("my worker"), [Path("my worker/worker.toml")], Path("my key"), is_ready=False)
    assert [shlex.split(step)[1:] for step in steps] == [
        ["doctor", "--config", "my worker/worker.toml"],
        ["worker", "enroll", "my worker", "--key-file", "my key"],
        ["up", "my worker", "--detach"],
    ]
