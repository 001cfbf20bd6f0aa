"""A warm-up imports every module that grading needs. Otherwise each fork would import it again for each grade."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from benchmarks.verification.grading_cases import build_spec, list_cases
from covey.environments.registry import load
environment = load(build_spec(sys.argv[1]))
cases = list_cases(sys.argv[1], 40)
environment.warm_up()
before = set(sys.modules)
for case in cases:
    environment.grade(case.reply)
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("kind", ["math", "short_answer", "code", "reasoning_gym"])
def test_warm_up__kind__leaves_nothing_to_be_imported(kind: str):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert done.stdout == "[]\n"
