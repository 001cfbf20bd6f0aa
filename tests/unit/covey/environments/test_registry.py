"""Environments by kind, and the order for the grader."""

import hashlib
import json
import subprocess
import sys

import pytest

from covey.environments.base import EnvironmentSpec, Prompt
from covey.environments.registry import DEMO, build_grading, compute_fingerprint, load, require_fingerprint
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


def test_load__the_demo__asks_for_words_of_three_to_five_letters() -> None:
    environment = load(DEMO)
    words = [environment.prompt(draw).text.rpartition(" ")[2] for draw in range(100)]
    assert {len(word) for word in words} == {3, 4, 5}


def test_load__unknown_kind__is_refused() -> None:
    with pytest.raises(OperatorError, match="no environment of kind 'chess'"):
        load(EnvironmentSpec(kind="chess"))


class Worded:
    """An environment whose library words the question of one draw in its own way."""

    def __init__(self, odd: int | None = None, target: int | None = None) -> None:
        self.odd, self.target = odd, target

    def prompt(self, slot_hash: int) -> Prompt:
        text = f"Frage {slot_hash}é" + ("?" if slot_hash == self.odd else "")
        return Prompt(text=text, item=slot_hash, target=self.target)


def test_compute_fingerprint__prompts__by_hand() -> None:
    rows = ",".join(f'{{"target":null,"text":"Frage {draw}é"}}' for draw in range(32))
    assert compute_fingerprint(Worded()) == "0x" + hashlib.sha256(f'{{"prompts":[{rows}]}}'.encode()).hexdigest()


def test_compute_fingerprint__another_text_target_or_generator__differs() -> None:
    prints = [compute_fingerprint(each) for each in (Worded(), Worded(0), Worded(31), Worded(target=5), load(DEMO))]
    assert len(set(prints)) == 5
    assert compute_fingerprint(Worded(32)) == prints[0]  # beyond the draws that are looked at
    assert compute_fingerprint(load(DEMO)) == prints[4]


def test_require_fingerprint__same_prompts__passes() -> None:
    require_fingerprint(Worded(), compute_fingerprint(Worded()))


def test_require_fingerprint__other_prompts__stops_and_says_what_to_install() -> None:
    with pytest.raises(OperatorError, match=r"environment_differs: .*Install the version .*reasoning-gym") as caught:
        require_fingerprint(Worded(7), compute_fingerprint(Worded()))
    assert caught.value.code == "environment_differs"


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
