"""Rules of every source file: what it must not call or catch, its docstring and its size."""

import ast
import re
import subprocess
import tomllib

import pytest

from tests.architecture.tree import NAMES, PACKAGES, ROOT, SOURCES, list_imports, parse, spell

pytestmark = pytest.mark.unit

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


def test_sources__are_found():
    assert len(NAMES) > 60
    assert {name.partition("/")[0] for name in NAMES} == set(PACKAGES)


RUNS_PROGRAMS = "covey/environments/kinds/code/program_code.py"
"""The only module that runs code written by a model, in its own process without secrets (decision 042)."""


def test_pickle_and_code_from_data__nowhere():
    """docs/threats.md, row 20."""
    for name in NAMES:
        tree = parse(name)
        assert not NEVER & {package for package, _ in list_imports(tree)}, name
        calls = {spell(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        allowed = {"covey/devnet/deploy.py": {"time.sleep"}, RUNS_PROGRAMS: {"exec"}}.get(name, set())
        assert not (FORBIDDEN_CALLS & calls) - allowed, (name, FORBIDDEN_CALLS & calls)


CALLS_PROGRAMS = "covey/environments/kinds/code/assertion_code.py"
"""The only module that handles every exception: methods of a program's own classes may raise any (decision 054)."""


def test_handlers__never_bare_nor_of_everything():
    for name in NAMES:
        for node in ast.walk(parse(name)):
            if isinstance(node, ast.ExceptHandler):
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                spelled = {spell(each) if each else "" for each in caught}
                allowed = {"Exception"} if name == CALLS_PROGRAMS else set()
                assert not {"", "Exception", "BaseException"} & spelled - allowed, f"{name}:{node.lineno}"


def test_read_verbs__never_open_a_write_transaction():
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    reading = ("get_", "list_", "find_", "is_", "compute_")
    for name in NAMES:
        for node in ast.walk(parse(name)):
            if isinstance(node, functions) and node.name.startswith(reading):
                calls = [ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)]
                assert not [call for call in calls if call.endswith("database.write")], f"{name}: {node.name}"


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


def test_sizes__at_most_400_lines():
    """This is an alarm: a file of this size usually has two subjects."""
    sizes = {name: len((ROOT / name).read_text().splitlines()) for name in NAMES}
    assert {n: s for n, s in sizes.items() if s > 400} == {}


def test_contracts__at_most_250_lines_of_code():
    """Comments do not count, because interfaces contain the documentation."""
    files = list((ROOT / "contracts").rglob("*.sol"))
    assert len(files) > 8
    code = {file.name: re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read_text(), flags=re.DOTALL) for file in files}
    sizes = {name: sum(bool(line.strip()) for line in text.splitlines()) for name, text in code.items()}
    assert {name: size for name, size in sizes.items() if size > 250} == {}


@pytest.mark.parametrize("name", NAMES)
def test_module__has_a_docstring_of_at_most_fifteen_lines(name):
    if name.startswith("coordinator/db/migrations/") and name.endswith("__init__.py"):
        return
    docstring = ast.get_docstring(parse(name))
    assert docstring, "no docstring"
    assert len(docstring.strip().splitlines()) <= 15


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


def test_secrets__no_key_or_environment_file_is_tracked():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
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
