import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import covey
from covey import cli
from covey.chain.deployment import CONTRACTS, Deployment
from covey.chain.wallet import save_key
from covey.console.options import load_settings
from covey.errors import OperatorError, TransientError
from covey.runtime.settings import Settings

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
BOB = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
HASH = "0x" + "ab" * 32
HEAVY = ("torch", "web3", "fastapi", "sqlalchemy", "celery", "pyarrow", "transformers", "numba", "httpx", "asyncio")
TREE = typer.main.get_command(cli.app)
runner = CliRunner()


def walk(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*path, name))


COMMANDS = {" ".join(path): command for path, command in walk(TREE)}
LEAVES = [name for name, command in COMMANDS.items() if not hasattr(command, "commands") and not command.hidden]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "covey", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def test_commands__are_those_of_the_roles_and_tools():
    assert set(LEAVES) == {
        "rewards challenge",
        "pool list",
        "pool announce",
        "market show",
        "market history",
        "status",
        "watch",
        "rewards resolve",
        "rewards withdraw-ether",
        "rewards payee",
        "rewards withdraw-credit",
        "case equivocation",
        "case slash-signer",
        "case slash-accept",
        "worker rotate",
        "worker measure",
        "worker consent",
        "worker pardon",
        "pool withdraw-invitation",
        "registry pause",
        "registry unpause",
        "demo",
        "doctor",
        "eval",
        "report",
        "ui",
        "rollouts show",
        "train",
        "init pool",
        "pool open",
        "pool pause",
        "pool resume",
        "up",
        "down",
        "join",
        "deploy",
        "worker enroll",
        "config show",
        "devnet up",
        "devnet fund",
        "wallet new",
        "wallet show",
        "model tiny",
        "pool create",
        "pool fund",
        "pool start",
        "pool end",
        "pool refund",
        "pool price",
        "pool rotate",
        "pool heir",
        "pool invite",
        "pool replace-validator",
        "pool show",
        "tasks check",
        "tasks example",
        "tasks filter",
        "tasks import",
        "tasks select",
        "tasks show",
        "stake add",
        "stake unbond",
        "stake withdraw",
        "stake show",
        "rewards show",
        "rewards statement",
        "rewards claim",
        "submissions list",
        "submissions show",
        "policy fetch",
        "policy list",
        "policy verify",
        "relay status",
        "epoch disable",
        "epoch post",
        "epoch sign",
        "case execute",
        "case show",
        "case veto",
        "coordinator pages",
        "coordinator serve",
        "coordinator jobs",
        "coordinator migrate",
        "coordinator restored",
        "worker run",
        "worker leave",
        "worker status",
        "worker register",
        "worker remove",
        "validator run",
        "validator audit",
        "validator calibrate",
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


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders that examples name."""
    place = tmp_path_factory.mktemp("folders")
    for folder, file in (("mypool", "coordinator.toml"), ("myworker", "worker.toml")):
        (place / folder).mkdir()
        (place / folder / file).write_text('home = "h"\npool = 1\ndeployment = "d.json"\nkey_file = "k"\n')
    return place


@pytest.mark.parametrize("name", LEAVES)
def test_help__every_command__has_an_example_that_parses(name, folders, monkeypatch):
    monkeypatch.chdir(folders)
    (example,) = re.findall(r"Example: `covey ([^`]*)`", COMMANDS[name].help)
    words = name.split()
    arguments = shlex.split(example)
    assert arguments[: len(words)] == words
    COMMANDS[name].make_context(name, arguments[len(words) :])


@pytest.mark.parametrize("name", [name for name in LEAVES if name.split()[-1] in ("show", "list")] + ["doctor"])
def test_json__every_command_that_shows_something__has_it(name):
    (option,) = (parameter for parameter in COMMANDS[name].params if "--json" in parameter.opts)
    assert (option.name, option.is_flag) == ("as_json", True)


@pytest.mark.parametrize("name", COMMANDS)
def test_help__every_command__shows_all_of_its_texts(name):
    """Nothing is taken for markup: "[terms]" stays what it is."""
    result = runner.invoke(cli.app, [*name.split(), "--help"], env={"COLUMNS": "400"})  # columns without breaks
    assert result.exit_code == 0
    assert "Usage" in result.output
    shown = squeeze(result.output)
    texts = [COMMANDS[name].help, *(parameter.help for parameter in COMMANDS[name].params if parameter.name != "help")]
    assert [text for text in texts if squeeze(text) not in shown] == []


def squeeze(text):
    """What is left without spaces, the frames around tables, and the marks of code."""
    return re.sub(r"[\s│`]", "", text)


def test_help__brackets__are_shown():
    output = runner.invoke(cli.app, ["pool", "create", "--help"]).output
    assert "tables[terms]and[params]" in squeeze(output)


def test_pool_open__help__says_all_that_yes_skips():
    output = runner.invoke(cli.app, ["pool", "open", "--help"], env={"COLUMNS": "400"}).output
    assert squeeze("before it spends anything. --yes skips these three checks") in squeeze(output)
    assert squeeze("Do not ask for confirmation, and do not check the windows") in squeeze(output)


def test_help_and_settings__import_nothing_heavy():
    lines = [["--help"], *(["config", "show", role] for role in ("coordinator", "worker", "validator", "trainer"))]
    code = f"""
import sys
from covey.cli import main
for line in {lines!r}:
    sys.argv = ["covey", *line]
    try:
        main()
    except SystemExit as error:
        assert error.code == 0, line
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def measure_cpu(*command: str) -> float:
    """Return the CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, timeout=300, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help__best_of_five__takes_less_than_three_times_what_prints_it():
    """A person waits for it. Typer and rich take almost half of it, and the speed of the machine divides out."""
    best = min(measure_cpu("-m", "covey", "--help") for _ in range(5))
    assert best < 3 * min(measure_cpu("-c", "import typer, typer.rich_utils") for _ in range(5))


@pytest.fixture
def away(tmp_path):
    """A deployment whose node does not respond."""
    contracts = dict.fromkeys([*CONTRACTS.values(), "token"], ALICE)
    Deployment(chain_id=31337, rpc_url="http://127.0.0.1:9", start_block=0, **contracts).save(tmp_path / "d.json")
    return tmp_path / "d.json"


def test_chain_commands__import_nothing_that_only_roles_need(away):
    lines = [["pool", "show"], ["stake", "add", "1", "--key-file", "KEY"], ["rewards", "claim", "--key-file", "KEY"]]
    heavy = (*set(HEAVY) - {"web3", "httpx", "asyncio"}, "numpy", "jinja2", "py_ecc.bls", "py_ecc.bls12_381")
    save_key(away.parent / "key", b"\x11" * 32)
    code = f"""
import sys
from covey.cli import main
for line in {lines!r}:
    sys.argv = ["covey", *line, "--deployment", {str(away)!r}, "--pool", "1", "--coordinator-url", "http://127.0.0.1:9"]
    sys.argv = [{str(away.parent / "key")!r} if word == "KEY" else word for word in sys.argv]
    if line[0] != "rewards":
        del sys.argv[-2:]
    try:
        main()
    except SystemExit as error:
        assert error.code in (1, 75), line
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr.count("covey: chain_unreachable: ") == len(lines)


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


def test_completion__a_word_begun__is_ended(monkeypatch):
    monkeypatch.setenv("_COVEY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "covey config show wo")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert runner.invoke(cli.app, prog_name="covey").stdout.split() == ["worker"]


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
    assert load_settings(Example, None, sets) == expected


@pytest.mark.parametrize(
    ("item", "word"),
    [("name", "has no value"), ("=x", ": unknown"), ("nmae=x", "did you mean name"), ("count=x", "count")],
)
def test_set__wrong__operator_error_names_it(item, word):
    with pytest.raises(OperatorError, match=f"bad_settings.*{word}"):
        load_settings(Example, None, [item])


def test_set__wins_over_file_and_environment(tmp_path, monkeypatch):
    (tmp_path / "c.toml").write_text('name = "file"\ncount = 2')
    monkeypatch.setenv("COVEY_NAME", "environment")
    assert load_settings(Example, tmp_path / "c.toml", ["name=set"]) == Example(name="set", count=2)
    assert load_settings(Example, tmp_path / "c.toml", []) == Example(name="environment", count=2)


def test_wallet__new_then_show__same_address_and_never_overwritten(tmp_path):
    path = tmp_path / "a.key"
    made = runner.invoke(cli.app, ["wallet", "new", str(path)])
    assert made.stdout == runner.invoke(cli.app, ["wallet", "show", str(path)]).stdout
    again = runner.invoke(cli.app, ["wallet", "new", str(path)])
    assert isinstance(again.exception, OperatorError)
    assert again.exception.code == "key_exists"


def test_wallet__json__holds_the_address(tmp_path):
    path = tmp_path / "a.key"
    made = json.loads(runner.invoke(cli.app, ["wallet", "new", str(path), "--json"]).stdout)
    assert made == json.loads(runner.invoke(cli.app, ["wallet", "show", str(path), "--json"]).stdout)
    assert made == {"address": runner.invoke(cli.app, ["wallet", "show", str(path)]).stdout.strip()}


def test_demo__failures__exit_1_and_the_summary_is_written(tmp_path, monkeypatch):
    from covey.demo import scenario as demo

    def play(options, _, *, on_summary):
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
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == os.EX_TEMPFAIL
    assert capsys.readouterr().err == "covey: chain_unreachable: no answer\n"


def test_version__is_the_packages():
    answer = run("--version")
    assert (answer.returncode, answer.stdout) == (0, f"covey {covey.__version__}\n")


def test_demo__summary_into_a_folder_that_is_not_there__is_said_before_anything_runs(tmp_path):
    answer = run("demo", "--json", str(tmp_path / "none" / "x.json"))
    assert answer.returncode == 1
    assert answer.stderr.startswith("covey: no_folder:")


def test_devnet_fund__no_address__says_what_to_name(tmp_path):
    answer = run("devnet", "fund", "0x12", "--folder", str(tmp_path))
    assert answer.returncode == 1
    assert answer.stderr.startswith("covey: bad_address:")
