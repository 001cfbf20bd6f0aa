import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from eth_account import Account
from typer.testing import CliRunner

from covey import cli
from covey.chain.structs import BondKind, PoolState
from covey.cli import account, chain, roles
from covey.environments.base import EnvironmentSpec
from covey.environments.registry import compute_fingerprint, load
from covey.errors import OperatorError, TransientError
from covey.settings import Settings

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[4]
ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
HASH = "0x" + "ab" * 32
HEAVY = ("torch", "web3", "fastapi", "sqlalchemy", "celery", "pyarrow", "transformers", "numba", "httpx")
TREE = typer.main.get_command(cli.app)
runner = CliRunner()


def walk(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*path, name))


COMMANDS = {" ".join(path): command for path, command in walk(TREE)}


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "covey", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_commands__are_those_of_the_roles_and_tools():
    leaves = {name for name, command in COMMANDS.items() if not hasattr(command, "commands") and not command.hidden}
    assert leaves == {
        "demo",
        "devnet up",
        "devnet fund",
        "wallet new",
        "wallet show",
        "model tiny",
        "pool create",
        "pool fund",
        "pool start",
        "pool end",
        "pool show",
        "stake add",
        "stake unbond",
        "stake withdraw",
        "stake show",
        "rewards show",
        "rewards claim",
        "coordinator serve",
        "coordinator jobs",
        "worker run",
        "worker register",
        "validator run",
        "trainer run",
        "origin run",
        "relay run",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_help__every_command_and_every_option__has_a_text(name):
    command = COMMANDS[name]
    assert command.help, f"covey {name} has no help"
    for parameter in command.params:
        if parameter.name != "help":
            assert parameter.help, f"covey {name}: {parameter.name} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_help__every_command__answers_with_0(name):
    result = runner.invoke(cli.app, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_help__imports_nothing_heavy():
    code = f"""
import sys
sys.argv = ["covey", "--help"]
from covey.cli import main
try:
    main()
except SystemExit:
    pass
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help__best_of_five__under_half_a_second():
    """CPU seconds of the child would hide waiting, wall seconds hide a busy machine: the best wall clock counts."""
    best = 9.0
    for _ in range(5):
        started = time.perf_counter()
        assert run("--help").returncode == 0
        best = min(best, time.perf_counter() - started)
        if best < 0.5:
            break
    assert best < 0.5


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["wallet", "show", "nothing.key"], "no_key"),
        (["pool", "show", "--deployment", "nothing.json", "--pool", "1"], "no_deployment"),
        (["worker", "run", "--config", "nothing.toml"], "no_settings_file"),
        (["worker", "run", "--set", "pool"], "bad_settings"),
        (["worker", "run", "--set", "pool=x"], "bad_settings"),
    ],
)
def test_main__error_of_ours__one_line_with_its_code_and_exit_1(capsys, monkeypatch, arguments, code):
    monkeypatch.setattr(sys, "argv", ["covey", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"covey: {code}: ")


def test_main__in_a_process__no_traceback():
    done = run("wallet", "show", "nothing.key")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("covey: no_key: ")
    assert len(done.stderr.splitlines()) == 1


def test_main__unknown_command__exit_2():
    assert run("fly").returncode == 2


class Example(Settings):
    name: str = "default"
    count: int = 1
    places: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (None, Example()),
        ([], Example()),
        (["name=x", "count=3"], Example(name="x", count=3)),
        (["name=a=b"], Example(name="a=b")),
        (["name="], Example(name="")),
        (["count=1", "count=2"], Example(count=2)),
        (["places=http://a,http://b"], Example(places=("http://a", "http://b"))),
    ],
)
def test_set__name_and_value__parsed(sets, expected):
    assert roles.load_settings(Example, None, sets) == expected


@pytest.mark.parametrize(
    ("item", "word"), [("name", "has no value"), ("=x", "Extra"), ("nmae=x", "nmae"), ("count=x", "count")]
)
def test_set__wrong__operator_error_names_it(item, word):
    with pytest.raises(OperatorError, match=f"bad_settings.*{word}"):
        roles.load_settings(Example, None, [item])


def test_set__wins_over_file_and_environment(tmp_path, monkeypatch):
    (tmp_path / "c.toml").write_text('name = "file"\ncount = 2')
    monkeypatch.setenv("COVEY_NAME", "environment")
    assert roles.load_settings(Example, tmp_path / "c.toml", ["name=set"]) == Example(name="set", count=2)
    assert roles.load_settings(Example, tmp_path / "c.toml", []) == Example(name="environment", count=2)


class Contract:
    """Answers every read from `values`, and turns every other call into what would be sent."""

    def __init__(self, address, **values):
        self.address, self._values = address, values

    def __getattr__(self, name):
        if name in self._values:
            return lambda *_: self._values[name]
        return lambda *arguments, **named: SimpleNamespace(label=name, arguments=(*arguments, *named.values()))


class FakeAccount(account.Account):
    """An account on a chain that holds what the test says."""

    def __init__(self, pool):
        self.pool, self._wallet, self.sent, self.reward = pool, Account.from_key(b"\x11" * 32), [], None
        self.contracts = SimpleNamespace(
            deployment=SimpleNamespace(token=ALICE, chain_id=31337),
            pools=Contract(
                ALICE,
                get_terms=SimpleNamespace(trainer=ALICE, params_hash=HASH, reward_per_unit=3, min_stake=5, quorum=2),
                state_of=PoolState.ACTIVE,
                operator_of=ALICE,
                get_validators=[ALICE],
                escrow_of=100,
                count_pools=7,
            ),
            policies=Contract(ALICE, steps_of=4),
            ledger=Contract(ALICE, epochs_of=2, claimed_of=30, is_final=True),
            stakes=Contract(ALICE, stake_of=50, locked_of=1, unbondings_of=[SimpleNamespace(amount=2)] * 2),
            nodes=Contract(ALICE, nonce_of=0),
            token=Contract(ALICE, allowance=0),
        )

    def send(self, call):
        self.sent.append(call.label)
        return SimpleNamespace(transaction_hash=HASH)

    async def get_reward(self, coordinator_url, epoch):
        return self.reward


@pytest.fixture
def opened(monkeypatch):
    made = FakeAccount(1)
    monkeypatch.setattr(chain, "_open", lambda deployment, key_file, pool=0: made)
    return made


def invoke(*arguments, key=True):
    options = ["--deployment", "d.json", *(["--key-file", "k"] if key else [])]
    result = runner.invoke(cli.app, [*arguments, *options, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "sent", "expected"),
    [
        (["pool", "fund", "9", "--pool", "1"], ["approve", "fund_pool"], {"escrow": 100, "transaction": HASH}),
        (["pool", "start", "--pool", "1"], ["start_pool"], {"pool": 1, "transaction": HASH}),
        (["pool", "end", "--pool", "1"], ["end_pool"], {"pool": 1, "transaction": HASH}),
        (["stake", "add", "9", "--pool", "1"], ["approve", "stake"], {"stake": 50, "transaction": HASH}),
        (["stake", "unbond", "9", "--pool", "1"], ["unbond"], {"stake": 50, "transaction": HASH}),
        (["stake", "withdraw", "--pool", "1", "--kind", "validator"], ["withdraw"], {"stake": 50, "transaction": HASH}),
    ],
)
def test_json__commands_that_send__parses_and_names_the_transaction(opened, arguments, sent, expected):
    assert invoke(*arguments) == expected
    assert opened.sent == sent


def test_json__pool_show__every_value_once(opened):
    found = invoke("pool", "show", "--pool", "1", key=False)
    assert found == {
        "state": "active",
        "operator": ALICE,
        "trainer": ALICE,
        "params_hash": HASH,
        "reward_per_unit": 3,
        "min_stake": 5,
        "quorum": 2,
        "validators": [ALICE],
        "escrow": 100,
        "policies": 4,
        "epochs": 2,
    }
    plain = runner.invoke(cli.app, ["pool", "show", "--deployment", "d.json", "--pool", "1"]).stdout
    assert [line.split()[0] for line in plain.splitlines()] == list(chain_order(plain, found))


def chain_order(plain, found):
    """The names in the order printed; all of them."""
    names = [line.split()[0] for line in plain.splitlines()]
    assert set(names) == set(found)
    return names


def test_json__stake_show(opened):
    found = invoke("stake", "show", "--pool", "1")
    assert found == {"account": opened.wallet.address, "stake": 50, "unbonding": 4, "locked": 1}


def test_json__rewards__what_was_earned_less_what_was_claimed(opened):
    opened.reward = SimpleNamespace(cumulative=45, proof=())
    found = invoke("rewards", "show", "--pool", "1")
    assert found == {"contributor": opened.wallet.address, "epoch": 1, "earned": 45, "claimed": 30, "claimable": 15}
    assert invoke("rewards", "claim", "--pool", "1") == {"claimed": 15, "transaction": HASH}
    assert opened.sent == ["claim"]


def test_json__rewards_show__nothing_earned(opened):
    assert invoke("rewards", "show", "--pool", "1")["earned"] == 0


def test_worker_register__new_node__both_sign_and_the_key_is_kept(opened, tmp_path):
    path = tmp_path / "node.key"
    first = invoke("worker", "register", "--pool", "1", "--node-key-file", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    second = invoke("worker", "register", "--pool", "1", "--node-key-file", str(path))
    assert first["node"] == second["node"] != opened.wallet.address
    assert opened.sent == ["register_node"] * 2


def test_wallet__new_then_show__same_address_and_never_overwritten(tmp_path):
    path = tmp_path / "a.key"
    made = runner.invoke(cli.app, ["wallet", "new", str(path)])
    assert made.stdout == runner.invoke(cli.app, ["wallet", "show", str(path)]).stdout
    again = runner.invoke(cli.app, ["wallet", "new", str(path)])
    assert isinstance(again.exception, OperatorError)
    assert again.exception.code == "key_exists"


def test_bond_kind__names__and_a_wrong_one():
    assert [account.Account.bond_kind(name) for name in ("contributor", "VALIDATOR", "operator")] == list(BondKind)
    with pytest.raises(OperatorError, match=r"bad_kind: .* Use one of contributor, validator, operator"):
        account.Account.bond_kind("friend")


POOL_FILE = f"""
[terms]
trainer = "{ALICE}"
arbiter = "{ALICE}"
reward_per_unit = 1
min_stake = 2
slash_amount = 2
challenge_window = 10
veto_window = 10
unbond_window = 20
validators = ["{ALICE}"]
[params]
name = "p"
quorum = 1
environment = {{ kind = "reasoning_gym", options = {{ name = "spell_backward" }} }}
"""


def test_pool_file__terms_and_params__hash_and_quorum_of_the_params(tmp_path):
    (tmp_path / "p.toml").write_text(POOL_FILE)
    terms, validators, params = account.read_pool_file(tmp_path / "p.toml", ALICE)
    assert (terms.params_hash, terms.quorum, terms.token) == (params.compute_hash(), 1, ALICE)
    assert validators == [ALICE]
    spelling = load(EnvironmentSpec(kind="reasoning_gym", options={"name": "spell_backward"}))
    assert params.environment.fingerprint == compute_fingerprint(spelling)
    assert params.environment.options == {"name": "spell_backward"}


def with_environment(tmp_path, text):
    old = 'environment = { kind = "reasoning_gym", options = { name = "spell_backward" } }'
    assert old in POOL_FILE
    (tmp_path / "p.toml").write_text(POOL_FILE.replace(old, f"environment = {{ {text} }}"))
    return account.read_pool_file(tmp_path / "p.toml", ALICE)


def test_pool_file__fingerprint_of_its_own__is_kept_when_it_is_this_machines(tmp_path):
    named = 'kind = "reasoning_gym", options = { name = "spell_backward" }'
    filled = with_environment(tmp_path, named)[2]
    fingerprint = filled.environment.fingerprint
    assert with_environment(tmp_path, f'{named}, fingerprint = "{fingerprint}"')[2] == filled
    with pytest.raises(OperatorError, match="environment_differs"):
        with_environment(tmp_path, f'{named}, fingerprint = "0x{"00" * 32}"')


@pytest.mark.parametrize(
    "text",
    [
        'kind = "k"',
        'kind = "reasoning_gym", options = { name = "no such generator" }',
        'kind = "reasoning_gym", options = { name = "spell_backward", alpha = nan }',
    ],
)
def test_pool_file__environment_that_cannot_be_built__no_pool_is_made(tmp_path, text):
    with pytest.raises(OperatorError, match="bad_environment"):
        with_environment(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("[params]", "[parms]", "lacks 'params'"),
        ("quorum = 1", "quorum = 0\ngroup_size = 1", "group_size: .*; quorum: "),
        ("min_stake = 2", "", "min_stake"),
        ("min_stake = 2", "min_steak = 2", "min_steak"),
        ("[terms]", "[terms", "is wrong"),
        ("quorum = 1", 'quorum = 1\nmodel = { compute_dtype = "bfloat16" }', "compute_dtype: .*float32"),
        ("quorum = 1", "quorum = 1\nmax_submission_bytes = 4096", "max_submission_bytes must be at least "),
    ],
)
def test_pool_file__wrong__one_line_that_names_it(tmp_path, old, new, word):
    (tmp_path / "p.toml").write_text(POOL_FILE.replace(old, new))
    with pytest.raises(OperatorError, match=f"bad_pool_file: .*{word}") as caught:
        account.read_pool_file(tmp_path / "p.toml", ALICE)
    assert "\n" not in str(caught.value)


def test_pool_file__missing__operator_error(tmp_path):
    with pytest.raises(OperatorError, match="no_pool_file"):
        account.read_pool_file(tmp_path / "none.toml", ALICE)


def test_demo__failures__exit_1_and_the_summary_is_written(tmp_path, monkeypatch):
    from covey.demo import run as demo

    def play(options, *, on_summary):
        on_summary({"steps": options.steps})
        return ["it did not learn"]

    monkeypatch.setattr(demo, "run_demo", play)
    result = runner.invoke(cli.app, ["demo", "--steps", "3", "--json", str(tmp_path / "s.json")])
    assert result.exit_code == 1
    assert json.loads((tmp_path / "s.json").read_text()) == {"steps": 3}


def test_errors__transient__is_one_line_too(capsys, monkeypatch):
    def fail():
        raise TransientError("chain_unreachable", "no answer")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "covey: chain_unreachable: no answer\n"


def test_version__is_the_packages():
    answer = run("--version")
    assert (answer.returncode, answer.stdout) == (0, "covey 0.1.0\n")


def test_demo__summary_into_a_folder_that_is_not_there__is_said_before_anything_runs(tmp_path):
    answer = run("demo", "--json", str(tmp_path / "none" / "x.json"))
    assert answer.returncode == 1
    assert answer.stderr.startswith("covey: no_folder:")


def test_devnet_fund__no_address__says_what_to_name(tmp_path):
    answer = run("devnet", "fund", "0x12", "--folder", str(tmp_path))
    assert answer.returncode == 1
    assert answer.stderr.startswith("covey: bad_address:")
