"""Grades of mathematics in other processes: seeds of hashes, which order sets in sympy, change nothing."""

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
import json, sys
from covey.environments.kinds.mathematics import is_right
cases = [json.loads(line) for line in open(sys.argv[1])]
print(json.dumps([is_right(case["answer"], case["truths"]) for case in cases]))
"""


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_grades__seed_of_hashes__changes_none(seed):
    answered = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(FILE)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(answered.stdout) == [json.loads(line)["right"] for line in FILE.read_text().splitlines()]
    assert answered.stderr == ""
