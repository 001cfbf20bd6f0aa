"""Common sampling noise, exact means, and a background that neither loses nor repeats a step."""

import asyncio
from pathlib import Path
from threading import Event as Flag
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from structlog.testing import capture_logs

from covey.engines.base import GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments.base import Environment
from covey.errors import OperatorError, ProtocolError
from covey.model.prompts import RAW, encode_prompt
from covey.model.text import decode_completion
from covey.model.tiny import tiny_folder
from covey.protocol.ids import Step
from covey.protocol.seeding import compute_trial_seed
from tests.fakes.grading import grade_with
from tests.fakes.tools import make_model_params
from trainer.config import TrainerConfig
from trainer.factories import build_evaluator
from trainer.monitoring.evaluation import Background, Evaluator, build_score

pytestmark = pytest.mark.unit


def test_evaluate__shipped_model__is_the_mean_of_single_completions(environment: Environment) -> None:
    evaluator = Evaluator(
        engine=HuggingFaceEngine(max_batch=7),
        environment=environment,
        grade=grade_with(environment),
        prompts=6,
        samples=3,
        seed=4,
        max_tokens=8,
        temperature=1.0,
        format=RAW,
    )
    score = evaluator.evaluate(tiny_folder(), Step(2))
    assert evaluator.engine.policy_version == 2
    engine, rewards = HuggingFaceEngine(), []
    engine.load_policy(tiny_folder(), 0)
    for i, prompt in enumerate(environment.held_out(6)):
        for j in range(3):
            tokens = tuple(encode_prompt(engine.tokenizer, prompt.text, format=RAW))
            (done,) = engine.generate(
                [GenerationRequest(prompt=tokens, seed=compute_trial_seed("evaluation", 4, i, j), max_tokens=8)],
                temperature=1.0,
            )
            answer, word = (
                decode_completion(engine.tokenizer, done.tokens, engine.end_tokens),
                prompt.text.rpartition(" ")[2],
            )
            rewards.append(float(done.finished and answer.lower() == word[::-1].lower()))
    assert score == build_score(rewards, samples=3)
    assert score.reward == sum(rewards) / 18
    assert 0 < score.reward < 1
    assert evaluator.evaluate(tiny_folder(), Step(9)) == score  # the noise does not depend on the step


def test_build_score__two_samples_per_prompt__error_is_that_of_the_prompts() -> None:
    score = build_score([1.0, 1.0, 0.0, 0.0, 1.0, 0.0], samples=2)
    assert score.reward == 0.5
    assert score.standard_error == pytest.approx(0.5 / 3**0.5)  # means 1, 0 and 0.5 have the standard deviation 0.5
    assert build_score([1.0, 0.0], samples=2).standard_error == 0.0


async def test_background__several_steps__run_in_order_once_each() -> None:
    seen: list[int] = []
    background = Background(evaluate=seen.append, on_failure=lambda: seen.append(-1))
    for step in (0, 1, 1, 2):
        background.add(Step(step))
    assert background.waiting == (0, 1, 2)
    await background.finish()
    assert seen == [0, 1, 2]
    assert background.waiting == ()
    background.add(Step(3))
    await background.finish()
    assert seen == [0, 1, 2, 3]


async def test_stop__current_evaluation__is_finished_and_the_others_forgotten() -> None:
    seen: list[int] = []
    begun, go = asyncio.Event(), Flag()
    running = asyncio.get_running_loop()

    def evaluate(step: Step) -> None:
        running.call_soon_threadsafe(begun.set)
        go.wait(60)
        seen.append(step)

    background = Background(evaluate=evaluate, on_failure=go.set)
    for step in range(3):
        background.add(Step(step))
    await begun.wait()
    go.set()
    await background.stop()
    assert seen == [0]


async def test_background__evaluation_raises__is_reported_and_finish_raises_it() -> None:
    reported = asyncio.Event()

    def fail(step: Step) -> None:
        raise ValueError("no grader")

    background = Background(evaluate=fail, on_failure=reported.set)
    with capture_logs() as logs:
        background.add(Step(0))
        await asyncio.wait_for(reported.wait(), 60)
    with pytest.raises(ValueError, match="no grader"):
        await background.finish()
    assert [(line["step"], line["without"]) for line in logs] == [(0, "eval.every = 0")]


