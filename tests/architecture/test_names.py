"""Names: a file name and a public class have one meaning in the whole tree, and a unit test has its module's name."""

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from tests.architecture.tree import BENCHMARKS, NAMES, ROLES, ROOT, parse

pytestmark = pytest.mark.unit

SHARED = {"__init__", "__main__", "app", "base", "cli", "config", "context", "engine", "env", "loop"}
"""File names that may occur several times, because they mean the same thing everywhere."""
SHARED_CLASSES = {"Context", "Environment"}


def test_names__no_utils():
    banned = {"utils.py", "helpers.py", "misc.py", "service.py", "tools.py", "common.py"}
    allowed = {"covey/protocol/api/common.py"}
    assert [name for name in NAMES if Path(name).name in banned and name not in allowed] == []


def test_files__have_names_that_occur_once():
    places = defaultdict(list)
    for name in (*NAMES, *BENCHMARKS):
        places[Path(name).stem].append(name)
    assert {stem: found for stem, found in places.items() if len(found) > 1 and stem not in SHARED} == {}


def test_public_classes__have_names_that_occur_once():
    places = defaultdict(list)
    for name in (*NAMES, *BENCHMARKS):
        for node in parse(name).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {kind: found for kind, found in places.items() if len(found) > 1 and kind not in SHARED_CLASSES} == {}


def test_unit_tests__each_mirrors_a_module():
    """tests/unit/<path>/test_<module>.py, or test_<module>__<aspect>.py."""
    unit = ROOT / "tests" / "unit"
    strays = []
    for path in unit.rglob("test_*.py"):
        module = path.stem.removeprefix("test_").partition("__")[0]
        source = ROOT / path.parent.relative_to(unit) / f"{module}.py"
        package = ROOT / path.parent.relative_to(unit) / module / "__init__.py"
        if not source.is_file() and not package.is_file():
            strays.append(str(path.relative_to(unit)))
    assert sorted(strays) == []


def test_modules__above_forty_lines__have_a_unit_test_or_name_what_covers_them():
    named = tomllib.loads((ROOT / "tests" / "architecture" / "covered_elsewhere.toml").read_text())
    uncovered = set()
    for name in NAMES:
        path = ROOT / name
        folder = ROOT / "tests" / "unit" / path.parent.relative_to(ROOT)
        tests = [*folder.glob(f"test_{path.stem}.py"), *folder.glob(f"test_{path.stem}__*.py")]
        is_small = len(path.read_text().splitlines()) <= 40
        if not (tests or is_small or path.stem == "__init__" or "migrations" in name):
            uncovered.add(name)
    assert uncovered == set(named)
    assert [test for tests in named.values() for test in tests if not (ROOT / test).is_file()] == []


@pytest.mark.parametrize("role", ROLES)
def test_role__has_the_same_files(role):
    assert {"config.py", "context.py", "app.py"} <= {path.name for path in (ROOT / role).iterdir()}


def test_constants__maximum_and_seconds__have_one_grammar():
    names = [
        target.id
        for name in NAMES
        for node in parse(name).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    odd = {name for name in names if name.startswith(("MOST_", "_MOST_")) or name.endswith("_S")}
    assert odd == set(), "write MAX_ and _SECONDS"
