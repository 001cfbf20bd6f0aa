"""Training raises the reward: generate, grade, pack and update with the shipped model, without any network."""

import hashlib
from pathlib import Path

import pytest

from covey.engines.base import GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments.base import Environment
from covey.model.policy_files import load_model, load_tokenizer, save_policy
from covey.model.prompts import RAW, encode_prompt
from covey.model.text import decode_completion
from covey.model.tiny import tiny_folder
from covey.protocol.ids import GroupId, Step, TaskId
from covey.protocol.submission_file.rows import Rollout
from tests.fakes.grading import grade_with
from trainer.algorithm.batches import build_batch, build_samples
from trainer.algorithm.forward import PackingConfig
from trainer.algorithm.learner import Learner, Optimiser
from trainer.algorithm.loss_settings import LossSettings
from trainer.data.samples import AcceptedWork
from trainer.monitoring.evaluation import Evaluator

pytestmark = pytest.mark.unit

PROMPTS, SIBLINGS, STEPS = 16, 8, 8


def draw(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")


def roll_out(engine: HuggingFaceEngine, environment: Environment, step: int, *, is_graded: bool) -> AcceptedWork:
    prompts = [environment.prompt(draw("prompt", step, i)) for i in range(PROMPTS)]
    requests = [
        GenerationRequest(
            prompt=tuple(encode_prompt(engine.tokenizer, prompt.text, format=RAW)),
            seed=draw("seed", step, i, j),
            max_tokens=8,
        )
        for i, prompt in enumerate(prompts)
        for j in range(SIBLINGS)
    ]
    rows = []
    for k, done in enumerate(engine.generate(requests, temperature=1.0)):
        group, sibling = divmod(k, SIBLINGS)
        text = decode_completion(engine.tokenizer, done.tokens, engine.end_tokens)
        reply = prompts[group].build_reply(text, finished=done.finished, tokens=len(done.tokens))
        reward = environment.grade(reply).reward
        rows.append(
            Rollout(
                group=GroupId(group), sibling=sibling, seed=requests[k].seed, prompt=requests[k].prompt,
                tokens=done.tokens, logprobs=done.logprobs, proofs=(), finished=done.finished,
                reward=reward if is_graded else float(draw("noise", step, k) % 2),
            )
        )  # fmt: skip
    return AcceptedWork(task=TaskId(step), policy_version=Step(step), replayed=True, rollouts=tuple(rows))


def train(environment: Environment, folder: Path, *, is_graded: bool) -> float:
    """Train for eight steps and return the gain of the held-out reward."""
    learner = Learner(
        load_model(tiny_folder(), "float32"),
        optimiser=Optimiser(learning_rate=5e-4, betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0.0, warm_up=0, clip=1.0),
        objective=LossSettings(),
        shape=PackingConfig(seq_len=128, micro_batch_size=64, compute_dtype="float32"),
    )
    tokenizer, engine = load_tokenizer(tiny_folder()), HuggingFaceEngine(max_batch=PROMPTS * SIBLINGS)
    evaluator = Evaluator(
        engine=HuggingFaceEngine(max_batch=256),
        environment=environment,
        grade=grade_with(environment),
        prompts=128,
        samples=1,
        seed=0,
        max_tokens=8,
        temperature=1.0,
        format=RAW,
    )
    first = evaluator.evaluate(tiny_folder(), Step(0)).reward
    for step in range(STEPS):
        save_policy(learner.model, tokenizer, folder, "bfloat16")
        engine.load_policy(folder, step)
        work = roll_out(engine, environment, step, is_graded=is_graded)
        samples = build_samples([work], group_size=SIBLINGS, loss=LossSettings())
        learner.update(build_batch(samples, normaliser="tokens", constant=8, keep_all=False))
    save_policy(learner.model, tokenizer, folder, "bfloat16")
    return evaluator.evaluate(folder, Step(STEPS)).reward - first


def test_learning__eight_steps__held_out_reward_rises(environment: Environment, tmp_path: Path) -> None:
    assert train(environment, tmp_path, is_graded=True) > 0.25


def test_learning__random_rewards__teach_nothing(environment: Environment, tmp_path: Path) -> None:
    assert train(environment, tmp_path, is_graded=False) < 0.1
