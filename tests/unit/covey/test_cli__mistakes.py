"""What somebody new does wrong, one row each: the command, the part of its message that helps, the exit code.

Every message is one line with a stable code and the next step; what the shell's words are wrong for is exit 2.
"""

import json
import os
import shlex
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from http.server import HTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from covey.chain.deployment import CONTRACTS, Deployment
from covey.chain.wallet import save_key
from covey.cli import join
from covey.devnet.deploy import derive_key, derive_wallet
from covey.protocol.api.public import PoolView, Requirements
from covey.protocol.ids import Hash
from tests.fakes.refusing_node import RefusingNode
from tests.unit.conftest import Command

pytestmark = pytest.mark.unit

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
ADDRESSES = {
    name: derive_wallet("mistakes", name).address for name in ("operator", "trainer", "arbiter", "a", "b", "c")
}
OPERATOR, TRAINER, ARBITER, A, B, C = ADDRESSES.values()
POOL = f"""
[terms]
trainer = "{TRAINER}"
arbiter = "{ARBITER}"
validators = ["{A}", "{B}", "{C}"]
reward_per_million = 1_000_000
min_stake = 2
slash_amount = 2
validator_bond = 9
challenge_window = 10
veto_window = 10
unbond_window = 20
[params]
name = "p"
quorum = 2
environment = {{ kind = "reasoning_gym", options = {{ name = "spell_backward" }} }}
verification = {{ audit_rate = 1.0 }}
"""
TYPO = A[:-1] + ("0" if A[-1] != "0" else "1")
CHAIN = "--deployment {folder}/away.json"
COORDINATOR = "--pool 1 --coordinator-url http://127.0.0.1:9"
SIGNED = f"{CHAIN} --key-file {{folder}}/operator.key"
CREATE = f"pool create {{folder}}/pool.toml {SIGNED}"
NODE = "--deployment {folder}/node.json --key-file {folder}/operator.key --pool 1"

INIT = "init pool {folder}/new"
PUBLIC = f"{INIT} {CHAIN} --chain http://node.example/secret"

DEPLOY = "deploy --rpc http://127.0.0.1:{node} --key-file {folder}/operator.key --out {folder}/new.json"


JOIN = "join http://127.0.0.1:{node} {folder}/new --gpus 0"


def describe_pool(chain_id: int) -> str:
    """What a coordinator answers for its pool."""
    needs = Requirements(engine="any", compute_dtype="float32", hardware="any", execution_contracts={}, max_tokens=9)
    return PoolView(
        pool=1, params="{}", params_hash=Hash("0x" + "ab" * 32), terms={}, requirements=needs, operator=OPERATOR,
        signer=OPERATOR, chain_id=chain_id, contracts=dict.fromkeys(CONTRACTS, A), token=A, start_block=0, relays=(),
    ).model_dump_json()  # fmt: skip


class Row(NamedTuple):
    command: str
    """{folder} has the files that `folder` makes."""
    message: str
    """Must be in the one line on standard error; {folder} as above."""
    code: int = 1
    change: tuple[str, str] = ("", "")
    """A part of the pool's file, and what stands there instead."""
    refusal: str = ""
    """Solidity error, with its ABI data, of the node at node.json."""
    page: str = ""
    """What the same port answers to GET."""


