"""The page of a run: its numbers, their intervals, and completions that cannot change the page."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.fakes.run_folders import HOSTILE, write_completions, write_metrics
from trainer.monitoring.run_history import read_history, read_samples
from trainer.monitoring.run_page import (
    MAX_ROWS,
    SampledStep,
    SettingsTable,
    build_run_page,
    split_thinking,
)

pytestmark = pytest.mark.unit
BIDI = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


class Page(HTMLParser):
    """Tags with their attributes, and the texts of `pre` elements, as a browser's tokenizer sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.cells: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}
        self._open.append(tag)
        if tag == "pre":
            self.texts.append("")
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["pre"]:
            self.texts[-1] += data
        if self._open[-1:] in (["td"], ["th"]):
            self.cells[-1][-1] += data


def build(home: Path, samples: list[SampledStep], **more: object) -> Page:
    return Page(build_run_page("Run", read_history(home), samples, [], **more))  # type: ignore[arg-type]


def test_build_run_page__hostile_completions__are_texts_and_add_no_element(tmp_path: Path) -> None:
    write_metrics(tmp_path, 3)
    write_completions(tmp_path, 0, ["plain"] * len(HOSTILE))
    write_completions(tmp_path, 2, HOSTILE)
    plain, hostile = (
        build(tmp_path, [SampledStep(step=step, lines=read_samples(tmp_path, step, 99)[0])]) for step in (0, 2)
    )
    folded = sum(bool(split_thinking(text, ("<think>", "</think>"))[0]) for text in HOSTILE)
    assert sorted(hostile.tags) == sorted([*plain.tags, *["details", "summary", "pre"] * folded])
    assert hostile.attributes == plain.attributes
    assert not any(name.startswith("on") for name in hostile.attributes)
    for text in HOSTILE:
        visible = "".join(c for c in text if c.isprintable())
        assert any("".join(c for c in shown if c.isprintable() and c != "\ufffd") == visible for shown in hostile.texts)
    assert not BIDI & {*"".join(hostile.texts)}


def test_build_run_page__hostile_settings_alarms_and_problems__are_texts(tmp_path: Path) -> None:
    alarm = {"event": "alarm", "step": 1, "sign": HOSTILE[0], "value": HOSTILE[2], "limit": 0.5, "advice": HOSTILE[5]}
    write_metrics(tmp_path, 3, more=[alarm])
    settings = [SettingsTable(title=HOSTILE[2], rows=[(HOSTILE[4], HOSTILE[6])])]
    page = Page(build_run_page(HOSTILE[0], read_history(tmp_path), [], settings, problems=[HOSTILE[2]]))
    assert not {"script", "img", "iframe", "h1"} & {*page.tags[page.tags.index("body") + 2 :]}
    assert [HOSTILE[4], HOSTILE[6]] in page.cells
    assert ["1", HOSTILE[0], HOSTILE[2], "0.5", HOSTILE[5]] in page.cells


def test_build_run_page__numbers__have_a_standard_error_and_an_interval(tmp_path: Path) -> None:
    write_metrics(tmp_path, 3)
    page = build(tmp_path, [])
    assert ["2", "0.2", "0.1", "0.3"] in page.cells  # 0.4 / sqrt(16) on each side
    assert ["3", "0.5", "0.38102", "0.61898"] in page.cells  # Wilson's interval of 32 of 64
    assert ["newest evaluation", "0.500, 95 percent interval 0.381 to 0.619 (policy 3)"] in page.cells
    assert page.tags.count("figure") == 8  # of the metrics that this run has


def test_build_run_page__a_long_run__has_few_rows_with_both_ends(tmp_path: Path) -> None:
    write_metrics(tmp_path, 3000)
    page = build(tmp_path, [])
    steps = [int(row[0]) for row in page.cells if row[0].isdecimal() and len(row) == 4]
    assert len(steps) == MAX_ROWS + 2  # and two evaluations
    assert {0, 2999, 3000} <= {*steps}


def test_build_run_page__no_metrics__says_so(tmp_path: Path) -> None:
    page = build_run_page("Run", read_history(tmp_path), [], [])
    assert "metrics.jsonl cannot be read: No such file or directory." in page
    assert "<td>0</td>" in page


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ("", "a")), ("<think>a</think>\n\nb", ("<think>a</think>", "b")), ("a</think>b", ("a</think>", "b")),
        ("<think>a", ("<think>a", "")), ("<think>a</think>b<think>c", ("<think>a</think>b<think>c", "")),
    ],
)  # fmt: skip
def test_split_thinking__tags__separate_it_from_the_answer(text: str, parts: tuple[str, str]) -> None:
    assert split_thinking(text, ("<think>", "</think>")) == parts
