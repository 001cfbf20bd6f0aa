"""Settings as tables, and the tags that a run's parameters name."""

import pytest

from covey.standalone.run_settings import find_thinking_tags, list_rows

pytestmark = pytest.mark.unit


def test_list_rows__sections_and_values__have_names_and_texts():
    values = {"optim": {"learning_rate": 1e-6}, "model": {"path": "a/b"}, "eval": {"every": None}, "tags": ["x", 1]}
    assert list_rows(values) == [
        ("optim.learning_rate", "1e-06"), ("model.path", "a/b"), ("eval.every", "null"), ("tags", '["x", 1]')
    ]  # fmt: skip


def test_find_thinking_tags__named_ones__are_returned():
    assert find_thinking_tags({"environment": {"options": {"thinking_tags": ["[", "]"]}}}) == ("[", "]")


@pytest.mark.parametrize("tags", [None, 7, "ab", ["a"], ["a", 1], ["", "b"], ["a", "b", "c"]])
def test_find_thinking_tags__other_values__are_the_usual_tags(tags: object):
    assert find_thinking_tags({"environment": {"options": {"thinking_tags": tags}}}) == ("<think>", "</think>")
    assert find_thinking_tags({"environment": tags}) == ("<think>", "</think>")
