"""The commands of docs/guides/bring-a-data-set.md, run in order in an empty folder."""

from pathlib import Path

import pytest

from covey.console.account import read_pool_file
from tests.e2e.fences import run_guide

pytestmark = pytest.mark.integration


def test_guide__every_command__works_as_written(tmp_path: Path) -> None:
    *others, printed = run_guide("bring-a-data-set.md", tmp_path)
    assert len(others) == 4
    assert "Put the answer into a box." in printed
    pool = tmp_path / "taskpool"
    _, _, params = read_pool_file(pool / "pool.toml", "0x" + "00" * 20, datasets=[pool / "datasets"])
    assert params.environment.kind == "math"
    assert params.environment.fingerprint is not None
