"""Documents refer only to files and functions that exist, and shipped settings load."""

import ast
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from covey import cli
from tests.architecture.tree import ROOT, parse
from tests.e2e.fences import read_fences
from tests.fakes.configs import read_settings
from trainer.config import TrainerConfig

pytestmark = pytest.mark.unit

FOLDERS = (".", "docs", "docs/guides", "docs/reference")
DOCUMENTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))
"""All documents except decisions, which may refer to removed files."""
PATH = re.compile(
    r"(?<![\w/.-])((?:covey|coordinator|worker|validator|trainer|contracts|tests|benchmarks|docs|configs)/[\w./*{},-]*[\w*}/])"
)
TOP = re.compile(r"`((?:[\w-]+)\.(?:toml|json|md|yaml|yml|js|txt))`")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
METRICS = {"trainer/idle_ratio", "worker/idle_ratio", "validator/idle_ratio"}  # which reads like a path
GENERATED = {
    "deployment.json",
    "package-lock.json",
    "coordinator.toml",
    "processes.toml",
    "worker.toml",
    "pool.toml",
    "state.json",
    "summary.json",
    "demo.json",
    "metrics.json",
    "manifest.json",
    "table.md",
    "results.json",
    "evaluation.json",
}


def expand(text):
    """Expand braces: a/{b,c}.py becomes a/b.py and a/c.py."""
    match = re.search(r"\{([^{}]*)\}", text)
    if not match:
        return [text]
    return [each for part in match[1].split(",") for each in expand(text[: match.start()] + part + text[match.end() :])]


def find_absent(document):
    text = document.read_text()
    named = {name for found in PATH.findall(text) for name in expand(found)} - METRICS
    absent = sorted(name for name in named if not any(ROOT.glob(name.rstrip("/."))))
    absent += [n for n in LINK.findall(text) if not (document.parent / n).exists() and not (ROOT / n).exists()]
    absent += [
        n
        for n in TOP.findall(text)
        if n not in GENERATED
        and not any(ROOT.glob(n))
        and not any((ROOT / "configs").glob(n))
        and not (document.parent / n).exists()
    ]
    return absent


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_document__every_file_it_names__is_there(document):
    assert find_absent(document) == []


def test_find_absent__a_page_that_names_ghosts__finds_them(tmp_path):
    page = tmp_path / "x.md"
    page.write_text(
        "`covey/errors.py` covey/ghost.py, covey/{errors,slots,phantom}.py, [a](no.md), `LICENSE`, `gone.toml`, docs/."
    )
    assert find_absent(page) == ["covey/ghost.py", "covey/phantom.py", "no.md", "gone.toml"]


ANCHOR = re.compile(r"`((?:covey|coordinator|worker|validator|trainer)/[\w/]+\.py)`((?:[ ,]*`\w+`)*)")


def find_unknown_anchors(text: str) -> list[str]:
    """Return the names given after a file, as in `covey/errors.py` `CoveyError`, that the file does not define."""
    unknown = []
    for file, names in ANCHOR.findall(text):
        defined = {getattr(node, "name", getattr(node, "id", None)) for node in ast.walk(parse(file))}
        unknown += [f"{file} {name}" for name in re.findall(r"\w+", names) if name not in defined]
    return unknown


@pytest.mark.parametrize("page", ["docs/walk.md", "docs/architecture.md", "CONTRIBUTING.md"])
def test_page__every_function_that_it_names__is_in_that_file(page):
    text = (ROOT / page).read_text()
    assert len(ANCHOR.findall(text)) > 3
    assert find_unknown_anchors(text) == []


def test_find_unknown_anchors__one_of_two__is_found():
    assert find_unknown_anchors("`covey/errors.py` `CoveyError`, `GhostError`") == ["covey/errors.py GhostError"]


PAGES = [path for path in DOCUMENTS if path.name not in ("CHANGELOG.md", "commands.md", "errors.md")]


def list_commands(page: Path) -> list[str]:
    """Return the lines of a page's shell fences that begin with `covey`, without comments and pipes."""
    bodies = [fence.body.replace("\\\n", " ") for fence in read_fences(page) if fence.language == "sh"]
    lines = [line.split(" #")[0].split(" | ")[0].strip() for body in bodies for line in body.splitlines()]
    return [line for line in lines if line.startswith("covey ")]


