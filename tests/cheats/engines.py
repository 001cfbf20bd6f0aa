"""Rows 1 to 5: cheats that do not compute what they claim, with other weights or another choice of tokens."""

import functools
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

from covey.demo.cheats import BestOfN, QuantizedWeights, score_spelling
from covey.engines.base import Engine
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.policy_files import load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.verdict import Reason
from tests.cheats.base import Cheat, is_slip, prove, with_right_rewards
from tests.fakes.pool import make_hash
from tests.fakes.tools import Work, Worker


def build(change: Callable[[torch.nn.Module], None]) -> Engine:
    """Build an engine of the tiny model with changed weights."""
    model = load_model(tiny_folder(), "float32")
    with torch.no_grad():
        change(model)
    return HuggingFaceEngine.from_model(model, load_tokenizer(tiny_folder()))


def shake(model: torch.nn.Module, size: float) -> None:
    """Change every weight by about this part of itself."""
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.mul_(1 + size * torch.randn(weight.shape, generator=generator))


def round_to_bytes(model: torch.nn.Module) -> None:
    """Round every matrix to int8 with one scale per row, as common inference engines do."""
    for weight in model.parameters():
        if weight.ndim == 2:
            scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
            weight.copy_((weight / scale).round().clamp(-127, 127) * scale)


@functools.cache
def other_model() -> Engine:
    """Build an untrained model of the same shape."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(load_model(tiny_folder(), "float32").config)
    return HuggingFaceEngine.from_model(model.float(), load_tokenizer(tiny_folder()))


@functools.cache
def int8_model() -> Engine:
    return build(round_to_bytes)


@functools.cache
def stale_model() -> Engine:
    return build(lambda model: shake(model, 1e-2))


@functools.cache
def small_model() -> Engine:
    return build(lambda model: shake(model, 3e-1))


@functools.cache
def coarse_model() -> Engine:
    engine = QuantizedWeights(HuggingFaceEngine())
    engine.load_policy(tiny_folder(), 0)
    return engine


class OtherModel(Cheat):
    """Runs another model of the same shape."""

    row, reason = 1, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(other_model()).work()


class Int8Weights(Cheat):
    """Runs the policy in int8."""

    row, reason = 2, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(int8_model()).work()


class Quantized(Cheat):
    """The cheat of the shipped demo, without the five lowest bits of every weight's mantissa."""

    row, reason = 2, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(coarse_model()).work()


class StaleWeights(Cheat):
    """Runs an earlier policy, of which every weight differs by about a hundredth."""

    row, reason = 3, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(stale_model()).work()


class SeedsOfAnotherPolicy(Cheat):
    """Uses seeds and prompts of an earlier manifest: old work that is submitted again."""

    row, reason = 3, Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        return worker.work(worker.change_task(record_hash=make_hash("earlier")))


class SmallWritesLargeProves(Cheat):
    """Lets a cheaper model write. The true one reads the text once and proves it, including log-probabilities."""

    row, reason = 4, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        for task in worker.list_tasks():
            honest, cheap = worker.work(task), worker.using(small_model()).work(task)
            pairs = list(zip(honest.rollouts, cheap.rollouts, strict=True))
            rows = [prove(worker, b) if is_slip(a.tokens, b.tokens) else a for a, b in pairs]
            if rows != honest.rollouts:
                return with_right_rewards(worker, honest.with_rollouts(rows))
        raise LookupError("the small model writes what the large one would have written")


class BestOfFour(Cheat):
    """The cheat of the shipped demo, which tries four seeds per slot and claims the best as the slot's."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return worker.using(BestOfN(worker.engine, n=4, score=score_spelling)).work()


class OtherTemperature(Cheat):
    """Samples more greedily than the pool requires, which is more often right."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        model = worker.params.model.model_copy(update={"temperature": 0.3})
        return worker.work(params=worker.params.model_copy(update={"model": model}))


ENGINES: tuple[type[Cheat], ...] = (
    OtherModel, Int8Weights, Quantized, StaleWeights, SeedsOfAnotherPolicy, SmallWritesLargeProves, BestOfFour,
    OtherTemperature,
)  # fmt: skip