ROWS = [
    # keys
    Row("wallet show {folder}/none.key", "no_key: the key file {folder}/none.key cannot be read"),
    Row("wallet show {folder}/junk.key", "bad_key: the file {folder}/junk.key does not contain a valid private key"),
    Row(
        "wallet show {folder}/open.key",
        "key_exposed: the key file {folder}/open.key is accessible to other users, with mode 644",
    ),
    Row("wallet show {folder}/open.key", "Run chmod 600 {folder}/open.key"),
    Row(f"pool start --key-file {{folder}}/open.key {CHAIN} --pool 1", "key_exposed: "),
    Row(f"worker register --node-key-file {{folder}}/open.key {SIGNED} --pool 1", "key_exposed: "),
    Row(
        "wallet new {folder}/operator.key",
        "key_exists: the key file {folder}/operator.key already exists. Choose a new file",
    ),
    Row(
        "wallet new {folder}/none/a.key",
        "no_folder: the key file {folder}/none/a.key cannot be created: No such file or directory",
    ),
    # the devnet
    Row(
        "devnet up --folder {folder}/half --port 0",
        "bad_state: the chain state in {folder}/half/state.json is incomplete",
    ),
    Row(
        "devnet up --folder {folder}/gone --port 0", "devnet_differs: {folder}/gone/deployment.json belongs to a chain"
    ),
    Row(
        "devnet up --folder {folder}/gone --port 0",
        "or start a new chain with covey devnet up --folder {folder}/gone --fresh",
    ),
    Row("devnet up --folder {folder}/new --port {busy}", "address_in_use: cannot listen on 127.0.0.1:{busy}"),
    Row(
        "devnet up --folder {folder}/new --port {node}", "devnet_runs: a devnet is already running on 127.0.0.1:{node}"
    ),
    Row(f"devnet fund {TYPO} --folder {{folder}}", f"bad_address: {TYPO} is mistyped: its checksum (EIP-55) is wrong"),
    Row(f"devnet fund {A.lower()} --folder {{folder}}", "has no checksum (EIP-55). Copy the address from"),
    Row(
        f"devnet fund {A} --folder {{folder}}/none",
        "no_deployment: the deployment file {folder}/none/deployment.json cannot be read",
    ),
    # the folder of a pool
    Row(f"{INIT} --chain http://node.example/secret", "the contract addresses on http://node.example are unknown. Add"),
    Row(f"{INIT} {CHAIN}", "bad_settings: --deployment cannot be combined with a devnet, which"),
    Row(
        f"{INIT} --public-url http://a.example",
        "bad_settings: --public-url and --relay cannot be combined with a devnet",
    ),
    Row(f"{PUBLIC}", "no_public_url: --public-url is missing, so contributors of a pool on http://node.example"),
    Row(f"{PUBLIC} --public-url pool.example", "bad_url: --public-url is pool.example, which is not a public base URL"),
    Row(f"{PUBLIC} --public-url http://a:secret@b.example", "bad_url: --public-url is http://b.example, which"),
    Row(
        f"{PUBLIC} --public-url http://b.example --relay ftp://b",
        "bad_url: --relay is ftp://b, which is not a public base URL",
    ),
    Row(f"{INIT} --chain sepolia {CHAIN}", "bad_url: --chain is sepolia, which is neither devnet nor the URL"),
    Row(f"{INIT} --device gpu", "bad_device: the device gpu cannot be used: "),
    Row("init pool /proc/new", "no_folder: /proc/new cannot be created: "),
    Row("init pool {folder}/half", "folder_not_empty: {folder}/half exists and is not an empty folder. Choose a new"),
    Row("init pool {folder}/right.toml", "folder_not_empty: {folder}/right.toml exists and is not an empty folder. Ch"),
    Row("init pool {folder}/right.toml/new", "no_folder: {folder}/right.toml cannot be created: File exists. Choose"),
    Row(
        f"{INIT} --model {{folder}}/half",
        "model_unavailable: the model folder {folder}/half has no config.json. Name a folder",
    ),
    Row(
        f"{INIT} --model ./none",
        "model_unavailable: the model folder ./none does not exist. Name a folder",
    ),
    Row(f"{INIT} --environment sudoku", "bad_environment: there is no environment kind called 'sudoku'. Use one of "),
    Row(
        f"{INIT} --chain http://node.example --deployment {{folder}}/none.json --public-url https://a.example",
        "no_deployment: the deployment file {folder}/n",
    ),
    Row("up {folder}/none", "no_processes: {folder}/none/processes.toml cannot be read: No such file or directory. Us"),
    Row("up {folder}", "no_processes: {folder}/processes.toml cannot be read"),
    Row(
        "up {folder}/quote",
        "bad_processes: the command of process relay in {folder}/quote/processes.toml has a syntax error",
    ),
    Row("up {folder}/quote", "No closing quotation. Correct the command in {folder}/quote/processes.toml"),
    Row("down {folder}/none", "no_processes: {folder}/none/processes.toml cannot be read: No such file or directory. "),
    Row("down {folder}", "no_processes: {folder}/processes.toml cannot be read"),
    Row("pool open {folder}/none", "no_processes: {folder}/none/processes.toml cannot be read: No such file or direc"),
    Row("pool open {folder}/quote", "bad_processes: the command of process relay in {folder}/quote/processes.toml has"),
    Row("pool open {folder}/work", "no_pool_file: {folder}/work has no coordinator.toml. Use a folder that covey"),
    Row(
        "pool open {folder}/lost",
        "no_deployment: the test chain of {folder}/lost has not been started yet. Run covey up {folder}/",
    ),
    Row(
        f"{DEPLOY} --token {A}",
        f"no_token: there is no contract at the token address {A} on http://127.0.0.1:{{node}}. Set",
    ),
    Row(f"{DEPLOY} --token {TYPO}", f"bad_address: {TYPO} is mistyped: its checksum (EIP-55) is wrong"),
    Row(
        f"{DEPLOY} --token {A} --out {{folder}}/right.toml",
        "file_exists: the output file {folder}/right.toml already exists. Choose a new",
    ),
    Row(f"{DEPLOY} --token {A} --out {{folder}}/none/d.json", "no_folder: {folder}/none/d.json cannot be written: No"),
    Row(f"{DEPLOY} --token {A} --out /proc/d.json", "no_folder: /proc/d.json cannot be written: "),
    Row(f"{DEPLOY} --token {A} --out /dev/full", "file_exists: the output file /dev/full already exists"),
    Row("up {folder}/lost", "bad_state: the chain state in {folder}/lost/chain/state.json is incomplete"),
    Row("up {folder}/lost", "or create another pool with covey init pool, because everything in {folder}/lost"),
    # pool files
    Row(CREATE, "bad_address: trainer in [terms] of {folder}/pool.toml is " + TYPO, change=(TRAINER, TYPO)),
    Row(CREATE, f"bad_address: validators[1] in [terms] of {{folder}}/pool.toml is {TYPO}", change=(B, TYPO)),
    Row(
        CREATE,
        "bad_address: arbiter in [terms] of {folder}/pool.toml is bob, which is not an address",
        change=(ARBITER, "bob"),
    ),
    Row(f"pool create {CONFIGS}/pool.toml {SIGNED}", "example_address: trainer, arbiter, validators[0], validators[1]"),
    Row(f"pool create {{folder}}/none.toml {SIGNED}", "no_pool_file: the pool file {folder}/none.toml cannot be read"),
    Row(CREATE, "bad_pool_file: {folder}/pool.toml is not valid TOML", change=("[terms]", "[terms")),
    Row(CREATE, "parms: unknown name; did you mean params?", change=("[params]", "[parms]")),
    Row(CREATE, "[terms] of {folder}/pool.toml is wrong: min_stake: missing. Cor", change=("min_stake = 2\n", "")),
    Row(CREATE, "min_steak: unknown name; did you mean min_stake?", change=("min_stake", "min_steak")),
    Row(
        CREATE, "[params] of {folder}/pool.toml is wrong: group_per_step: unknown", change=("quorum", "group_per_step")
    ),
    Row(CREATE, "did you mean groups_per_step?", change=("quorum", "group_per_step")),
    Row(CREATE, "quorum: belongs in [params]", change=("min_stake", "quorum = 2\nmin_stake")),
    Row(CREATE, "quorum is 4, but there are only 3 validators: lower quorum", change=("quorum = 2", "quorum = 4")),
    Row(CREATE, f"validators lists {B} more than once", change=(C, B)),
    Row(CREATE, "is also the operator, whose key signs this transaction", change=(ARBITER, OPERATOR)),
    Row(CREATE, "weak_pool: {folder}/pool.toml: the trainer is also a validator", change=(TRAINER, A)),
    Row(CREATE, "accept this with --yes", change=(TRAINER, OPERATOR)),
    Row(CREATE, "unbond_window is shorter than challenge_window + veto_window, which is 20", change=("= 20", "= 19")),
    Row(CREATE, "min_stake: is -2, but must not be negative", change=("min_stake = 2", "min_stake = -2")),
    Row(CREATE, "veto_window: is '10', but must be a whole number", change=("veto_window = 10", 'veto_window = "10"')),
    Row(CREATE, "run covey validator calibrate", change=("quorum", 'model = { compute_dtype = "bfloat16" }\nquorum')),
    Row(CREATE, "bad_environment: ", change=("spell_backward", "spel_backward")),
    Row("tasks filter x.toml --model m --out o --low 0.6 --high 0.5", "bad_bounds: --low 0.6 exceeds --high 0.5"),
    # settings
    Row(
        "coordinator serve --config {folder}/none.toml",
        "no_settings_file: the settings file {folder}/none.toml does not exist",
    ),
    Row("worker run --config {folder}/worker.toml", "coordinater_url: unknown name; did you mean coordinator_url?"),
    Row("worker run --config {folder}/worker.toml", "in {folder}/worker.toml: "),
    Row("trainer run", "home: missing; pool: missing; deployment: missing; key_file: missing; origin_root: missing"),
    Row("trainer run", "or set them with --set NAME=VALUE or COVEY_NAME=VALUE"),
    Row("validator run --set pool", "bad_settings: the option --set pool has no value. Write"),
    Row("worker run --config {folder}/right.toml --set pool=x", "pool: Input should be a valid integer"),
    Row("worker run --config {folder}/right.toml --engine vlm", "engine: Input should be 'auto', 'hf' or 'vllm'"),
    Row("doctor --engine vlm", "bad_engine: there is no inference engine called vlm. Use hf or vllm"),
    Row(
        "demo --json {folder}/none/x.json",
        "no_folder: the folder that should contain {folder}/none/x.json does not exist",
    ),
    # the chain
    Row(
        f"pool show {CHAIN} --pool 1",
        "chain_unreachable: the chain node http://127.0.0.1:9 did not respond to eth_chainId: ",
    ),
    Row(f"pool show {CHAIN} --pool 1", "Start that node, or correct rpc_url in the deployment file or the settings"),
    Row(
        "pool show --deployment {folder}/silent.json --pool 1",
        "no_rpc: neither the deployment file nor the settings have a URL of a node",
    ),
    Row(
        "pool show --deployment {folder}/silent.json --pool 1",
        "Set the URL in the variable COVEY_RPC_URL, in the setting rpc_url",
    ),
    Row(
        f"stake add 1 --kind friend {NODE}", "bad_kind: there is no kind of bond called friend. Use one of contributor"
    ),
    Row(f"devnet fund {A} --raw --tokens 1.5 --folder {{folder}}", "bad_amount: 1.5 has too many decimal places: the"),
    Row(
        f"devnet fund {A} --raw --tokens=-1 --folder {{folder}}",
        "bad_amount: -1 is not a valid amount. Write an amount such as 15",
    ),
    Row(f"pool invite {TYPO} {SIGNED} --pool 1", f"bad_address: {TYPO} is mistyped"),
    Row(f"case veto 0x12 {SIGNED} --pool 1", "bad_hash: 0x12 is not a hash: 0x and 64 hexadecimal digits"),
    Row(
        f"pool start {NODE}", "NotOperator(1, ", refusal="NotOperator(uint256,address)" + "1".zfill(64) + "2".zfill(64)
    ),
    Row(
        f"pool start {NODE}",
        "reverted: PoolRegistry.startPool: WrongState(1, 2). Check the pool's state with covey pool show",
        refusal="WrongState(uint256,uint8)" + "1".zfill(64) + "2".zfill(64),
    ),
    Row(
        f"worker remove {A} {NODE}",
        "Set --key-file to the key of the contributor that",
        refusal="NotContributor(uint256,address,address)" + "1".zfill(64) * 3,
    ),
    Row(
        "pool create {folder}/pool.toml --deployment {folder}/node.json --key-file {folder}/operator.key",
        "InvalidQuorum(4, 3). Lower quorum in [params] to at most the number of validators",
        refusal="InvalidQuorum(uint256,uint256)" + "4".zfill(64) + "3".zfill(64),
    ),
    Row(
        f"pool start {NODE}",
        f"insufficient_funds: account {OPERATOR} has 0.000000000000000005 ether, which is not enough gas for",
        refusal="poor",
    ),
    Row(
        "pool start --deployment {folder}/five.json --pool 1 --key-file {folder}/operator.key",
        "wrong_chain: the node http://127.0.0.1:{node} is on chain 31337, but the contracts are on chain 5",
    ),
    Row(
        f"pool start {NODE}",
        "old_deployment: the contracts have version '1', but this release supports version '3'. Use contracts",
        refusal="old",
    ),
    # a contributor's door
    Row("join http://127.0.0.1:{busy} {folder}/new", "coordinator_unreachable: http://127.0.0.1:{busy}/v1/pool did"),
    Row("join http://127.0.0.1:{busy} {folder}/new", "Start the coordinator, or correct"),
    Row(JOIN, "not_a_coordinator: the service at http://127.0.0.1:{node} is not a coordinator", page="<html>"),
    Row(JOIN, "Use the coordinator's base URL, as published by the pool's operator", page='{"pool": 1}'),
    Row("join http://127.0.0.1:{node} {folder}", "folder_not_empty: {folder} exists and is not an empty folder"),
    Row(
        "join 127.0.0.1:8000 {folder}/new",
        "bad_url: 127.0.0.1:8000 is not a valid URL of a coordinator. Use a URL such as http:",
    ),
    Row("join http://me:secret@a:99999 {folder}/new", "bad_url: http://a:99999 is not a valid URL of a coordinator"),
    Row(
        "join http://me:secret@a.example {folder}/new", "bad_url: http://a.example is not a valid URL of a coordinator"
    ),
    Row(JOIN, "no_deployment: it is unknown which contracts to trust with your stake", page=describe_pool(31337)),
    Row(
        f"{JOIN} {CHAIN}",
        "other_contracts: the coordinator uses different contracts: chain_id is 5 at the coordinator, but 31337",
        page=describe_pool(5),
    ),
    Row(
        f"{JOIN} --deployment {{folder}}/five.json",
        "wrong_chain: the node http://127.0.0.1:{node} is on chain 31337, but the contracts are on chain 5. Set --rpc",
        page=describe_pool(5),
    ),
    Row(f"{JOIN} {CHAIN}", "chain_unreachable: the chain node http://127.0.0.1:9 did not", page=describe_pool(31337)),
    Row(
        f"{JOIN} --key-file {{folder}}/open.key",
        "key_exposed: the key file {folder}/open.key is accessible to other users",
    ),
    Row(
        f"{JOIN} --key-file {{folder}}/operator.key",
        "not_confirmed: with --key-file this command stakes tokens, but there is no",
    ),
    Row("worker enroll {folder}", "no_processes: {folder}/processes.toml cannot be read"),
    Row("worker enroll {folder}/mine", "no_key: the key file {folder}/mine/keys/contributor.key cannot be read"),
    Row("worker enroll {folder}/mine --key-file {folder}/open.key", "key_exposed: "),
    Row(
        f"rewards show {CHAIN} {COORDINATOR}",
        "no_key: the contributor is unknown, because neither --contributor nor",
    ),
    Row(
        f"rewards show --contributor {TYPO} {CHAIN} {COORDINATOR}",
        f"bad_address: {TYPO} is mistyped",
    ),
    Row(
        f"rewards claim --key-file {{folder}}/open.key {CHAIN} {COORDINATOR}",
        "key_exposed: ",
    ),
    Row(
        f"rewards claim --wait {SIGNED} {COORDINATOR}",
        "chain_unreachable: the chain node http://127.0.0.1:9 did not respond",
    ),
    # words of the shell
    Row("pool creat", "No such command 'creat'. Did you mean 'create'?", 2),
    Row(f"pool show {SIGNED} --pool 1", "No such option: --key-file", 2),
    Row(f"pool show {CHAIN} --pool 0", "Invalid value for '--pool'", 2),
    Row(f"pool start {SIGNED}", "no_folder_named: --pool is missing, and there is no folder to read it from. Name the"),
    Row("submissions list", "Name the folder of a pool or a worker as FOLDER, or add --coordinator-url"),
    Row("pool show {folder}/half", "no_folder_settings: {folder}/half has no settings of a role, for example"),
    Row("relay status {folder}/mine", "no_relays: {folder}/mine runs neither a relay nor an origin. Name the URL of"),
    Row(f"worker status {A}", "no_coordinator: it is unknown which coordinator to ask. Add FOLDER or --coord"),
    Row(f"pool end {NODE}", "reverted: "),
    Row("worker leave {folder}", "no_processes: {folder}/processes.toml cannot be read"),
]


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """One that a node answers on, one that nobody answers on though it is taken."""
    with socket.socket() as busy, HTTPServer(("127.0.0.1", 0), RefusingNode) as node:
        busy.bind(("127.0.0.1", 0))
        threading.Thread(target=node.serve_forever, args=(0.01,), daemon=True).start()
        yield {"node": node.server_port, "busy": busy.getsockname()[1]}
        node.shutdown()