def find_unknown_words(line: str) -> list[str]:
    """Return the names of commands and options in a line that `covey` does not have."""
    command: Any = typer.main.get_command(cli.app)
    words = shlex.split(line)[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--install-completion"}  # Typer adds it, and hides it from the parameters.
    return [word for word in words if word.startswith("-") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page__every_command_that_it_shows__is_there_with_its_options(page):
    assert {line: unknown for line in list_commands(page) if (unknown := find_unknown_words(line))} == {}


def test_find_unknown_words__of_three_lines__finds_those_of_two():
    lines = ["covey pool show mypool --json", "covey pool fly", "covey pool show --nothing=1 --raw"]
    assert [find_unknown_words(line) for line in lines] == [[], ["fly"], ["--nothing=1"]]
    assert sum(len(list_commands(page)) for page in PAGES) > 60


def list_readme_commands() -> list[str]:
    """Return the commands of the README that its test runs."""
    fences = [fence for fence in read_fences(ROOT / "README.md") if fence.language == "sh" and not fence.reason]
    return [line for fence in fences for line in fence.body.splitlines()]


def test_start_page__commands__are_those_of_the_readme():
    """The site begins with a page that can be followed, and its commands are those that a test runs."""
    assert list_commands(ROOT / "docs/index.md") == list_readme_commands()
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert nav.splitlines()[0] == "  - Start: index.md"


def test_transcript__of_a_first_run__has_the_commands_of_the_readme():
    text = (ROOT / "docs/guides/run-a-pool.md").read_text()
    transcript = text.partition("## A first run")[2].partition("\n## ")[0]
    commands = list_readme_commands()
    pool = commands[commands.index("covey init pool mypool") :]
    assert [line[2:] for line in transcript.splitlines() if line.startswith("$ ")] == pool


def test_time_to_the_first_reward__is_the_same_everywhere():
    """Three windows of the shipped pool take 40 s, and judging and blocks some more."""
    values = tomllib.loads((ROOT / "configs/pool.toml").read_text())
    terms, params = values["terms"], values["params"]
    assert params["epoch_seconds"] + terms["challenge_window"] + terms["veto_window"] == 40
    for name in ("README.md", "docs/guides/run-a-pool.md", "docs/guides/operate-a-coordinator.md"):
        words = " ".join((ROOT / name).read_text().split())
        assert re.findall(r"about (\d+) (?:s\b|seconds)", words).count("45") == 1, name
        assert "40 s" not in words, name


SHIPPED = sorted((ROOT / "configs").glob("*.toml"))
PLACES = {"home": "h", "pool": 1, "deployment": "d.json", "key_file": "k", "origin_root": "o"}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.name)
def test_config__shipped__loads_into_its_settings_class(file):
    """Each file is a pool or a trainer's settings. Paths and keys come from `covey init pool` or the command."""
    if file.stem.endswith("pool"):
        terms, params = read_settings(file)
        validators = tomllib.loads(file.read_text())["terms"]["validators"]
        assert len(set(validators)) == len(validators) >= params.quorum == terms.quorum
        assert terms.unbond_window >= terms.challenge_window + terms.veto_window
        return
    loaded = TrainerConfig.load(file, PLACES, {}).model_dump(mode="json")
    for name, value in tomllib.loads(file.read_text()).items():
        found = {inner: loaded[name][inner] for inner in value} if isinstance(value, dict) else loaded[name]
        assert found == value


def test_documents__code_that_a_reader_copies__imports_only_covey():
    """The packages of the roles are programs and not an interface."""
    imports = re.compile(r"(?m)^\s*(?:from|import) (coordinator|worker|validator|trainer)[ .]")
    code = re.compile(r"(?ms)^```(?:python|py)$(.*?)^```$")
    guilty = [str(path) for path in DOCUMENTS for block in code.findall(path.read_text()) if imports.search(block)]
    assert guilty == []
    assert imports.search("from trainer.config import TrainerConfig")
    assert any(code.search(path.read_text()) for path in DOCUMENTS)
