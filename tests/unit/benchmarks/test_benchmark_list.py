"""The list of benchmarks: that its modules exist and say what they measure."""

import ast
from pathlib import Path

import pytest

import benchmarks
from benchmarks.benchmark_list import MODULES, read_summary

pytestmark = pytest.mark.unit

ROOT = Path(benchmarks.__file__).parent


@pytest.mark.parametrize("name", MODULES)
def test_module__of_a_name__has_a_main_of_arguments_and_one_sentence(name: str) -> None:
    tree = ast.parse(ROOT.joinpath(*MODULES[name].split(".")[1:]).with_suffix(".py").read_text())
    (main,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    assert [argument.arg for argument in main.args.args] == ["arguments"]
    assert read_summary(name).endswith(".")
    assert len(read_summary(name)) < 125


def test_modules__with_a_main__are_all_in_the_list() -> None:
    found = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for path in ROOT.rglob("*.py")
        if "def main(arguments" in path.read_text()
    }
    assert found == set(MODULES.values())


def test_names__of_modules__are_unique_in_the_benchmarks() -> None:
    names = [path.stem for path in ROOT.rglob("*.py") if path.stem not in {"__init__", "__main__"}]
    assert len(set(names)) == len(names)
