"""Counting right answers, results that survive a crash, and the choice of questions."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from covey.cli.task_filter import Results, SolveTrial, choose_kept, count_passes, list_turns
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.environments.base import Environment, Grade, Prompt, Reply
from covey.errors import OperatorError
from covey.protocol.seeding import compute_trial_seed

pytestmark = pytest.mark.unit

TRIAL = SolveTrial(
    kind="toy", options={"a": [1, 2]}, model="m", engine="hf", dtype="float32", pass_k=4, seed=7, temperature=0.5,
    max_prompt_tokens=6, max_completion_tokens=3,
)  # fmt: skip


class Toy:
    """An environment in which question n consists of n letters "q"."""

    def prompt(self, draw: int) -> Prompt:
        return Prompt(text="q" * draw, verification={"n": draw})


class Letters:
    """A tokenizer with one token per letter."""

    bos_token_id = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))


class Scripted:
    """Answers "y" if the seed is a multiple of the number of letters in the question, otherwise "no"."""

    tokenizer, end_tokens = Letters(), frozenset({1})

    def __init__(self) -> None:
        self.asked: list[GenerationRequest] = []
        self.temperatures: list[float] = []

    def generate(self, requests: Sequence[GenerationRequest], *, temperature: float) -> list[Completion]:
        self.asked += requests
        self.temperatures.append(temperature)
        return [self._answer(request) for request in requests]

    def _answer(self, request: GenerationRequest) -> Completion:
        is_right = request.seed % len(request.prompt) == 0
        tokens = (ord("y"),) if is_right else (ord("n"), ord("o"))
        return Completion(policy_version=0, tokens=tokens, logprobs=(0.0,) * len(tokens), tops=(), finished=is_right)


def count(numbers: Sequence[int], engine: Scripted, grade: Any) -> dict[int, int | None]:
    return count_passes(numbers, TRIAL, engine=cast(Engine, engine), environment=cast(Environment, Toy()), grade=grade)


def grade_text(replies: Sequence[Reply]) -> list[Grade]:
    """Grade one question of four answers with 1 for "y", less 0.6 for each token after the first."""
    assert len({reply.verification["n"] for reply in replies}) == 1
    return [build_grade(float(reply.text == "y"), 0.6 * (reply.tokens - 1)) for reply in replies]


def build_grade(task: float, cost: float) -> Grade:
    return Grade(reward=task - cost, parts={"task": task, "length": -cost})


def test_count_passes__scripted_answers__by_their_seeds() -> None:
    engine = Scripted()
    found = count([1, 2, 5], engine, grade_text)
    expected = {n: sum(compute_trial_seed("filter", 7, n, i) % (n + 1) == 0 for i in range(4)) for n in (1, 2, 5)}
    assert found == expected
    assert 0 < sum(expected.values()) < 12
    assert engine.temperatures == [0.5]  # one batch
    assert {request.max_tokens for request in engine.asked} == {3}
    assert [len(request.prompt) for request in engine.asked] == [2] * 4 + [3] * 4 + [6] * 4
    assert len({request.seed for request in engine.asked}) == 12


def test_count_passes__right_but_of_the_wrong_length__passes() -> None:
    """A reward of 1 - 1.2 is negative, but the answer is still right."""
    engine = Scripted()
    engine._answer = lambda request: Completion(
        policy_version=0,
        tokens=(121, 121),
        logprobs=(0.0, 0.0),
        tops=(),
        finished=True,
    )
    assert count([3], engine, lambda _: [build_grade(right, 1.2) for right in (1.0, 0.0, 1.0, 1.0)]) == {3: 3}


def test_count_passes__prompt_that_is_too_long__is_not_asked() -> None:
    """Six tokens with the newline are allowed."""
    engine = Scripted()
    assert count([6, 5, 9], engine, grade_text).keys() == {6, 5, 9}
    assert len(engine.asked) == 4
    assert count([6, 9], engine, grade_text) == {6: None, 9: None}
    assert len(engine.asked) == 4


def test_list_turns__done_ones__are_left_out() -> None:
    assert list(list_turns(8, {1, 2, 6, 100}, 2)) == [[0, 3], [4, 5], [7]]
    assert list(list_turns(2, {0, 1}, 2)) == []


def test_choose_kept__bounds__are_both_kept() -> None:
    passes = {0: 0, 1: 1, 2: 4, 3: 5, 4: 8, 5: None, 6: 2, 7: 3}
    assert choose_kept(passes, count=8, pass_k=8, low=0.125, high=0.5) == [1, 2, 6, 7]
    assert choose_kept(passes, count=3, pass_k=8, low=0.125, high=0.5) == [1, 2]
    assert choose_kept(passes, count=9, pass_k=8, low=0.0, high=1.0) == [0, 1, 2, 3, 4, 6, 7]


def test_results__read_again__are_continued(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    Results(path, TRIAL).add({0: 3, 1: None})
    again = Results(path, TRIAL)
    assert again.passes == {0: 3, 1: None}
    again.add({2: 0})
    assert path.read_text().splitlines()[1:] == [
        '{"number": 0, "passes": 3}',
        '{"number": 1, "passes": null}',
        '{"number": 2, "passes": 0}',
    ]


@pytest.mark.parametrize("cut", range(1, 25))
def test_results__killed_while_it_wrote__lose_the_torn_line_alone(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    Results(path, TRIAL).add({0: 3, 1: 4})
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = Results(path, TRIAL)
    assert again.passes == {0: 3}
    again.add({1: 4})
    assert path.read_bytes() == whole


def test_results__killed_in_the_first_line__start_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"kind": "to')
    assert Results(path, TRIAL).passes == {}
    assert Results(path, TRIAL).passes == {}
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "change", [{"model": "n"}, {"seed": 8}, {"options": {"a": [1]}}, {"pass_k": 8}, {"temperature": 1.0}]
)
def test_results__of_another_trial__are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "out.jsonl"
    Results(path, TRIAL).add({0: 3})
    before = path.read_bytes()
    with pytest.raises(OperatorError, match="another_filter"):
        Results(path, replace(TRIAL, **change))
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["no json\n", "[]\n[]\n", '{}\n{"number": 1}\n', "\xff\n"])
def test_results__another_file__is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(OperatorError, match="bad_results"):
        Results(path, TRIAL)
