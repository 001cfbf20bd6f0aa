"""The table of decision 052: how each rule for grading mathematics does on all labelled answers."""

import re
from pathlib import Path

import pytest

from benchmarks.verification.mathematics_rules import RULES, list_labels, score
from tests.unit.covey.environments.kinds.mathematics.test_mathematics import DISAGREEMENTS

pytestmark = pytest.mark.unit

DECISION = Path(__file__).parents[6] / "docs/decisions/052-mathematics-by-our-own-rule.md"
ROW = re.compile(r"\| ([^|]+?) \| ([0-9,]+) \| ([0-9]+) \| ([0-9]+) \| [0-9]+ \|")


def read_table():
    """Read the rows of the decision's table: right grades, wrong accepts and wrong rejects of each rule."""
    rows = ROW.findall(DECISION.read_text())
    return {rule: tuple(int(number.replace(",", "")) for number in numbers) for rule, *numbers in rows}


def test_table__chosen_rule__accepts_nothing_wrong_and_rejects_the_listed_answers():
    """Other tests check each label and each listed disagreement, so their numbers are the row of the chosen rule."""
    assert set(read_table()) == set(RULES)
    assert read_table()["Covey's"] == (len(list_labels()) - len(DISAGREEMENTS), 0, len(DISAGREEMENTS))


@pytest.mark.full
@pytest.mark.parametrize("rule", RULES)
def test_table__each_rule__grades_as_written(rule):
    result = score(rule, list_labels())
    assert (result.right, result.wrong_accepts, result.wrong_rejects) == read_table()[rule]
