"""Evaluations from Python."""

import shutil
from pathlib import Path

import pytest

import covey
from covey.errors import OperatorError
from covey.model.tiny import tiny_folder

pytestmark = pytest.mark.integration


def test_evaluate__two_models__are_scored_and_compared(tmp_path: Path):
    other = tmp_path / "other"
    shutil.copytree(tiny_folder(), other)
    settings = {"items": 12, "sampling": {"samples": 2, "max_tokens": 8, "temperature": 1.0}}
    scores = covey.evaluate([tiny_folder(), other], "spell_backward", out=tmp_path / "out", **settings)
    again = covey.evaluate([tiny_folder(), other], "spell_backward", out=tmp_path / "out", **settings)
    assert again.to_json() == scores.to_json()
    assert (scores.questions, scores.samples) == (12, 2)
    (pair,) = scores.comparisons
    assert (pair.result.wins, pair.result.ties, pair.result.losses) == (0, 12, 0)
    assert (tmp_path / "out" / "report.html").is_file()


def test_evaluate__nothing_there__is_refused(tmp_path: Path):
    with pytest.raises(OperatorError):
        covey.evaluate(tmp_path / "nothing", "spell_backward", out=tmp_path / "out")
