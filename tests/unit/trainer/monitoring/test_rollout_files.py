"""Completions of a step as lines of text."""

import json
from pathlib import Path

import pytest

from covey.environments import registry
from covey.environments.length_costs import LengthCosts
from covey.errors import OperatorError
from covey.model.policy_files import load_tokenizer
from covey.model.prompts import PromptFormat, encode_prompt
from covey.model.tiny import tiny_folder
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from trainer.data.samples import Sample
from trainer.monitoring.rollout_files import RolloutFiles

pytestmark = pytest.mark.unit


@pytest.fixture
def files(tmp_path: Path) -> RolloutFiles:
    return RolloutFiles(tmp_path / "rollouts")


def build_samples(count: int) -> list[Sample]:
    tokenizer = load_tokenizer(tiny_folder())
    prompt = tuple(encode_prompt(tokenizer, "Say abc", format=PromptFormat()))
    tokens = (*tokenizer.encode("cba", add_special_tokens=False), tokenizer.eos_token_id)
    return [
        Sample(
            id=RolloutId(task=TaskId(n), group=GroupId(0), sibling=n % 2), policy_version=Step(2), prompt=prompt,
            tokens=tokens if n else tokens[:-1], reward=0.5, advantage=1.0, old=None, finished=n > 0,
        )
        for n in range(count)
    ]  # fmt: skip


def write(files: RolloutFiles, step: int, samples: list[Sample], count: int) -> None:
    costs, tokenizer = LengthCosts(registry.DEMO), load_tokenizer(tiny_folder())
    files.write(Step(step), samples, count=count, costs=costs, tokenizer=tokenizer, format=PromptFormat())


def test_write__samples__are_spread_over_the_step_and_read_again(files: RolloutFiles, tmp_path: Path):
    write(files, 3, build_samples(10), 4)
    lines = list(files.read(Step(3)))
    assert [line.task for line in lines] == [0, 2, 5, 7]
    first, second = lines[:2]
    assert (first.completion, first.finished, first.tokens) == ("cba", False, 3)
    assert (second.completion, second.finished, second.tokens) == ("cba", True, 4)
    assert (second.step, second.policy, second.reward, second.length_penalty) == (3, 2, 0.5, 0)
    assert second.question.endswith("Say abc\n")
    assert len((tmp_path / "rollouts" / "3.jsonl").read_text().splitlines()) == 4


def test_write__again_or_fewer_samples__replaces_the_file(files: RolloutFiles):
    write(files, 3, build_samples(10), 4)
    write(files, 3, build_samples(2), 8)
    write(files, 4, build_samples(2), 0)
    assert len(list(files.read(Step(3)))) == 2
    assert files.list_steps() == [3]


def test_write__text_that_is_not_unicode__is_kept_readable(files: RolloutFiles, tmp_path: Path):
    write(files, 1, build_samples(1), 1)
    assert json.loads((tmp_path / "rollouts" / "1.jsonl").read_text())["completion"] == "cba"


def test_read__step_without_a_file__names_those_that_there_are(files: RolloutFiles):
    with pytest.raises(OperatorError, match="no_rollouts"):
        list(files.read(Step(1)))
    write(files, 5, build_samples(1), 1)
    with pytest.raises(OperatorError) as caught:
        list(files.read(Step(1)))
    assert caught.value.fix == "Choose a step from 5 to 5"
