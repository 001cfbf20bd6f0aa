"""Opening a pool on a real chain can be repeated, and continues where it was interrupted."""

import errno
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from eth_utils.crypto import keccak
from rich.console import Console

from coordinator.config import CoordinatorConfig
from covey.chain import abi_codec
from covey.chain.contracts import Contracts
from covey.chain.deploying import send_and_wait
from covey.chain.deployment import Deployment
from covey.chain.json_rpc import ChainClient
from covey.chain.sender import Sender
from covey.chain.structs import BondKind, PoolState
from covey.chain.token import Token
from covey.chain.wallet import load_key, save_key
from covey.cli import pool_open as cli_opening
from covey.cli import up_down
from covey.cli.init_commands import deploy
from covey.cli.pool_open import pool_open
from covey.console.account import Account
from covey.devnet import deploy as devnet
from covey.devnet.anvil import Anvil, find_anvil
from covey.environments import registry
from covey.errors import OperatorError, TransientError
from covey.local.folder import create_pool_folder, read_processes, write_processes
from covey.local.joining import is_devnet
from covey.local.plan import DEPLOYMENT_FILE, PUBLIC_WINDOWS, PoolPlan
from covey.local.pool_opening import find_open_pool, give_test_money, open_pool, plan_opening
from covey.local.screen import Screen
from covey.protocol.ids import PoolId

pytestmark = pytest.mark.integration

PROFILES = Path(__file__).resolve().parents[3] / "configs" / "chains"
TOKENS = 10**18
VALIDATORS = ("validator-1", "validator-2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    try:
        find_anvil()
    except OperatorError as error:
        pytest.skip(str(error))
    create_pool_folder(tmp_path / "mine", PoolPlan(validators=2))
    return tmp_path / "mine"


@pytest.fixture
def anvil(folder: Path) -> Iterator[Anvil]:
    anvil, _ = devnet.up(folder / "chain", block_time=None)
    yield anvil
    anvil.stop()


@pytest.fixture
def contracts(folder: Path, anvil: Anvil) -> Contracts:
    return Contracts(ChainClient(anvil.url), Deployment.load(folder / DEPLOYMENT_FILE))


def open_it(folder: Path) -> PoolId:
    return open_pool(folder, plan_opening(folder, escrow="100", operator_bond="10"), say=lambda _: None)


def require_whole(folder: Path, contracts: Contracts, pool: PoolId) -> None:
    assert contracts.pools.state_of(pool) is PoolState.ACTIVE
    assert contracts.ledger.escrow_of(pool) == 100 * TOKENS
    operator = load_key(folder / "keys/operator.key").address
    assert contracts.stakes.stake_of(pool, BondKind.OPERATOR, operator) == 10 * TOKENS
    for validator in contracts.pools.get_validators(pool):
        assert contracts.stakes.stake_of(pool, BondKind.VALIDATOR, validator) == TOKENS


def test_open_pool__devnet__is_whole_and_a_second_time_sends_nothing(folder: Path, contracts: Contracts):
    assert find_open_pool(folder) is None
    pool = open_it(folder)
    require_whole(folder, contracts, pool)
    assert find_open_pool(folder) == pool == 1
    client = ChainClient(contracts.deployment.rpc_url)
    before = client.block_number()  # each transaction is a block of its own
    assert open_it(folder) == pool
    assert client.block_number() == before


def test_prepare_pool__pool_is_open_already__settings_name_it(folder: Path, contracts: Contracts):
    pool = open_it(folder)
    for name in ("coordinator", "trainer", "validator-1"):
        file = folder / f"{name}.toml"
        file.write_text(file.read_text().replace(f"pool = {pool}", "pool = 7"))
    with Screen(Console(quiet=True), folder, None) as screen:
        up_down._prepare_pool(folder, screen)
    assert CoordinatorConfig.load(folder / "coordinator.toml", {}, {}).pool == pool == 1
    assert {f"pool = {pool}\n" in file.read_text() for file in folder.glob("[tv]*.toml")} == {True}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("veto_window = 15 ", "veto_window = 16 ", "veto_window in [terms] is 16, but 15 on chain"),
        ('name = "mine"', 'name = "second"', "name in [params]"),
        ("lease_seconds = 300", "lease_seconds = 301", "lease_seconds in [params]"),
    ],
)
def test_open_pool__pool_file_was_changed_after_it__is_refused_and_creates_no_other_pool(
    folder: Path, contracts: Contracts, old: str, new: str, what: str
):
    open_it(folder)
    text = (folder / "pool.toml").read_text()
    assert old in text
    (folder / "pool.toml").write_text(text.replace(old, new))
    for look in (open_it, find_open_pool):
        with pytest.raises(OperatorError) as caught:
            look(folder)
        assert caught.value.code == "pool_differs"
        assert f"was created with: {what}. Undo" in caught.value.message
    assert contracts.pools.count_pools() == 1


