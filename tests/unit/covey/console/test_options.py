"""The argument FOLDER, through commands that use it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from covey import cli
from covey.console import options
from covey.local.folder import create_pool_folder
from covey.local.plan import PoolPlan
from tests.fakes.account import ALICE, HASH, FakeAccount, runner

pytestmark = pytest.mark.unit
VARIABLES = ("DEPLOYMENT", "POOL", "KEY_FILE", "COORDINATOR_URL", "RPC_URL")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(f"COVEY_{name}", raising=False)
    create_pool_folder(tmp_path / "p", PoolPlan(validators=2))
    return tmp_path / "p"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int, object]]:
    """The deployment, key, pool and folder of every account that a command opens."""
    given = []

    def open_account(deployment, key_file, pool=0, *, folder=None):
        given.append((str(deployment), None if key_file is None else str(key_file), pool, folder))
        return FakeAccount(pool)

    monkeypatch.setattr(options, "open_account", open_account)
    return given


def run(*arguments: object) -> None:
    result = runner.invoke(cli.app, list(map(str, arguments)))
    assert result.exit_code == 0, (result.output, result.exception)


READS = ["pool show", "case show", "policy list"]
WRITES = ["pool start", "pool fund 1", "stake show", "rewards show", "registry pause", f"worker remove {ALICE}"]


@pytest.mark.parametrize("command", [*READS, *WRITES])
def test_folder__supplies_what_no_option_names(folder: Path, asked: list, monkeypatch, command: str):
    monkeypatch.setattr(FakeAccount, "list_relays", lambda self, url: ())
    run(*command.split(), folder)
    ((deployment, key, pool, used),) = asked
    assert deployment == str(folder / "chain/deployment.json")
    assert key == (None if command in READS else str(folder / "keys/operator.key"))
    assert (pool, used) == (0 if "registry" in command else 1, folder)


def test_folder__arbiters_commands__use_the_arbiters_key(folder: Path, asked: list):
    run("case", "veto", HASH, folder)
    run("epoch", "disable", "1", folder)
    assert [each[1] for each in asked] == [str(folder / "keys/arbiter.key")] * 2
    run("case", "veto", HASH, folder, "--key-file", "mine.key")
    assert asked[-1][1] == "mine.key"


def test_folder__option_of_the_command_with_many_arguments__is_the_same(folder: Path, asked: list):
    run("pool", "invite", ALICE, ALICE, "--folder", folder)
    assert asked[0][1:] == (str(folder / "keys/operator.key"), 1, folder)


def test_folder__command_line_then_folder_then_variables(folder: Path, asked: list, monkeypatch):
    for name, value in zip(VARIABLES, ("env.json", "7", "env.key", "http://env", ""), strict=True):
        monkeypatch.setenv(f"COVEY_{name}", value)
    run("pool", "start")
    run("pool", "start", folder)
    run("pool", "start", folder, "--pool", 9, "--key-file", "mine.key")
    assert [each[:3] for each in asked] == [
        ("env.json", "env.key", 7),
        (str(folder / "chain/deployment.json"), str(folder / "keys/operator.key"), 1),
        (str(folder / "chain/deployment.json"), "mine.key", 9),
    ]


def test_folder__working_directory__counts_last(folder: Path, asked: list, monkeypatch):
    monkeypatch.chdir(folder)
    run("pool", "start")
    monkeypatch.setenv("COVEY_POOL", "7")
    run("pool", "start")
    assert asked == [("chain/deployment.json", "keys/operator.key", pool, Path()) for pool in (1, 7)]


def test_folder__wrong_settings_of_the_working_directory__do_not_matter_if_all_is_named(tmp_path, asked, monkeypatch):
    (tmp_path / "worker.toml").write_text("pool = 0")
    monkeypatch.chdir(tmp_path)
    run("pool", "start", "--deployment", "d.json", "--key-file", "k", "--pool", 1)
    assert asked[0][:3] == ("d.json", "k", 1)


def test_folder__that_is_none__is_refused_even_if_all_is_named(tmp_path: Path, asked: list):
    result = runner.invoke(
        cli.app, ["pool", "start", str(tmp_path), "--deployment", "d", "--key-file", "k", "--pool=1"]
    )
    assert (result.exception.code, asked) == ("no_folder_settings", [])


@pytest.mark.parametrize(("validators", "key"), [(1, "validator-1.key"), (2, None)])
def test_stake__kind_of_the_folder__and_a_validators_key(tmp_path: Path, asked: list, validators: int, key: str | None):
    create_pool_folder(tmp_path / "q", PoolPlan(validators=validators))
    run("stake", "show", tmp_path / "q")
    shown = runner.invoke(cli.app, ["stake", "show", str(tmp_path / "q"), "--kind", "validator"])
    if key is None:
        assert shown.exception.code == "no_key"
        assert "validator-1.key" in shown.exception.fix
    else:
        assert asked[1][1] == str(tmp_path / "q/keys" / key)
    assert "kind  operator" in runner.invoke(cli.app, ["stake", "show", str(tmp_path / "q")]).stdout


def test_open_account__node__is_the_folders_if_the_deployment_is(folder: Path, monkeypatch: pytest.MonkeyPatch):
    opened = []
    monkeypatch.setattr("covey.console.account.Account", lambda *args, rpc_url: opened.append(rpc_url))
    text = (folder / "coordinator.toml").read_text()
    (folder / "coordinator.toml").write_text('rpc_url = "http://folder"\n' + text)
    monkeypatch.setenv("COVEY_RPC_URL", "http://env")
    options.open_account(folder / "chain/deployment.json", None, 1, folder=folder)
    options.open_account(Path("other.json"), None, 1, folder=folder)
    options.open_account(Path("other.json"), None, 1)
    assert opened == ["http://folder", "http://env", "http://env"]


def test_every_command_with_a_pool__takes_a_folder():
    """What is asked of a pool can be asked by its folder. Commands of a role have their settings instead."""
    asks, takes = set(), set()
    for path, command in walk(typer.main.get_command(cli.app)):
        names = {parameter.name: parameter for parameter in getattr(command, "params", ())}
        asks |= {path} if {"deployment", "coordinator_url"} & names.keys() else set()
        takes |= {path for name, each in names.items() if each.is_eager and name.endswith("folder")}
    assert asks - takes == EXCEPTIONS


EXCEPTIONS = {"join", "init pool", "market"}
"""Commands that create a folder, or are for those who have none yet."""


def walk(command, path=""):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, f"{path} {name}".strip())


def test_show__moments_and_amounts__are_texts_for_people_and_numbers_in_json(capsys):
    values = {"at": SimpleNamespace(value=5)}
    options.show(values, as_json=True)
    assert capsys.readouterr().out == '{"at": 5}\n'
