"""The rules of the house, checked on the tree: addresses of heavy imports, sizes, names, documents."""

import ast
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests.fakes.configs import read_settings
from trainer.config import TrainerConfig

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("coordinator", "worker", "validator", "trainer")
PACKAGES = ("covey", *ROLES)
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in SOURCES]
MIGRATIONS = "coordinator/db/migrations/*"
ADDRESSES = {
    "web3": ["covey/chain/*"],
    "eth_account": ["covey/protocol/accounts.py"],
    "vllm": ["covey/engines/vllm*"],
    "celery": ["coordinator/queue/celery_app.py", "coordinator/queue/folder_broker.py"],
    "kombu": ["coordinator/queue/celery_app.py", "coordinator/queue/folder_broker.py"],
    "sqlalchemy": [
        "coordinator/db/models.py",
        "coordinator/db/repository.py",
        "coordinator/db/chain_queries.py",
        "coordinator/db/connection.py",
        MIGRATIONS,
    ],
    "alembic": ["coordinator/db/connection.py", MIGRATIONS],
    "httpx": ["covey/network/coordinator_client.py", "covey/shardcast/*"],
    "obstore": ["covey/object_store.py"],
    "numba": ["covey/toploc/*", "covey/sampling/*"],
    "verifiers": ["covey/environments/kinds/verifiers/verifiers_server.py"],
    "sympy": ["covey/environments/kinds/*"],
    "math_verify": ["covey/environments/kinds/mathematics/scalars.py"],
    "latex2sympy2_extended": ["covey/environments/kinds/mathematics/scalars.py"],
    "torch": [
        "covey/toploc/*",
        "covey/sampling/*",
        "covey/model/*",
        "covey/engines/*",
        "validator/replay.py",
        "trainer/*",
    ],
}
ADDRESSES["transformers"] = ADDRESSES["torch"]
NEVER = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle", "joblib", "yaml"}
FORBIDDEN_CALLS = {
    "torch.load",
    "yaml.load",
    "pickle.load",
    "pickle.loads",
    "time.sleep",
    "eval",
    "exec",
    "numpy.load",
    "np.load",
}


@cache
def parse(name):
    return ast.parse((ROOT / name).read_text(), name)


@cache
def list_imports(tree):
    """(top-level package, whether at module level) of every import."""
    late = {
        id(node)
        for part in ast.walk(tree)
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(part)
    }
    pairs = set()
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        for name in names:
            pairs.add((name.partition(".")[0], id(node) not in late))
    return frozenset(pairs)


def spell(node):
    """A call's name as written: a.b.c."""
    if isinstance(node, ast.Attribute):
        return f"{spell(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_sources__are_found():
    assert len(NAMES) > 60
    assert {name.partition("/")[0] for name in NAMES} == set(PACKAGES)


@pytest.mark.parametrize("package", ADDRESSES)
def test_heavy_import__only_at_its_address(package):
    wrong = [
        name
        for name in NAMES
        if any(found == package for found, _ in list_imports(parse(name)))
        and not any(fnmatch(name, pattern) for pattern in ADDRESSES[package])
    ]
    assert wrong == []


def test_numba__never_at_module_level():
    assert [n for n in NAMES if ("numba", True) in list_imports(parse(n))] == []


def test_protocol__neither_clock_nor_file_nor_socket():
    banned = {
        "time",
        "datetime",
        "os",
        "pathlib",
        "socket",
        "subprocess",
        "random",
        "secrets",
        "uuid",
        "torch",
        "threading",
    }
    wrong = {
        n: found & banned
        for n in NAMES
        if n.startswith("covey/protocol/")
        if (found := {p for p, _ in list_imports(parse(n))}) & banned
    }
    assert wrong == {}


RUNS_PROGRAMS = "covey/environments/kinds/code/program_code.py"
"""What a model wrote runs there alone: in a process of its own, which holds nothing (decision 042)."""