def test_open_pool__environments_library_was_changed__is_refused_and_creates_no_other_pool(
    folder: Path, contracts: Contracts, monkeypatch: pytest.MonkeyPatch
):
    open_it(folder)
    monkeypatch.setattr(registry, "compute_fingerprint", lambda _: "0x" + "12" * 32)
    with pytest.raises(OperatorError, match=r"pool_differs: .* created with: environment in \[params\]. .*install"):
        open_it(folder)
    assert contracts.pools.count_pools() == 1


@pytest.mark.parametrize("survived", range(6))
def test_open_pool__chain_is_lost_on_the_way__goes_on_where_it_was(
    folder: Path, contracts: Contracts, monkeypatch: pytest.MonkeyPatch, survived: int
):
    sent, send = [], Account.send

    def break_off(account, call):
        if len(sent) == survived:
            raise TransientError("chain_unreachable", "gone")
        sent.append(call.label)
        return send(account, call)

    with monkeypatch.context() as patch:
        patch.setattr(Account, "send", break_off)
        with pytest.raises(TransientError):
            open_it(folder)
    pool = open_it(folder)
    require_whole(folder, contracts, pool)
    assert contracts.pools.count_pools() == pool == 1


def test_open_pool__creation_is_still_pending__is_refused_and_later_creates_no_other_pool(
    folder: Path, contracts: Contracts, monkeypatch: pytest.MonkeyPatch
):
    client, send = ChainClient(contracts.deployment.rpc_url), Sender.send_and_wait
    give_all(folder, contracts)
    opening = plan_opening(folder, escrow="100", operator_bond="10")
    client.request("evm_setAutomine", False)
    with monkeypatch.context() as patch:
        patch.setattr(Sender, "send_and_wait", lambda *arguments: send(*arguments, timeout_s=0))
        with pytest.raises(TransientError, match=r"not_mined: PoolRegistry.createPool .*may still be mined"):
            open_pool(folder, opening, say=lambda _: None)
    with pytest.raises(OperatorError, match=r"pending_transaction: 0x.* has 1 pending transaction.*Wait"):
        open_it(folder)
    client.request("evm_setAutomine", True)
    client.request("evm_mine")
    require_whole(folder, contracts, open_it(folder))
    assert contracts.pools.count_pools() == 1


def leave_devnet(folder: Path) -> None:
    """Make the folder's chain count as an external one."""
    commands = read_processes(folder)
    del commands["chain"]
    write_processes(folder / "processes.toml", commands)


def give_all(folder: Path, contracts: Contracts) -> None:
    names = ("operator", "trainer", *VALIDATORS)
    addresses = [load_key(folder / f"keys/{name}.key").address for name in names]
    give_test_money(contracts.deployment, dict.fromkeys(addresses, 1000 * TOKENS))


