"""Environments by kind, and the order for the grader."""

import json
import subprocess
import sys

import pytest

from covey.environments.base import EnvironmentSpec
from covey.environments.registry import DEMO, build_grading, load
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


def test_load__the_demo__asks_for_words_of_three_to_five_letters() -> None:
    environment = load(DEMO)
    words = [environment.prompt(draw).text.rpartition(" ")[2] for draw in range(100)]
    assert {len(word) for word in words} == {3, 4, 5}


def test_load__unknown_kind__is_refused() -> None:
    with pytest.raises(OperatorError, match="no environment of kind 'chess'"):
        load(EnvironmentSpec(kind="chess"))


def test_build_grading__completions__are_the_json_of_the_grader() -> None:
    assert json.loads(build_grading(DEMO, [(2**62, "é", False, 3)])) == {
        "spec": {
            "kind": "reasoning_gym",
            "options": {"name": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 5}},
        },
        "items": [{"draw": 2**62, "text": "é", "finished": False, "tokens": 3}],
    }


def test_import__registry_and_engine_base__are_light() -> None:
    heavy = "{'torch', 'transformers', 'numba', 'reasoning_gym'}"
    code = f"import sys, covey.environments.registry, covey.engines.base; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[]\n"