async def test_add__after_one_that_failed__neither_repeats_nor_hides_it() -> None:
    seen: list[int] = []

    def fail(step: Step) -> None:
        seen.append(step)
        raise RuntimeError("a defect")

    background = Background(evaluate=fail, on_failure=lambda: seen.append(-1))
    background.add(Step(0))
    with pytest.raises(RuntimeError):
        await background.finish()
    background.add(Step(1))
    with pytest.raises(RuntimeError, match="a defect"):
        await background.stop()
    assert seen == [0, -1]


async def test_background__policy_is_refused__is_logged_once_and_the_next_one_evaluated() -> None:
    seen: list[int] = []

    def refuse(step: Step) -> None:
        seen.append(step)
        if step == 0:
            raise ProtocolError("policy_mismatch", "no weights")

    background = Background(evaluate=refuse, on_failure=lambda: seen.append(-1))
    with capture_logs() as logs:
        for step in (0, 1):
            background.add(Step(step))
        await background.finish()
        background.add(Step(0))
        await background.finish()
    assert seen == [0, 1]
    assert [(line["step"], line["code"]) for line in logs] == [(0, "policy_mismatch")]


def test_evaluate__no_memory__names_the_settings_that_help(environment: Environment) -> None:
    engine = HuggingFaceEngine()
    evaluator = Evaluator(
        engine=engine,
        environment=environment,
        grade=grade_with(environment),
        prompts=1,
        samples=1,
        seed=0,
        max_tokens=8,
        temperature=1.0,
        format=RAW,
    )
    engine.load_policy(tiny_folder(), 0)
    assert engine._model is not None
    engine._model.register_forward_pre_hook(lambda *_: torch.empty(1 << 55))
    advice = r"engine_out_of_memory: the evaluation failed: .*memory.*\. Lower eval.max_batch .*eval.every = 0$"
    with pytest.raises(OperatorError, match=advice) as raised:
        evaluator.evaluate(tiny_folder(), Step(0))
    assert "Lower batch" not in raised.value.message


async def test_finish__nothing_added__returns() -> None:
    background = Background(evaluate=lambda _: None, on_failure=lambda: None)
    await background.finish()
    await background.stop()


def test_evaluate__folder_that_does_not_fit__is_refused(environment: Environment, tmp_path: Path) -> None:
    evaluator = Evaluator(
        engine=HuggingFaceEngine(base=tiny_folder()),
        environment=environment,
        grade=grade_with(environment),
        prompts=1,
        samples=1,
        seed=0,
        max_tokens=8,
        temperature=1.0,
        format=RAW,
    )
    with pytest.raises(Exception, match="policy_mismatch"):
        evaluator.evaluate(tmp_path, Step(0))


def test_build_evaluator__pool_of_another_temperature__samples_at_it(environment: Environment, tmp_path: Path) -> None:
    places = {"home": tmp_path, "pool": 1, "deployment": tmp_path, "key_file": tmp_path, "origin_root": tmp_path}
    params = make_model_params(model={"temperature": 0.6, "max_completion_tokens": 5})
    config = TrainerConfig.model_validate(places)
    evaluator = build_evaluator(config, params, environment, grade=grade_with(environment))
    assert (evaluator.temperature, evaluator.max_tokens, evaluator.size) == (0.6, 5, 256)


@pytest.mark.parametrize(("every", "size"), [(1, 3), (0, 256)])
def test_build_evaluator__few_held_out_prompts__uses_all_and_says_so(tmp_path: Path, every: int, size: int) -> None:
    few = cast(Environment, SimpleNamespace(held_out=lambda n: ["prompt"] * min(n, 3)))
    places = {"home": tmp_path, "pool": 1, "deployment": tmp_path, "key_file": tmp_path, "origin_root": tmp_path}
    config = TrainerConfig.model_validate(places | {"eval": {"every": every}})
    with capture_logs() as logs:
        evaluator = build_evaluator(config, make_model_params(), few, grade=grade_with(few))
    assert evaluator.size == size
    assert [(line["found"], line["set"]) for line in logs] == ([(3, 256)] if every else [])
