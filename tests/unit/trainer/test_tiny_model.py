"""The warm start: how rewards are measured, and that a full run gives a model like the shipped one."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from covey.engines.base import Completion, GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments.base import Grade, Reply
from covey.environments.registry import DEMO, load
from covey.model.prompts import RAW, encode_prompt
from covey.model.text import decode_completion
from covey.model.tiny import tiny_folder
from covey.protocol.policy_record import WEIGHTS_FILE
from trainer.tiny_model import measure_reward, warm_start_tiny

pytestmark = pytest.mark.unit
ENVIRONMENT = load(DEMO)


def grade(replies: Sequence[Reply]) -> list[Grade]:
    return [ENVIRONMENT.grade(reply) for reply in replies]


def test_measure_reward__shipped_model__is_the_mean_of_seeded_completions() -> None:
    torch.set_num_threads(1)
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    prompts = ENVIRONMENT.held_out(12)

    def earn(i: int) -> float:
        prompt = prompts[i // 3]
        tokens = tuple(encode_prompt(engine.tokenizer, prompt.text, format=RAW))
        done: Completion
        (done,) = engine.generate([GenerationRequest(prompt=tokens, seed=i, max_tokens=8)], temperature=1.0)
        answer = decode_completion(engine.tokenizer, done.tokens, engine.end_tokens)
        word = prompt.text.rpartition(" ")[2]
        return float(done.finished and answer.lower() == word[::-1].lower())

    expected = sum(earn(i) for i in range(36)) / 36
    assert 0 < expected < 1
    assert measure_reward(engine, prompts, grade=grade, samples=3) == pytest.approx(expected)


def test_measure_reward__no_room_for_an_answer__is_zero() -> None:
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    assert measure_reward(engine, ENVIRONMENT.held_out(8), grade=grade, samples=1, max_tokens=3) == 0.0


@pytest.mark.slow
@pytest.mark.full
def test_warm_start_tiny__seed_of_the_shipped_model__starts_at_about_a_third(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    steps: list[int] = []
    reward = warm_start_tiny(1, tmp_path, lambda step, _: steps.append(step))
    assert 0.26 < reward < 0.42
    assert steps == list(range(len(steps)))
    assert (tmp_path / WEIGHTS_FILE).stat().st_size == (tiny_folder() / WEIGHTS_FILE).stat().st_size
