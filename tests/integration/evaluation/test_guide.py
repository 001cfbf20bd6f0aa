"""The commands of docs/guides/evaluate.md, run in order next to a pool's folder with two policies."""

import json
import shutil
from pathlib import Path

import pytest

from covey.model.tiny import tiny_folder
from tests.e2e.fences import run_guide

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.full
def test_guide__every_command__works_as_written(tmp_path: Path) -> None:
    for step in (0, 8):
        shutil.copytree(tiny_folder(), tmp_path / "mypool" / "trainer" / "exports" / str(step))
    printed = run_guide("evaluate.md", tmp_path, columns=60)
    assert len(printed) == 2
    results = json.loads(printed[1])
    score = results["models"][0]
    assert (results["questions"], score["label"]) == (40, "mypool step 8")
    mean = score["mean"]
    shown = f"{100 * mean['value']:.1f} % [{100 * mean['low']:.1f}, {100 * mean['high']:.1f}]"
    assert shown in printed[0]  # in one piece, although the terminal is narrow
    files = {path.name for path in (tmp_path / "spelling").iterdir() if not path.name.startswith(".")}
    assert files == {"report.html", "results.json", "samples.jsonl", "questions.jsonl", "evaluation.json"}