def test_pickle_and_code_from_data__nowhere():
    """threats.md, row 20."""
    for name in NAMES:
        tree = parse(name)
        assert not NEVER & {package for package, _ in list_imports(tree)}, name
        calls = {spell(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        allowed = {"covey/devnet/deploy.py": {"time.sleep"}, RUNS_PROGRAMS: {"exec"}}.get(name, set())
        assert not (FORBIDDEN_CALLS & calls) - allowed, (name, FORBIDDEN_CALLS & calls)


def test_handlers__never_bare_nor_of_everything():
    for name in NAMES:
        for node in ast.walk(parse(name)):
            if isinstance(node, ast.ExceptHandler):
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                spelled = {spell(each) if each else "" for each in caught}
                assert not {"", "Exception", "BaseException"} & spelled, f"{name}:{node.lineno}"


def test_environment__never_read_at_import():
    for name in NAMES:
        late = {
            id(n)
            for f in ast.walk(parse(name))
            if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
            for n in ast.walk(f)
        }
        for node in ast.walk(parse(name)):
            if spell(node) in ("os.environ", "os.getenv"):
                assert id(node) in late, f"{name}:{node.lineno}"


def test_sizes__at_most_400_lines_and_nine_of_ten_at_most_250():
    sizes = {name: len((ROOT / name).read_text().splitlines()) for name in NAMES}
    assert {n: s for n, s in sizes.items() if s > 400} == {}
    assert sum(size > 250 for size in sizes.values()) <= len(sizes) / 10


def test_contracts__at_most_250_lines():
    found = list((ROOT / "contracts").rglob("*.sol"))
    assert len(found) > 8
    assert [path.name for path in found if len(path.read_text().splitlines()) > 250] == []


def test_names__no_utils():
    banned = {"utils.py", "helpers.py", "misc.py", "common.py"}
    assert [name for name in NAMES if Path(name).name in banned] == []


@pytest.mark.parametrize("name", NAMES)
def test_module__has_a_docstring_of_at_most_fifteen_lines(name):
    if name.startswith("coordinator/db/migrations/") and name.endswith("__init__.py"):
        return
    docstring = ast.get_docstring(parse(name))
    assert docstring, "no docstring"
    assert len(docstring.strip().splitlines()) <= 15


@pytest.mark.parametrize("role", ROLES)
def test_role__has_its_four_files(role):
    assert {"config.py", "app.py", "loop.py", "service.py"} <= {path.name for path in (ROOT / role).iterdir()}


@pytest.mark.parametrize("package", PACKAGES)
def test_package__every_folder_is_one(package):
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    assert [
        str(folder) for folder in folders if not (folder / "__init__.py").is_file() and folder.name != "versions"
    ] == []


def test_tests__have_no_init_and_one_marker():
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name.startswith("test_")]
    assert not list((ROOT / "tests").rglob("__init__.py"))
    lacking = [
        path.name for path in files if not re.search(r"pytest\.mark\.(unit|integration|e2e|gpu|slow)", path.read_text())
    ]
    assert lacking == []


DOCUMENTS = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")})
"""All but decisions, which also name what is gone."""
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
    """a/{b,c}.py -> a/b.py, a/c.py."""
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
        "`covey/errors.py` covey/ghost.py, covey/{errors,log,phantom}.py, [a](no.md), `LICENSE`, `gone.toml`, docs/."
    )
    assert find_absent(page) == ["covey/ghost.py", "covey/phantom.py", "no.md", "gone.toml"]


SHIPPED = sorted((ROOT / "configs").glob("*.toml"))
PLACES = {"home": "h", "pool": 1, "deployment": "d.json", "key_file": "k", "origin_root": "o"}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.name)
def test_config__shipped__loads_into_its_settings_class(file):
    """A file is a pool or the trainer's, whose paths and keys come from `covey init pool` or the command."""
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


def test_secrets__no_key_or_environment_file_is_tracked():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20
    ).stdout.split()
    wrong = [
        n
        for n in listed
        if re.search(r"(^|/)(\.env.*|.*\.(key|pem|p12|keystore)|id_rsa.*|\.npmrc|\.netrc|.*\.sqlite3)$", n)
    ]
    assert wrong == []
    key = re.compile(r"""(?:private_key|secret|password)["']?\s*[:=]\s*["'](?:0x)?[0-9a-fA-F]{64}["']""")
    assert [name for name in NAMES if key.search((ROOT / name).read_text())] == []


def test_licence__apache_2_whole():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert len(text) > 11_000
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"] == "Apache-2.0"


def test_test_lines__at_least_as_many_as_source():
    count = lambda paths: sum(len(path.read_text().splitlines()) for path in paths)  # noqa: E731
    python = count(SOURCES)
    assert count((ROOT / "tests").rglob("*.py")) >= python
    assert count((ROOT / "tests" / "contracts").glob("*.sol")) >= count((ROOT / "contracts").glob("*.sol"))