@pytest.fixture
def folder(tmp_path: Path, ports: dict[str, int]) -> Path:
    for name in ("operator", "open"):
        save_key(tmp_path / f"{name}.key", derive_key("mistakes", name))
    os.chmod(tmp_path / "open.key", 0o644)
    (tmp_path / "junk.key").touch(mode=0o600)
    contracts = dict.fromkeys(("pool_registry", "node_registry", "policy_registry", "stake_manager"), A)
    contracts |= dict.fromkeys(("epoch_ledger", "slashing_court", "token"), A)
    away = Deployment(chain_id=31337, rpc_url="http://me:secret@127.0.0.1:9/rpc?key=secret", start_block=0, **contracts)
    for place in ("away.json", "deployment.json", "gone/deployment.json"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(json.dumps(asdict(away)))  # as somebody wrote it by hand: Covey writes no secret
    away.save(tmp_path / "silent.json")
    Deployment(chain_id=31337, rpc_url=f"http://127.0.0.1:{ports['node']}", start_block=0, **contracts).save(
        tmp_path / "node.json"
    )
    replace(Deployment.load(tmp_path / "node.json"), chain_id=5).save(tmp_path / "five.json")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "processes.toml").write_text('[processes]\nworker = "worker run --config worker.toml"\n')
    for place in ("half", "lost/chain"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "state.json").write_text('{"block": {"number": "0x')
    commands = {
        "lost": "chain = 'devnet up --folder chain'",
        "quote": """relay = 'relay run "'""",
        "work": "worker = 'x'",
    }
    for place, line in commands.items():
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "processes.toml").write_text(f"[processes]\n{line}\n")
    right = 'home = "h"\npool = 1\ndeployment = "d.json"\nkey_file = "k"\ncoordinator_url = "http://127.0.0.1:8000"\n'
    (tmp_path / "right.toml").write_text(right)
    (tmp_path / "mine" / "worker.toml").write_text(right.replace("d.json", "../away.json"))
    (tmp_path / "worker.toml").write_text(right.replace("coordinator_url", "coordinater_url"))
    return tmp_path


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{' '.join(row.command.split()[:2])}-{row.message[:40]}")
def test_mistake__is_refused_with_what_helps(
    row: Row, folder: Path, ports: dict[str, int], command: Command, monkeypatch: pytest.MonkeyPatch
):
    old, new = row.change
    assert old in POOL
    (folder / "pool.toml").write_text(POOL.replace(old, new, 1) if old else POOL)
    monkeypatch.setattr(RefusingNode, "refusal", row.refusal)
    monkeypatch.setattr(RefusingNode, "page", row.page)
    monkeypatch.setattr(join, "ANSWER_SECONDS", 0.0)

    def fill(text: str) -> str:
        return (
            text.replace("{folder}", str(folder))
            .replace("{busy}", str(ports["busy"]))
            .replace("{node}", str(ports["node"]))
        )

    answer = command(*shlex.split(fill(row.command)))
    is_transient = "_unreachable: " in answer.err  # so that a supervisor may try again
    assert answer.code == (os.EX_TEMPFAIL if is_transient and row.code == 1 else row.code), answer.err
    assert fill(row.message) in " ".join(answer.err.split())
    assert "secret" not in answer.err
    if row.code == 1:
        *warnings, last = answer.err.splitlines()
        assert last.startswith("covey: ")
        assert all(line.startswith("warn: ") for line in warnings)
        assert answer.out == ""
        assert "Traceback" not in answer.err


def test_rows__are_many_and_each_command_is_there():
    assert len(ROWS) > 50
    kinds = {"wallet", "devnet", "pool", "worker", "stake", "case", "demo", "join", "rewards"}
    assert {row.command.split()[0] for row in ROWS} >= kinds
