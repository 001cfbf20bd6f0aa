"""Extraction of the answer from a completion: thinking, rules, texts made to cheat, and linear time."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.environments.answer_extraction import ANSWERS_VERSION, EXTRACTIONS, extract_answer, strip_thinking
from tests.fakes.cpu_unit import measure_cpu_unit

pytestmark = pytest.mark.unit

CASES = [
    json.loads(line) for line in (Path(__file__).parents[3] / "data/grading/extraction.jsonl").read_text().splitlines()
]
PLAIN = st.text(alphabet="abc XYZ019.,+-\n")
"""Strategy for texts without a tag, a fence, a brace or a backslash."""


def test_cases__are_many():
    assert len(CASES) >= 60
    assert {case["extraction"] for case in CASES} == set(EXTRACTIONS)


def test_version__is_a_text_that_parameters_can_pin():
    assert ANSWERS_VERSION == "3"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['extraction']}: {case['why']}")
def test_extract_answer__labelled_case(case):
    assert extract_answer(case["text"], case["extraction"], required=case["required"]) == case["answer"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5", "5"),
        ("<think>a</think>5", "5"),
        ("a</think>5", "5"),
        ("<think>a</think>b</think>5", "5"),
        ("<think>a<think>b</think>c</think>5", "5"),
        ("<think>a</think>b<think>c</think>5", "5"),
        ("<think>a</think>", ""),
        ("<think>a", None),
        ("5<think>a", None),
        ("<think>a</think>5<think>b", None),
        ("a</think>5<think>", None),
    ],
)
def test_strip_thinking__tags__leave_what_follows_the_last_closing_one(text, answer):
    assert strip_thinking(text) == answer


@pytest.mark.parametrize(("text", "answer"), [("5", None), ("a</think>5", "5"), ("<think>a</think>5", "5"), ("", None)])
def test_strip_thinking__required__needs_a_closing_tag(text, answer):
    assert strip_thinking(text, required=True) == answer


def test_strip_thinking__other_tags__are_compared_exactly():
    tags = ("[[t]]", "[[/t]]")
    assert strip_thinking("[[t]]a[[/t]]5", tags=tags) == "5"
    assert strip_thinking("<think>a", tags=tags) == "<think>a"
    assert strip_thinking("<THINK>a</THINK>5") == "<THINK>a</THINK>5"


def test_extract_answer__unknown_name__raises():
    with pytest.raises(KeyError):
        extract_answer("5", "best_guess")


@given(inside=PLAIN, rest=PLAIN)
def test_strip_thinking__any_text__never_returns_a_part_from_inside(inside, rest):
    marked = f"<think>{inside}SECRET</think>{rest}"
    assert strip_thinking(marked) == rest
    assert strip_thinking(f"{rest}{marked}<think>SECRET") is None


@given(before=PLAIN, after=PLAIN, candidate=PLAIN.filter(lambda text: text.strip()))
def test_extractions__text_around_a_candidate__return_it(before, after, candidate):
    boxed = EXTRACTIONS["last_boxed"](rf"{before}\boxed{{{candidate}}}{after}")
    assert boxed == EXTRACTIONS["answer_tag"](f"{before}<answer>{candidate}</answer>{after}")
    assert (boxed or "").strip() == candidate.strip()
    program = candidate.strip()
    assert EXTRACTIONS["last_code_block"](f"{before}\n```py\n{program}\n```\n{after}") == program + "\n"


@given(grid=st.text(alphabet="X .\n").filter(lambda text: text.strip()), around=st.text(alphabet="\n", max_size=3))
def test_whole__lines_of_a_grid__keep_their_columns(grid, around):
    lines = [line.rstrip() for line in grid.rstrip().splitlines()]
    while not lines[0]:
        lines.pop(0)
    found = (EXTRACTIONS["whole"](f"{around}{grid}{around}") or "").splitlines()
    assert [line.rstrip() for line in found] == (lines if len(lines) > 1 else [lines[0].strip()])


@settings(max_examples=40)
@given(text=st.text())
def test_extractions__any_text__never_raise_and_never_return_blank(text):
    for find in EXTRACTIONS.values():
        candidate = find(text)
        assert candidate is None or candidate.strip()


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 100_000,
        r"\boxed{" * 50_000 + "1" + "}" * 50_000,
        r"\boxed{1}" * 50_000,
        r"\boxed " * 100_000,
        "\\" * 500_000,
        "{" * 500_000,
        "<answer>" * 100_000,
        "<answer>1</answer>" * 50_000,
        "1,111" * 100_000,
        ",111" * 100_000 + "1",
        "1/" * 200_000,
        "- " * 200_000 + "5",
        "-" * 500_000 + "5",
        "1e" * 200_000,
        "```\n" * 100_000,
        "`" * 500_000,
        "~~~py\n" * 100_000,
        "*" * 500_000,
        "the answer is " * 50_000,
        " " * 500_000 + "x",
        "\n" * 500_000,
        "<think>" * 100_000,
        "</think>" * 100_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_extractions__hostile_text__take_linear_time(text):
    started = time.process_time()
    for name in EXTRACTIONS:
        extract_answer(text, name)
    assert time.process_time() - started < 500 * measure_cpu_unit()


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{A}\boxed{B}\boxed{C}\boxed{D}",
        r"<think>\boxed{A}</think>",
        r"<think>\boxed{A}</think>The box is above.",
        r"\boxed{A}</think>",
        r"\boxed{A}<think>",
        r"<think></think>\boxed{A}<think>\boxed{B}",
        r"\boxed{A} \fbox{B}",
        r"\boxed A \boxed{B}",
        "\\boxed{\u200b}",
        "\\bo\u200bxed{A}",
        r"\\boxed{A}",
        r"\boxed{\boxed{A}",
    ],
)
def test_last_boxed__text_made_to_cheat__never_yields_the_answer(text):
    assert extract_answer(text, "last_boxed") != "A"


@pytest.mark.parametrize(
    "text",
    [
        "<answer>A</answer><answer>B</answer>",
        "<answer>A<answer>B</answer>",
        "<answer>A</answer></answer>",
        "<think><answer>A</answer></think>",
        "<answer>A</answer></think>",
        "<answer>A</answer><think>",
        "<\u0430nswer>A</\u0430nswer>",
        "<answer\u200b>A</answer>",
        "\u202e<rewsna>A</rewsna>",
    ],
)
def test_answer_tag__text_made_to_cheat__never_yields_the_answer(text):
    assert extract_answer(text, "answer_tag") != "A"