def test_pool_open__chain_that_exists__refuses_short_windows_and_asks_before_it_spends(
    folder: Path, contracts: Contracts, monkeypatch: pytest.MonkeyPatch, capsys
):
    leave_devnet(folder)
    give_all(folder, contracts)
    with pytest.raises(OperatorError) as caught:
        pool_open(folder)
    assert caught.value.code == "short_windows"
    assert "unbond_window is 120, but a public pool requires 604800" in caught.value.message
    lengthen_windows(folder)
    with pytest.raises(OperatorError, match=r"not_confirmed: .* chain 31337 spends 112 CVT of token 0x.*--yes"):
        pool_open(folder)
    monkeypatch.setattr(cli_opening, "is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    with pytest.raises(typer.Abort):
        pool_open(folder)
    assert [line.split() for line in capsys.readouterr().err.splitlines()[:4]] == [
        ["escrow", "100", "CVT"], ["operator's", "bond", "10", "CVT"],
        ["bond", "of", "validator-1", "1", "CVT"], ["bond", "of", "validator-2", "1", "CVT"],
    ]  # fmt: skip
    assert contracts.pools.count_pools() == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    pool_open(folder)
    require_whole(folder, contracts, PoolId(1))
    monkeypatch.setattr(cli_opening, "is_terminal", lambda: False)
    pool_open(folder)  # nothing remains to be spent
    assert contracts.pools.count_pools() == 1


def test_pool_open__yes__takes_short_windows_without_a_question(folder: Path, contracts: Contracts):
    leave_devnet(folder)
    give_all(folder, contracts)
    pool_open(folder, yes=True)
    require_whole(folder, contracts, PoolId(1))


def lengthen_windows(folder: Path) -> None:
    text = (folder / "pool.toml").read_text()
    for window, seconds in PUBLIC_WINDOWS.items():
        text = re.sub(rf"(?m)^{window} = \d+", f"{window} = {seconds}", text)
    (folder / "pool.toml").write_text(text)


def test_pool_open__one_account_in_two_roles__is_refused_without_a_terminal(folder: Path, contracts: Contracts):
    leave_devnet(folder)
    give_all(folder, contracts)
    lengthen_windows(folder)
    trainer, operator = (load_key(folder / f"keys/{name}.key").address for name in ("trainer", "operator"))
    text = (folder / "pool.toml").read_text()
    (folder / "pool.toml").write_text(text.replace(f'trainer = "{trainer}"', f'trainer = "{operator}"'))
    with pytest.raises(OperatorError, match=r"weak_pool: .*trainer and operator are the same account"):
        pool_open(folder)
    assert contracts.pools.count_pools() == 0
    pool_open(folder, yes=True)
    require_whole(folder, contracts, PoolId(1))
    lines: list[str] = []
    open_pool(folder, plan_opening(folder, escrow="100", operator_bond="10"), say=lines.append)
    assert lines == ["pool 1 is open"]


def test_pool_open__terms_that_pay_for_cheating__needs_force_on_a_chain_that_exists(
    folder: Path, contracts: Contracts, capsys
):
    """A task of 4 x 8 completions of 8 tokens pays 0.000256 CVT."""
    leave_devnet(folder)
    give_all(folder, contracts)
    lengthen_windows(folder)
    text = (folder / "pool.toml").read_text()
    for name in ("min_stake", "slash_amount"):
        text, count = re.subn(
            rf"^{name} = 1_000_000_000_000_000_000\b", f"{name} = 1_000_000_000_000_000", text, flags=re.M
        )
        assert count == 1
    (folder / "pool.toml").write_text(text)
    with pytest.raises(OperatorError, match=r"weak_terms: .*lose 0\.\d\d times .*least 3 times: set audit_rate to 0"):
        pool_open(folder, yes=True)
    assert contracts.pools.count_pools() == 0
    pool_open(folder, yes=True, force=True)
    assert re.match(
        r"a cheat is expected to lose 0\.\d times its gain by the worst plan: small differences in all rows",
        capsys.readouterr().out,
    )
    assert contracts.pools.count_pools() == 1


def test_open_pool__validators_key_is_elsewhere__says_who_has_to_bond_it(folder: Path, contracts: Contracts):
    away = folder / "keys/validator-2.key"
    address, lines = load_key(away).address, []
    away.rename(folder / "elsewhere.key")
    open_pool(folder, plan_opening(folder, escrow="100", operator_bond="10"), say=lines.append)
    (line,) = (line for line in lines if address in line)
    command = f"covey stake add {TOKENS} --raw --kind validator --pool 1 --deployment FILE --key-file FILE"
    assert line == f"pool 1: the owner of {address} must add the validator's bond with: {command}"
    (folder / "elsewhere.key").rename(away)
    open_it(folder)
    require_whole(folder, contracts, PoolId(1))


def test_open_pool__no_money_and_no_devnet__names_everybody_and_sends_nothing(folder: Path, contracts: Contracts):
    leave_devnet(folder)
    with pytest.raises(OperatorError) as caught:
        open_it(folder)
    assert caught.value.code == "unfunded"
    needed = {"operator": "110 CVT", "trainer": "0 CVT", "validator-1": "1 CVT", "validator-2": "1 CVT"}
    for name, amount in needed.items():
        address = load_key(folder / "keys" / f"{name}.key").address
        assert f"{address} needs ether for gas and {amount}" in caught.value.message
    assert contracts.pools.count_pools() == 0


def test_open_pool__terms_name_another_token__amounts_and_balances_are_that_tokens(folder: Path, contracts: Contracts):
    deployer, client = devnet.derive_wallet(devnet.DEVNET_SEED, "deployer"), ChainClient(contracts.deployment.rpc_url)
    data = abi_codec.encode_deployment("TestToken", ())
    chain_id = contracts.deployment.chain_id
    created = send_and_wait(client, deployer, to=None, data=data, chain_id=chain_id)
    other = Token(client, created.contract)
    text = (folder / "pool.toml").read_text()
    (folder / "pool.toml").write_text(text.replace("\n[terms]\n", f'\n[terms]\ntoken = "{other.address}"\n'))
    with pytest.raises(OperatorError, match=r"unfunded: .*110 CVT"):
        open_it(folder)
    assert contracts.pools.count_pools() == 0
    addresses = {name: load_key(folder / f"keys/{name}.key").address for name in ("operator", *VALIDATORS)}
    for address in addresses.values():
        call = other.mint(address, 110 * TOKENS)
        send_and_wait(client, deployer, to=call.to, data=call.data, chain_id=chain_id)
    require_whole(folder, contracts, open_it(folder))
    assert {contracts.token.balance_of(address) for address in addresses.values()} == {0}
    assert other.balance_of(addresses["operator"]) == 0


def test_give_test_money__anvil__is_known_as_a_devnet_and_pays(contracts: Contracts):
    assert is_devnet(contracts.deployment)
    stranger = devnet.derive_wallet("stranger", "any").address
    give_test_money(contracts.deployment, {stranger: 7})
    assert contracts.token.balance_of(stranger) == 7


def test_deploy__chain_with_a_token__writes_a_file_that_others_can_use(contracts: Contracts, tmp_path: Path, capsys):
    rpc, out = contracts.deployment.rpc_url, tmp_path / "deployment.json"
    wallet = save_key(tmp_path / "admin.key", b"\x07" * 32)
    ChainClient(rpc).request("anvil_setBalance", wallet.address, hex(10**20))
    arguments = {"rpc": rpc, "key_file": tmp_path / "admin.key", "out": out, "as_json": True}
    with pytest.raises(OperatorError, match="no_token"):
        deploy(token=wallet.address, **arguments)
    assert not out.exists()
    deploy(token=contracts.token.address, **arguments)
    made = Deployment.load(out)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["pool_registry"] == made.pool_registry
    for address in made.get_contracts().values():
        assert f" deployed at {address}\n" in printed.err
    assert f"chain 31337 from block {made.start_block}\n" in printed.err
    assert made.token == contracts.token.address
    client = ChainClient(rpc)
    assert Contracts(client, made).pools.count_pools() == 0
    paid = client.count_transactions(wallet.address)
    deploy(token=contracts.token.address, **arguments)
    assert "SlashingCourt is already deployed at" in capsys.readouterr().err
    assert (Deployment.load(out), client.count_transactions(wallet.address)) == (made, paid)
    (tmp_path / "deployment.json.journal").unlink()
    with pytest.raises(OperatorError, match="file_exists"):
        deploy(token=contracts.token.address, **arguments)


def test_deploy__profile__bounds_fees_and_names_the_chain(contracts: Contracts, tmp_path: Path):
    rpc, out, profile = contracts.deployment.rpc_url, tmp_path / "deployment.json", tmp_path / "chain.toml"
    wallet = save_key(tmp_path / "admin.key", b"\x07" * 32)
    ChainClient(rpc).request("anvil_setBalance", wallet.address, hex(10**20))
    arguments = {"rpc": rpc, "key_file": tmp_path / "admin.key", "out": out, "token": contracts.token.address}
    with pytest.raises(OperatorError, match=r"wrong_chain: .*Base Sepolia, chain 84532, but .* has chain 31337"):
        deploy(chain=PROFILES / "base-sepolia.toml", **arguments)
    profile.write_text('name = "Local"\nchain_id = 31337\nfinality = "latest"\nmax_fee_gwei = 1e-9\n')
    with pytest.raises(TransientError, match="fee_too_high"):
        deploy(chain=profile, **arguments)
    profile.write_text('name = "Local"\nchain_id = 31337\nfinality = "latest"\n')
    deploy(chain=profile, **arguments)
    assert Deployment.load(out).token == contracts.token.address


def test_deploy__verification_files__match_what_is_on_the_chain(contracts: Contracts, tmp_path: Path):
    rpc, out = contracts.deployment.rpc_url, tmp_path / "net.json"
    wallet = save_key(tmp_path / "admin.key", b"\x07" * 32)
    client = ChainClient(rpc)
    client.request("anvil_setBalance", wallet.address, hex(10**20))
    deploy(rpc=rpc, key_file=tmp_path / "admin.key", out=out, token=contracts.token.address)
    made, folder = Deployment.load(out), tmp_path / "net-verification"
    for name, address in made.get_contracts().items():
        fields = json.loads((folder / f"{name}.json").read_text())
        assert (fields["address"], fields["contract"]) == (address, f"contracts/{name}.sol:{name}")
        assert fields["code_hash"] == "0x" + keccak(client.get_code(address)).hex()
    arguments = bytes.fromhex(json.loads((folder / "EpochLedger.json").read_text())["constructor_arguments"])
    constructor = abi_codec.load_artifact("EpochLedger").constructor
    expected = (made.pool_registry, made.node_registry, made.stake_manager)
    assert abi_codec.decode_values(constructor, arguments) == expected
    assert "contracts/EpochLedger.sol" in json.loads((folder / "standard-input.json").read_text())["sources"]


@pytest.mark.parametrize(("failing", "is_paid"), [("save", True), ("fsync", False)])
def test_deploy__file_cannot_be_written__names_what_was_paid_or_pays_nothing(
    contracts: Contracts, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, failing: str, is_paid: bool
):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    rpc, out = contracts.deployment.rpc_url, tmp_path / "deployment.json"
    wallet = save_key(tmp_path / "admin.key", b"\x07" * 32)
    client = ChainClient(rpc)
    client.request("anvil_setBalance", wallet.address, hex(10**20))
    with monkeypatch.context() as patch:
        patch.setattr(*((Deployment, "save") if failing == "save" else (os, "fsync")), fail)
        with pytest.raises((OSError, OperatorError), match="No space left"):
            deploy(rpc=rpc, key_file=tmp_path / "admin.key", out=out, token=contracts.token.address)
    assert not out.exists()
    assert (client.count_transactions(wallet.address) > 0) is is_paid
    assert ("SlashingCourt deployed at 0x" in capsys.readouterr().err) is is_paid
