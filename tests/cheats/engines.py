"""Rows 1 to 5: cheats that compute something else than they claim, be it other weights or another choice of tokens."""

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
    """An engine of the tiny model with other weights."""
    model = load_model(tiny_folder(), "float32")
    with torch.no_grad():
        change(model)
    return HuggingFaceEngine.from_model(model, load_tokenizer(tiny_folder()))


def shake(model: torch.nn.Module, size: float) -> None:
    """Every weight off by about this part of itself."""
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.mul_(1 + size * torch.randn(weight.shape, generator=generator))


def round_to_bytes(model: torch.nn.Module) -> None:
    """Every matrix as int8 with one scale a row, as usual inference engines do."""
    for weight in model.parameters():
        if weight.ndim == 2:
            scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
            weight.copy_((weight / scale).round().clamp(-127, 127) * scale)


@functools.cache
def other_model() -> Engine:
    """The same shape, and never trained."""
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
    """The shipped demo's cheat: five bits of every weight's mantissa are gone."""

    row, reason = 2, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(coarse_model()).work()


class StaleWeights(Cheat):
    """An earlier policy: every weight about a hundredth off."""

    row, reason = 3, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(stale_model()).work()


class SeedsOfAnotherPolicy(Cheat):
    """Seeds and prompts of an earlier manifest: old work, served again."""

    row, reason = 3, Reason.WRONG_PROMPT

    def cheat(self, worker: Worker) -> Work:
        return worker.work(worker.change_task(manifest_hash=make_hash("earlier")))


class SmallWritesLargeProves(Cheat):
    """A cheaper model writes; the true one reads it once and proves it, log-probabilities included."""

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
    """The shipped demo's cheat: four seeds a slot, the best is claimed as the slot's."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return worker.using(BestOfN(worker.engine, n=4, score=score_spelling)).work()


class OtherTemperature(Cheat):
    """Samples more greedily than the pool asks for: likelier to be right."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        model = worker.params.model.model_copy(update={"temperature": 0.3})
        return worker.work(params=worker.params.model_copy(update={"model": model}))


ENGINES: tuple[type[Cheat], ...] = (
    OtherModel, Int8Weights, Quantized, StaleWeights, SeedsOfAnotherPolicy, SmallWritesLargeProves, BestOfFour,
    OtherTemperature,
)  # fmt: skip
