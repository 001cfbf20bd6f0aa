"""The committed losses of TRL are those that the installed TRL computes; only with COVEY_FULL=1, because it is slow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vectors.losses import LOSS_TOLERANCE, PATH, TOLERANCE

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
]


def test_losses__made_again_by_trl__are_those_of_the_file(tmp_path: Path) -> None:
    again = tmp_path / PATH.name
    command = [sys.executable, "-m", "tests.vectors.losses", str(again)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    committed, made = (json.loads(path.read_text()) for path in (PATH, again))
    kept, new = committed.pop("losses"), made.pop("losses")
    assert made == committed, "run python -m tests.vectors.losses"
    assert len(new) == len(kept)
    for old_row, new_row in zip(kept, new, strict=True):
        old_gradients, new_gradients = old_row.pop("gradients"), new_row.pop("gradients")
        assert new_row == old_row | {"loss": pytest.approx(old_row["loss"], abs=LOSS_TOLERANCE)}
        assert set(new_gradients) == set(old_gradients)
        for name, values in old_gradients.items():
            assert new_gradients[name] == pytest.approx(values, abs=TOLERANCE), name
