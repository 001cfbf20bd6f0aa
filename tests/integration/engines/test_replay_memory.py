"""Memory of the replay of a completion of maximum length, in a process with a memory limit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30


@pytest.mark.parametrize(
    ("tokens", "gibibytes"),
    [(2048, 1.0), pytest.param(30_720, 3.0, marks=[pytest.mark.slow, pytest.mark.full])],
    ids=["slice", "the paper's longest"],
)
def test_replay__long_completion_over_a_large_vocabulary__stays_within_its_memory(
    tokens: int, gibibytes: float
) -> None:
    """All logits at once would take 1.2 and 17.4 GiB, and their log-softmax the same again."""
    command = [sys.executable, "-m", "tests.fakes.replaying", str(tokens), "152000", str(gibibytes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2000, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["extra"] < gibibytes * GIB
