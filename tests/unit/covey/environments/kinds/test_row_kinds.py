import pytest

from covey.environments.base import EnvironmentSpec, refuse_data_sets
from covey.environments.kinds.row_kinds import MathSource, MultipleChoiceSource, ShortAnswerSource
from covey.environments.registry import load
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

DIGEST = "0x" + "ab" * 32


@pytest.mark.parametrize(
    ("source", "raw", "info"),
    [
        (MathSource, {"ground_truth": "5"}, {"ground_truth": ["5"]}),
        (MathSource, {"ground_truth": ["5", "five"], "more": 1}, {"ground_truth": ["5", "five"]}),
        (MathSource, {"ground_truth": ["5", None, None]}, {"ground_truth": ["5"]}),
        (MultipleChoiceSource, {"choices": ["x", "y", None], "answer": "B"}, {"choices": ["x", "y"], "right": 1}),
        (MathSource, {"ground_truth": 2.5}, {"ground_truth": ["2.5"]}),
        (ShortAnswerSource, {"answers": ["Paris"]}, {"answers": ["Paris"]}),
        (ShortAnswerSource, {"ground_truth": "Paris"}, {"answers": ["Paris"]}),
        (MultipleChoiceSource, {"choices": ["x", "y"], "answer": "B"}, {"choices": ["x", "y"], "right": 1}),
        (MultipleChoiceSource, {"choices": ["x", "y"], "answer": 1}, {"choices": ["x", "y"], "right": 1}),
        (MultipleChoiceSource, {"choices": ["x", "y"], "answer": "y"}, {"choices": ["x", "y"], "right": 1}),
        (MultipleChoiceSource, {"choices": [3, 4], "answer": "4"}, {"choices": ["3", "4"], "right": 1}),
        (MultipleChoiceSource, {"choices": ["A", "B"], "answer": "B"}, {"choices": ["A", "B"], "right": 1}),
    ],
)
def test_read_info__forms_of_published_data_sets__have_one_form_that_reads_again(source, raw, info):
    assert source.read_info(raw) == info
    assert source.read_info(info) == info


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("3 + 4 = <<3+4=7>>7\n#### 7", "7"),
        ("Not the #### that counts.\n#### 1,024", "1024"),
        ("#### $-2.5\n", "-2.5"),
        ("####12", "12"),
    ],
)
def test_read_columns__rows_of_gsm8k__end_with_the_truth(answer: str, truth: str) -> None:
    question, raw = MathSource.read_columns({"question": "How many?", "answer": answer})
    assert (question, MathSource.read_info(raw)) == ("How many?", {"ground_truth": [truth]})


@pytest.mark.parametrize(
    "values",
    [
        {"question": "How many?", "answer": "7"},
        {"question": "How many?", "answer": "It is 7. #### "},
        {"question": "How many?", "answer": "#### 7\nor 8"},
        {"question": "How many?"},
        {"answer": "#### 7"},
        {"question": "How many?", "answer": 7},
    ],
)
def test_read_columns__other_rows__are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="answer"):
        MathSource.read_columns(values)


@pytest.mark.parametrize(
    ("source", "raw", "text"),
    [
        (MathSource, {}, "no field ground_truth"),
        (MathSource, {"ground_truth": []}, "is empty"),
        (MathSource, {"ground_truth": [" "]}, "blank or not a string"),
        (MathSource, {"ground_truth": [None]}, "is empty"),
        (MultipleChoiceSource, {"choices": ["x", None, "y"], "answer": 1}, "blank or not a string"),
        (MathSource, {"ground_truth": None}, "blank or not a string"),
        (MathSource, {"ground_truth": True}, "blank or not a string"),
        (ShortAnswerSource, {}, "no field answers or ground_truth"),
        (MultipleChoiceSource, {"answer": "A"}, "no field choices"),
        (MultipleChoiceSource, {"choices": ["x"], "answer": "A"}, "1 entries"),
        (MultipleChoiceSource, {"choices": ["x"] * 27, "answer": "A"}, "27 entries"),
        (MultipleChoiceSource, {"choices": ["x", "y"]}, "answer is missing"),
        (MultipleChoiceSource, {"choices": ["x", "y"], "answer": "C"}, "matches 0 choices"),
        (MultipleChoiceSource, {"choices": ["x", "y"], "answer": 2}, "counted from 0"),
        (MultipleChoiceSource, {"choices": ["x", "y"], "answer": True}, "neither a letter"),
        (MultipleChoiceSource, {"choices": ["x", "x"], "answer": "x"}, "matches 2 choices"),
        (MultipleChoiceSource, {"choices": ["B", "A"], "answer": "A"}, "matches 2 choices"),
    ],
)
def test_read_info__invalid__names_the_problem(source, raw, text):
    with pytest.raises(ValueError, match=text):
        source.read_info(raw)


@pytest.mark.parametrize(
    ("kind", "info", "right", "wrong"),
    [
        ("math", {"ground_truth": ["1/2"]}, "0.5", "2"),
        ("short_answer", {"answers": ["Paris"]}, "paris.", "London"),
        ("multiple_choice", {"choices": ["x", "y"], "right": 1}, "B", "A"),
    ],
)
def test_grade__right_and_wrong__in_a_process_without_data_sets(kind, info, right, wrong):
    source = load(EnvironmentSpec(kind=kind, options={"dataset": DIGEST}), refuse_data_sets).source
    assert source.grade(info, right) == 1.0
    assert source.grade(info, wrong) == 0.0


def test_ask__multiple_choice__letters_precede_the_choices():
    source = MultipleChoiceSource({"dataset": DIGEST}, refuse_data_sets)
    assert source.ask("Which?", {"choices": ["x", "y"], "right": 0}) == "Which?\nA. x\nB. y"


@pytest.mark.parametrize("options", [{}, {"dataset": "0x12"}, {"dataset": DIGEST, "more": 1}, {"dataset": 7}])
def test_options__invalid__bad_environment(options):
    with pytest.raises(OperatorError, match="bad_environment"):
        load(EnvironmentSpec(kind="math", options=options), refuse_data_sets)


def test_draw__without_data_sets__no_dataset():
    environment = load(EnvironmentSpec(kind="math", options={"dataset": DIGEST}), refuse_data_sets)
    with pytest.raises(OperatorError, match="no_dataset"):
        environment.prompt(1)


def test_versions__mathematics__names_its_packages():
    environment = load(EnvironmentSpec(kind="math", options={"dataset": DIGEST}), refuse_data_sets)
    assert {"math-verify", "sympy"} <= set(environment.versions)
