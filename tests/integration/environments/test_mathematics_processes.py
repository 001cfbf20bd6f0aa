"""Grades of mathematics do not depend on hash seeds (which order sets in sympy), the order of answers or a warm-up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests/data/grading/mathematics.jsonl"
PROGRAM = """
import json, random, sys
from covey.environments.kinds.mathematics.mathematics import is_right, warm_up
cases = list(enumerate(json.loads(line) for line in open(sys.argv[1])))
random.Random(sys.argv[3]).shuffle(cases)
if sys.argv[2] == "warm":
    warm_up()
grades = {number: is_right(case["answer"], case["truths"]) for number, case in cases}
print(json.dumps([grades[number] for number in sorted(grades)]))
"""


@pytest.mark.parametrize(
    ("seed", "start"),
    [
        ("1", "warm"),
        *(pytest.param(*case, marks=pytest.mark.full) for case in [("0", "cold"), ("4294967295", "warm")]),
    ],
)
def test_grades__seed_of_hashes_order_and_warm_up__change_none(seed: str, start: str):
    answered = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(FILE), start, seed],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert json.loads(answered.stdout) == [json.loads(line)["right"] for line in FILE.read_text().splitlines()]
    assert answered.stderr == ""
