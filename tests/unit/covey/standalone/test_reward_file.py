"""Reward functions and rows that the settings of a run name."""

from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.standalone.config import TrainConfig
from covey.standalone.pool_exchange import draft_pool
from covey.standalone.preparation import find_questions
from covey.standalone.reward_file import load_reward, read_rows

pytestmark = pytest.mark.unit
CODE = """
LENGTH = 5

def score(completion, row):
    return float(completion == row["prompt"][:LENGTH])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "reward.py").write_text(CODE)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "Question {n}", "level": {n}}}\n' for n in range(16)))
    (tmp_path / "run.toml").write_text(
        '[data]\ndataset = "rows.jsonl"\nreward = "reward.py:score"\noptions = {system_prompt = "Repeat it."}\n'
    )
    return tmp_path


def test_find_questions__reward_of_a_file__grades_rows_with_the_options(folder: Path) -> None:
    questions = find_questions(TrainConfig.load(folder / "run.toml", {"home": str(folder)}, {}))
    (prompt,) = questions.load().held_out(1)
    assert (prompt.text, prompt.system, prompt.verification["level"]) == ("Question 7", "Repeat it.", 7)
    assert questions.grade is not None
    replies = [prompt.build_reply(text, finished=True, tokens=1) for text in ("Quest", "Question 7")]
    assert [grade.reward for grade in questions.grade(replies)] == [1.0, 0.0]
    assert questions.params.options["reward"] == "reward:score"
    assert questions.params.options["system_prompt"] == "Repeat it."


@pytest.mark.parametrize("named", ["reward.py", "reward.py:LENGTH", "reward.py:other", "none.py:score", ":score"])
def test_load_reward__nothing_to_call__is_refused(folder: Path, named: str) -> None:
    with pytest.raises(OperatorError, match=r"bad_settings: data\.reward is"):
        load_reward(folder / named)


def test_load_reward__file_raises__its_own_error_is_kept(folder: Path) -> None:
    (folder / "reward.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        load_reward(folder / "reward.py:score")


def test_read_rows__row_that_is_not_json__is_named(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"prompt": "a"}\n{')
    with pytest.raises(OperatorError, match=r"bad_row: rows\.jsonl, row 2"):
        read_rows(str(folder / "rows.jsonl"))


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"data.environment": "math"}, "bad_settings"),
        ({"data.dataset": "/none.jsonl"}, "no_source"),
        ({"data.options": {"name": "x"}}, "bad_environment"),
    ],
)
def test_find_questions__settings_that_do_not_fit__are_refused(folder: Path, values: dict, code: str) -> None:
    with pytest.raises(OperatorError, match=code):
        find_questions(TrainConfig.load(folder / "run.toml", values, {}))


def test_find_questions__reward_without_rows__is_refused(folder: Path) -> None:
    with pytest.raises(OperatorError, match=r"bad_settings: data\.reward needs the rows"):
        find_questions(TrainConfig.load(None, {"data.reward": str(folder / "reward.py:score")}, {}))


def test_draft_pool__reward_of_a_file__is_refused_because_nobody_can_repeat_it(folder: Path) -> None:
    with pytest.raises(OperatorError, match="nobody else in a pool"):
        draft_pool(TrainConfig.load(folder / "run.toml", {}, {}), folder / "scratch")
