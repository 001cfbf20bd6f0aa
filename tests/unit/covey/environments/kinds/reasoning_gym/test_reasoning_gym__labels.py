"""Answers to generators of reasoning-gym, against labels given by hand."""

import json
from functools import cache
from pathlib import Path

import pytest

from covey.environments.base import refuse_data_sets
from covey.environments.kinds.reasoning_gym.reasoning_gym import ReasoningGymSource
from tests.fakes.kept_items import keep_items

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[5] / "data/grading"
LINES = (DATA / "reasoning_gym.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [json.loads(line) for line in LINES]


@cache
def open_source(options: str) -> ReasoningGymSource:
    """Open the source of some options in JSON. It is cached, because opening takes longer than grading an answer."""
    return keep_items(ReasoningGymSource(json.loads(options), refuse_data_sets))


def test_cases__are_many_and_different_with_both_labels() -> None:
    labels = [case["right"] for case in CASES]
    questions = {(json.dumps(case["options"], sort_keys=True), case["item"], case["answer"]) for case in CASES}
    assert len(CASES) >= 60
    assert min(labels.count(True), labels.count(False)) >= 20
    assert len(set(LINES)) == len(questions) == len(CASES)
    assert len({case["options"]["name"] for case in CASES}) >= 15


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['options']['name']}: {case['why']}")
def test_grade__labelled_answer(case) -> None:
    source = open_source(json.dumps(case["options"], sort_keys=True))
    assert source.grade({"item": case["item"]}, case["answer"]) == float(case["right"])
