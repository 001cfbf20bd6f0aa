"""The commands of docs/guides/bring-a-data-set.md, run in order in an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from covey.console.account import read_pool_file
from tests.e2e.fences import read_fences

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


def test_guide__every_command__works_as_written(tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    printed = ""
    for fence in read_fences(ROOT / "docs" / "guides" / "bring-a-data-set.md"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", fence.body],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{fence.body}\n{done.stdout}{done.stderr}"
        printed = done.stdout
    assert "Put the answer into a box." in printed
    pool = tmp_path / "taskpool"
    _, _, params = read_pool_file(pool / "pool.toml", "0x" + "00" * 20, datasets=[pool / "datasets"])
    assert params.environment.kind == "math"
    assert params.environment.fingerprint is not None
