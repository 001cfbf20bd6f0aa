"""docs/threats.md is covered: each row of dishonest work has a cheat, or a test elsewhere that exists."""

import ast
from pathlib import Path

import pytest

from covey.protocol.verdict import Reason, Severity
from tests.cheats.base import Cheat, Elsewhere
from tests.cheats.rows import DISHONEST, ELSEWHERE, JUDGED, ROWS

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[2]


def list_tests(path: Path) -> set[str]:
    """Names of the tests in a file of Python or Solidity."""
    text = path.read_text()
    if path.suffix == ".sol":
        return {line.split("(")[0].split()[-1] for line in text.splitlines() if "function test" in line}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(text).body if isinstance(node, kinds)}


def test_rows__of_dishonest_work__each_has_a_cheat_or_a_test() -> None:
    assert all(ROWS[row] for row in (*DISHONEST, 39, 40, 41, 52, 53, 58))
    judged = {each.row for each in JUDGED}
    assert {*range(1, 11), 12, 13, 14} <= judged


def test_rows__all_that_tests_show__are_in_the_document() -> None:
    page = (ROOT / "docs" / "threats.md").read_text()
    assert [row for row in ROWS if f"\n| {row} |" not in page] == []


def test_cheats__names__are_one_each() -> None:
    names = [each.__name__ for each in (*JUDGED, *ELSEWHERE)]
    assert len(set(names)) == len(names)


def test_cheats__reasons__cost_something() -> None:
    for cheat in JUDGED:
        assert issubclass(cheat, Cheat)
        assert cheat.reason is not Reason.NONE
        assert cheat.reason.severity in (Severity.SOFT, Severity.HARD)


@pytest.mark.parametrize("each", ELSEWHERE, ids=lambda each: each.__name__)
def test_elsewhere__tests_that_show_it__exist(each: type[Elsewhere]) -> None:
    for name in each.shown_by:
        path, _, function = name.partition("::")
        assert function in list_tests(ROOT / path), name
