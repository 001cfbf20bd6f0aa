"""The report of an evaluation: what it shows, and what it cuts."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from covey.evaluation import evaluation_page
from covey.evaluation.evaluation_page import (
    build_report,
    describe_skipped,
    format_estimate,
    tabulate_comparisons,
    tabulate_models,
)
from covey.evaluation.statistics import Estimate
from tests.fakes.evaluations import finish

pytestmark = pytest.mark.unit

RIGHT, WRONG = "this one is long enough to be right", "<b>wrong</b>"


class _Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.append(tag)


def build(folder: Path) -> str:
    texts = [[[RIGHT, WRONG, WRONG], [RIGHT, RIGHT, RIGHT]], [[WRONG] * 3, [RIGHT, RIGHT, WRONG]]]
    results, log, questions, config = finish(folder, ["first?", "second?"], ["model a", "model <b>"], texts)
    with log:
        return build_report(results, log, questions, config)


def test_report__two_models__has_their_numbers_and_samples(tmp_path: Path) -> None:
    page = build(tmp_path)
    names = _Elements(page).names
    assert ("script" in names, "b" in names) == (False, False)
    assert names.count("h1") == 1
    assert "<td>model a</td>" in page
    assert "model &lt;b&gt;" in page
    assert "66.7 %" in page  # four of six completions
    assert page.count(RIGHT) == 2 + 1 + 2  # at most two completions of a question and a model are shown
    for title in ("Scores", "Paired comparison", "Several completions", "By subject", "Lengths", "Samples"):
        assert f"<h2>{title}</h2>" in page
    assert not re.search(r"https?://", page)


def test_report__many_questions__shows_some_of_them_and_cuts_long_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_page, "SHOWN_QUESTIONS", 3)
    monkeypatch.setattr(evaluation_page._cut, "__defaults__", (100,))
    asked = [f"question {number}?" for number in range(10)]
    results, log, questions, config = finish(tmp_path, asked, ["m"], [[["x" * 200]] * 10])
    with log:
        page = build_report(results, log, questions, config)
    assert [number for number in range(10) if f"question {number}?" in page] == [0, 3, 6]
    assert "x" * 100 + "\u2026 (200 characters)" in page
    assert "x" * 101 not in page


def test_tables__of_the_console__have_intervals_and_counts(tmp_path: Path) -> None:
    texts = [[[RIGHT], [WRONG], [RIGHT]], [[RIGHT], [RIGHT], [RIGHT]]]
    results, log, _, _ = finish(tmp_path, ["a", "b", "c"], ["one", "two"], texts)
    log.close()
    heads, body = tabulate_models(results)
    assert heads == ["model", "avg@1", "finished", "extracted", "tokens"]
    assert body[0][:2] == ["one", "66.7 % [0.0, 100.0]"]
    heads, body = tabulate_comparisons(results)
    assert body == [["two", "one", "+33.3 % [-100.0, +100.0]", "3", "1", "2", "0"]]


def test_format_estimate__without_an_interval__is_a_value() -> None:
    assert format_estimate(Estimate(value=0.5, low=None, high=None)) == "50.0 %"
    assert format_estimate(Estimate(value=0.5, low=0.25, high=0.75)) == "50.0 % [25.0, 75.0]"


def test_describe_skipped__pictures_and_judges__are_said() -> None:
    assert describe_skipped({"picture": 3, "judge": 2}) == [
        "not asked: 2 rows with an answer that only a judge can grade",
        "not asked: 3 rows with a picture, which is not shown to models",
    ]
