"""Rows 1 to 5: cheats that do not compute what they claim, with other weights or another choice of tokens."""

import functools
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

from benchmarks.verification.cheating_engines import (
    CutPrompt,
    Fp8Cache,
    GreedyFirst,
    ScaledTemperature,
    ShiftedRope,
    SomeRows,
    SpeculativeEngine,
    SteeredEngine,
    TopK,
    ZeroedHead,
)
from benchmarks.verification.policy_variants import build_variant, round_to_int8
from covey.demo.cheats import BestOfN, PartialInt8, QuantizedWeights, score_spelling
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


@functools.cache
def other_model() -> Engine:
    """Build an untrained model of the same shape."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(load_model(tiny_folder(), "float32").config)
    return HuggingFaceEngine.from_model(model.float(), load_tokenizer(tiny_folder()))


@functools.cache
def int8_model() -> Engine:
    model = build_variant(load_model(tiny_folder(), "float32"), round_to_int8)
    return HuggingFaceEngine.from_model(model, load_tokenizer(tiny_folder()))


@functools.cache
def stale_model() -> Engine:
    return build(lambda model: shake(model, 1e-2))


@functools.cache
def small_model() -> Engine:
    return build(lambda model: shake(model, 3e-1))


@functools.cache
def run_tiny(cheat: Callable[[], Engine]) -> Engine:
    """Build a cheating engine and load the tiny model into it, once for each function."""
    engine = cheat()
    engine.load_policy(tiny_folder(), 0)
    return engine


def coarse() -> Engine:
    return QuantizedWeights(HuggingFaceEngine())


def int8_last_layer() -> Engine:
    return PartialInt8(HuggingFaceEngine(), layers=1)


def int8_all_layers() -> Engine:
    return PartialInt8(HuggingFaceEngine(), layers=2)


def zeroed_head() -> Engine:
    return ZeroedHead(HuggingFaceEngine())


def shifted_rope() -> Engine:
    return ShiftedRope(HuggingFaceEngine(), by=0.01)


def steered_by_a_thousandth() -> Engine:
    return SteeredEngine(by=0.001)


def steered_by_a_hundredth() -> Engine:
    return SteeredEngine(by=0.01)


def steered_by_a_twentieth() -> Engine:
    return SteeredEngine(by=0.05)


def fp8_cache() -> Engine:
    return Fp8Cache(HuggingFaceEngine())


def cut_prompt() -> Engine:
    return CutPrompt(HuggingFaceEngine(), tokens=16)


def speculative() -> Engine:
    return SpeculativeEngine(least=0.05)


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
        return worker.using(run_tiny(coarse)).work()


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


class Int8LastLayer(Cheat):
    """Runs the linear layers of the last layer in int8."""

    row, reason = 2, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(run_tiny(int8_last_layer)).work()


class Int8AllLayers(Cheat):
    """Runs the linear layers of all layers in int8, and embedding and head as they are."""

    row, reason = 2, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(run_tiny(int8_all_layers)).work()


class Int8InOneRow(Cheat):
    """Generates one of 16 completions in int8."""

    row, reason = 2, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(SomeRows(worker.engine, run_tiny(int8_all_layers), every=16)).work()


class HeadLeftOut(Cheat):
    """Leaves out one attention head."""

    row, reason = 1, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(run_tiny(zeroed_head)).work()


class RopeOffByOnePercent(Cheat):
    """Computes positions with a base that is larger by 1 percent."""

    row, reason = 1, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(run_tiny(shifted_rope)).work()


class SteeredByAThousandth(Cheat):
    """Adds a steering vector of a thousandth of each state's norm."""

    row, reason = 1, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(run_tiny(steered_by_a_thousandth)).work()


class SteeredByAHundredth(Cheat):
    """Adds a steering vector of a hundredth of each state's norm."""

    row, reason = 1, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(run_tiny(steered_by_a_hundredth)).work()


class SteeredByATwentieth(Cheat):
    """Adds a steering vector of a twentieth of each state's norm."""

    row, reason = 1, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(run_tiny(steered_by_a_twentieth)).work()


class Fp8KeysAndValues(Cheat):
    """Keeps keys and values in fp8."""

    row, reason = 2, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(run_tiny(fp8_cache)).work()


class PromptCut(Cheat):
    """Generates without the first 16 tokens of each prompt, and claims the whole prompt."""

    row, reason = 6, Reason.PROOF

    def cheat(self, worker: Worker) -> Work:
        return worker.using(run_tiny(cut_prompt)).work()


def let_write(worker: Worker, writer: Engine) -> Work:
    """Return honest work with the rows that `writer` begins to write otherwise, proven by the true policy.

    Rows in which an end token is the first difference stay honest, because a false end has its own reason.
    """
    for task in worker.list_tasks():
        honest, other = worker.work(task), worker.using(writer).work(task)
        pairs = list(zip(honest.rollouts, other.rollouts, strict=True))
        rows = [prove(worker, b) if is_slip(a.tokens, b.tokens) else a for a, b in pairs]
        if rows != honest.rollouts:
            return with_right_rewards(worker, honest.with_rollouts(rows))
    raise LookupError("the cheat writes what the policy would have written")


class SmallWritesLargeProves(Cheat):
    """Lets a cheaper model write. The true one reads the text once and proves it, including log-probabilities."""

    row, reason = 4, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return let_write(worker, small_model())


class SpeculativeDecoding(Cheat):
    """Takes a draft's token whenever its probability is above a threshold, whatever the policy chose."""

    row, reason = 4, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return let_write(worker, run_tiny(speculative))


class BestOfFour(Cheat):
    """The cheat of the shipped demo, which tries four seeds per slot and claims the best as the slot's."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return worker.using(BestOfN(worker.engine, n=4, score=score_spelling)).work()


class OtherTemperature(Cheat):
    """Samples more greedily than the pool requires, which is more often right."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return worker.using(ScaledTemperature(worker.engine, scale=0.3)).work()


class TemperatureOfNinetyEight(Cheat):
    """Samples at 0.98 times the pool's temperature."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return let_write(worker, ScaledTemperature(worker.engine, scale=0.98))


class TemperatureOfOneHundredAndTwo(Cheat):
    """Samples at 1.02 times the pool's temperature."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return let_write(worker, ScaledTemperature(worker.engine, scale=1.02))


class FewLikelyTokens(Cheat):
    """Samples only from the two likeliest tokens. The tiny model never chooses a token beyond 50."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return let_write(worker, TopK(worker.engine, count=2))


class FirstTokenGreedy(Cheat):
    """Takes the likeliest token as the first one of each completion."""

    row, reason = 5, Reason.TOKEN_MARGIN

    def cheat(self, worker: Worker) -> Work:
        return let_write(worker, GreedyFirst(worker.engine))


ENGINES: tuple[type[Cheat], ...] = (
    OtherModel, Int8Weights, Quantized, StaleWeights, SeedsOfAnotherPolicy, Int8LastLayer, Int8AllLayers, Int8InOneRow,
    HeadLeftOut, RopeOffByOnePercent, SteeredByAThousandth, SteeredByAHundredth, SteeredByATwentieth, Fp8KeysAndValues,
    PromptCut, SmallWritesLargeProves, SpeculativeDecoding, BestOfFour, OtherTemperature, TemperatureOfNinetyEight,
    TemperatureOfOneHundredAndTwo, FewLikelyTokens, FirstTokenGreedy,
)  # fmt: skip
