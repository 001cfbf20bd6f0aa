"""Documents refer only to files and functions that exist, and shipped settings load."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, parse
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
    loaded = TrainerConfig.load(file, PLACES, {})
    for name, value in tomllib.loads(file.read_text()).items():
        found = getattr(loaded, name)
        assert (str(found) if isinstance(found, Path) else list(found) if isinstance(found, tuple) else found) == value


def test_documents__code_that_a_reader_copies__imports_only_covey():
    """The packages of the roles are programs and not an interface."""
    imports = re.compile(r"(?m)^\s*(?:from|import) (coordinator|worker|validator|trainer)[ .]")
    code = re.compile(r"(?ms)^```(?:python|py)$(.*?)^```$")
    guilty = [str(path) for path in DOCUMENTS for block in code.findall(path.read_text()) if imports.search(block)]
    assert guilty == []
    assert imports.search("from trainer.config import TrainerConfig")
    assert any(code.search(path.read_text()) for path in DOCUMENTS)
