r"""The last number of a text: a part of a number is never returned, and hostile texts take linear time.

The labelled cases are in tests/data/grading/extraction.jsonl, which test_answer_extraction.py reads.
"""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.environments.final_number import find_final_number
from tests.fakes.cpu_unit import measure_cpu_unit

pytestmark = pytest.mark.unit

SEPARATORS = (",", "{,}", r"\,", r"\;", r"\!", r"\ ", "~", "\u2009", "\u202f", "\u00a0")
FORMS = (
    "{}",
    "The total is {}.",
    "${}$",
    r"\({}\)",
    r"\boxed{{{}}}",
    "**{}**",
    r"$\${}$",
    "= {} apples",
    r"\text{{about }}{}",
)


@given(number=st.integers(-(10**9), 10**9), before=st.text(alphabet="ab ,.\n"))
def test_final_number__integer_after_any_text__is_found(number, before):
    assert find_final_number(f"{before} {number:,}.") == str(number)


@given(number=st.integers(0, 10**15), separator=st.sampled_from(SEPARATORS), form=st.sampled_from(FORMS))
def test_final_number__groups_of_digits__are_one_number(number, separator, form):
    assert find_final_number(form.format(f"{number:,}".replace(",", separator))) == str(number)


@given(
    parts=st.lists(st.from_regex("[0-9]{1,4}", fullmatch=True), min_size=2, max_size=4),
    joiner=st.sampled_from(
        ["/", ":", ".", ",", "'", "_", "{,}", r"\,", "^", "^{", "\u200b", "**", r"\times 10^", "\u2009"]
    ),
)
def test_final_number__joined_digits__are_read_whole_or_not_at_all(parts, joiner):
    found = find_final_number(joiner.join(parts))
    assert found is None or re.sub("[^0-9]", "", found) == "".join(parts)


@pytest.mark.parametrize(
    "text",
    [
        "1,111" * 100_000, "1/" * 200_000, "1 / " * 100_000, "- " * 200_000 + "5", "1e" * 200_000, "1{,}" * 100_000,
        r"\frac" * 100_000, r"\frac{1}{" * 50_000, r"\frac{1}{2}" * 50_000, "{" * 300_000 + "5", "x1 " * 100_000,
        "cm^2 " * 100_000, "1 234 " * 50_000, "\\" * 300_000 + "5", r"\, 1" * 100_000, "*" * 300_000 + "5",
        "_{1}" * 100_000,
    ],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_final_number__hostile_text__takes_linear_time(text):
    started = time.process_time()
    find_final_number(text)
    assert time.process_time() - started < 100 * measure_cpu_unit()
