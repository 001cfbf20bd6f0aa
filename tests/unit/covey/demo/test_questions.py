import re

import pytest

from covey.demo.questions import ARGUMENTS, OPERATORS, build_functions, build_sums

pytestmark = pytest.mark.unit


def test_build_sums__every_question__has_the_sum_of_its_two_numbers():
    questions = build_sums(500)
    assert len({question.prompt for question in questions}) == 500
    for question in questions:
        first, second = map(int, re.findall(r"\d", question.prompt))
        assert question.info == {"ground_truth": str(first + second)}
        assert question.answer == rf"\boxed{{{first + second}}}"


def test_build_functions__every_answer__passes_its_tests():
    questions = build_functions(1200)
    assert len({question.prompt for question in questions}) == 1200 == len(OPERATORS) * 400
    for question in questions[:100]:
        defined = {}
        exec(question.answer.strip("`"), defined)
        assert question.info["inputs"] == [[argument] for argument in ARGUMENTS]
        assert question.info["outputs"] == [defined["f"](argument) for argument in ARGUMENTS]
        assert not any(f"({argument})" in question.prompt for argument in ARGUMENTS)


def test_questions__made_twice__are_equal():
    assert build_sums(50) == build_sums(50)
    assert build_functions(50) == build_functions(50)
    assert build_sums(50) != sorted(build_sums(50), key=lambda question: question.prompt)
