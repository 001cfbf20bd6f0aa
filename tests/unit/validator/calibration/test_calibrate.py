"""Thresholds from hand-written distances and from honest work of the tiny model, and proposals that are refused."""

import dataclasses
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey.demo.cheats import QuantizedWeights
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments.registry import DEMO, load
from covey.errors import OperatorError
from covey.model.policy_files import save_policy
from covey.model.prompts import RAW, encode_prompt
from covey.model.tiny import build_model, build_tokenizer, tiny_folder
from covey.protocol.params import PoolParams, VerificationParams
from covey.protocol.running_sums import PER_WINDOW
from covey.protocol.thresholds import Thresholds
from covey.protocol.verdict import Reason
from covey.toploc.proofs import Bits, Distances, compute_top, find_tops
from covey.toploc.topk import EVERYTHING, build_capture, join
from tests.fakes.engines import Replaying
from tests.fakes.pool import make_contract, make_exact
from tests.fakes.tools import NEEDS_BFLOAT16, make_model_params
from validator.calibration import calibrate as calibration
from validator.calibration.calibrate import (
    CalibrationSample,
    build_rollouts,
    calibrate,
    collect,
    propose,
    try_forgeries,
)
from validator.distance_limits import Breach, find_breach
from validator.replay import RolloutDistances, measure

pytestmark = pytest.mark.unit
BF16 = "bfloat16"
PAIR = {"worker_engine": "hf", "validator_engine": "hf", "hardware": "cpu"}


def make_distances(
    exponents: Sequence[int], mantissas: Sequence[float], margins: Sequence[float], deviations: Sequence[float]
) -> RolloutDistances:
    return RolloutDistances(
        windows=tuple(
            Distances(sign_exponent_mismatches=e, mantissa_mean=m, mantissa_median=0.0, mantissa_rest=m)
            for e, m in zip(exponents, mantissas, strict=True)
        ),
        margins=np.array(margins, np.float32),
        deviations=np.array(deviations, np.float64),
        finished=False,
    )


def make_params(dtype: str, **verification: Any) -> PoolParams:
    """Return parameters with sixteen rollouts of up to five tokens per submission."""
    return make_model_params(
        groups_per_task=4,
        groups_per_step=16,
        model={"max_prompt_tokens": 64, "max_completion_tokens": 5, "compute_dtype": dtype},
        verification=make_exact(make_contract(dtype=dtype)) if verification else PAIR,
    )


def load_engine(dtype: str = "float32", batch: int = 64, folder: Path | None = None) -> HuggingFaceEngine:
    torch.set_num_threads(1)
    engine = HuggingFaceEngine(dtype=dtype, max_batch=batch)
    engine.load_policy(folder or tiny_folder(), 0)
    return engine


def test_propose__by_hand__is_three_times_the_largest_and_sums_include_one_added_item():
    first = make_distances([2, 0], [0.5, 0.1], [0, 0.3, 0, 0], [0.01, 0.03, 0, 0])
    second = make_distances([1], [0.3], [0, 0], [0.02, 0])
    found = propose([[first], [second]], false_reject_rate=1e-5)
    single = (found.exponent_max, found.mantissa_mean_max, found.margin_max, found.logprob_max)
    assert single == pytest.approx((6, 1.5, 0.9, 0.09))
    assert found.false_reject_rate == 1e-5
    # Sums of the completions and of the added item over 2 + 1 + 1 windows, 4 + 2 + 1 tokens:
    expected = {
        "exponent": (9 / 4, (2.5**2 + 1.25**2 + 3.75**2) / 4, 3.75),  # 2, 1, 6
        "mantissa": (3.4 / 4, (1.1**2 + 0.55**2 + 1.65**2) / 4, 1.65),  # 0.6, 0.3, 1.5 and one by chance
        "lost": (2 / 7, (1 + 16 + 25) / 49 / 7, 5 / 7),  # 1, 0, 1
        "margin": (12 / 70, (27**2 + 24**2 + 51**2) / 4900 / 7, 51 / 70),  # 0.3, 0, 0.9
        "logprob": (0.15 / 7, (0.32**2 + 0.16**2 + 0.48**2) / 49 / 7, 0.48 / 7),  # 0.04, 0.02, 0.09
    }
    for name, (mean, variance, largest) in expected.items():
        pooled = getattr(found, name)
        assert (pooled.mean, pooled.variance, pooled.largest) == pytest.approx((mean, variance, largest), rel=1e-6)
        assert pooled.items == (4 if name in PER_WINDOW else 7)


def test_propose__nothing_differs__keeps_the_limits_of_float32():
    found = propose([[make_distances([0], [0.0], [0, 0], [0, 0])] * 3], false_reject_rate=1e-6)
    usual = Thresholds()
    for name in ("exponent_max", "mantissa_mean_max", "margin_max", "logprob_max"):
        assert getattr(found, name) == getattr(usual, name)
    assert (found.exponent.mean, found.exponent.largest) == (3 / 4, 9 / 4)  # 3 windows and the added one at 3
    assert found.lost.mean == pytest.approx(1 / 7)


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 0.06), (0.5, 0.12), (2.0, 0.03)])
def test_propose__no_token_lost__the_margin_follows_from_the_errors_of_two_logprobs(
    temperature: float, expected: float
):
    seen = make_distances([0], [0.0], [0, 0], [0.03, 0.01])
    found = propose([[seen]], false_reject_rate=1e-6, temperature=temperature)
    assert found.margin_max == pytest.approx(expected)
    assert found.margin.mean == pytest.approx(expected / 3)


@dataclasses.dataclass(frozen=True)
class Calibrated:
    params: PoolParams
    rules: VerificationParams
    validator: Engine

    def judge(self, worker: Engine, *, seed: int, temperature: float = 1.0, seed_offset: int = 0) -> Breach | None:
        """Judge fresh work of `worker`, claimed as honest work of the pool."""
        requests = draw_requests(self.params, seed)
        moved = [dataclasses.replace(each, seed=each.seed + seed_offset) for each in requests]
        completions = worker.generate(moved, temperature=temperature, capture=build_capture(self.rules))
        return find_breach(
            measure(build_rollouts(requests, completions, self.params), self.validator, self.params), self.rules
        )


def draw_requests(params: PoolParams, seed: int) -> list[GenerationRequest]:
    """Return a submission of prompts and seeds that no calibration here has seen."""
    environment, tokenizer, rng = load(DEMO), build_tokenizer(), random.Random(seed)
    texts = [environment.prompt(rng.getrandbits(62)).text for _ in range(params.groups_per_task)]
    prompts = [tuple(encode_prompt(tokenizer, text, format=RAW)) for text in texts for _ in range(params.group_size)]
    return [GenerationRequest(prompt=prompt, seed=rng.getrandbits(62), max_tokens=5) for prompt in prompts]


@pytest.fixture(scope="module")
def honest_bf16() -> list[CalibrationSample]:
    params = make_params(BF16)
    return list(collect(params, load(DEMO), load_engine(BF16), load_engine(BF16, 5), count=96, seed=0))


@pytest.fixture(scope="module")
def bf16(honest_bf16: list[CalibrationSample]) -> Calibrated:
    params = make_params(BF16)
    thresholds = propose([each.distances for each in honest_bf16], false_reject_rate=1e-6)
    rules = params.verification.model_copy(update={"thresholds": thresholds})
    return Calibrated(params, rules, load_engine(BF16, 16))


@pytest.mark.parametrize(
    ("batch", "seed"),
    [(64, 101), *(pytest.param(*each, marks=pytest.mark.full) for each in ((16, 102), (5, 103), (1, 104)))],
)
def test_propose__bfloat16__accepts_fresh_honest_work_of_any_batch(bf16: Calibrated, batch: int, seed: int):
    assert bf16.judge(load_engine(BF16, batch), seed=seed) is None


def test_propose__bfloat16__rejects_coarse_weights(bf16: Calibrated):
    cheat = QuantizedWeights(HuggingFaceEngine(dtype=BF16))
    cheat.load_policy(tiny_folder(), 0)
    assert [bf16.judge(cheat, seed=seed).reason for seed in range(201, 205)] == [Reason.PROOF] * 4


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.5}, {"temperature": 0.01}, {"temperature": 2.0}, {"seed_offset": 1}]
)
def test_propose__bfloat16__rejects_tokens_that_were_sampled_differently(bf16: Calibrated, changes: dict[str, Any]):
    for seed in range(301, 304):
        breach = bf16.judge(load_engine(BF16), seed=seed, **changes)
        assert breach.reason in {Reason.TOKEN_MARGIN, Reason.FALSE_TERMINATION}


def run(dtype: str, worker: Engine, validator: Engine, *, count: int = 4, **changes: Any) -> calibration.Calibration:
    verification = {"mode": changes.pop("mode")} if "mode" in changes else {}
    params = make_params(dtype, **verification)
    return calibrate(params, load(DEMO), worker, validator, submissions=count, false_reject_rate=1e-6, **changes)


def test_calibrate__float32__proposes_lawful_thresholds_and_counts_its_work():
    progress: list[int] = []
    found = run("float32", load_engine(), load_engine(batch=5), on_progress=progress.append)
    assert progress == [1, 2, 3, 4, 5, 6]
    assert (found.submissions, found.windows) == (6, 96)
    assert 96 <= found.tokens <= 96 * 5
    assert set(found.forgeries) == {"constant", "profile", "shuffled", "channels"}
    assert all(40 < n <= 96 for n in found.forgeries.values())
    assert found.verification.model_dump(include=set(PAIR) | {"mode"}) == PAIR | {"mode": "calibrated"}
    assert found.verification.thresholds.exponent_max == 3
    text = make_params("float32").model_copy(update={"verification": found.verification}).to_text()
    assert PoolParams.model_validate_json(text).verification == found.verification


@pytest.mark.parametrize("dtype", ["float32", BF16])
def test_calibrate__exact_mode_where_decoding_differs_from_prefill__is_impossible(dtype: str):
    with pytest.raises(OperatorError) as caught:
        run(dtype, load_engine(dtype), load_engine(dtype), mode="exact")
    assert caught.value.code == "exact_impossible"


def flip_bit(completions: list[Completion], *, bit: int = 0) -> list[Completion]:
    """Flip one bit of the largest value of the last completion."""
    bits = join(completions[-1].tops)
    bits.reshape(-1)[compute_top(bits.reshape(-1), 1)] ^= 1 << bit
    return [*completions[:-1], with_states(completions[-1], bits)]


def move_logprob(completions: list[Completion]) -> list[Completion]:
    first = completions[0]
    moved = float(np.nextafter(np.float32(first.logprobs[0]), np.float32(-100)))
    return [dataclasses.replace(first, logprobs=(moved, *first.logprobs[1:])), *completions[1:]]


def negate(completions: list[Completion]) -> list[Completion]:
    return [with_states(each, join(each.tops) ^ np.uint16(0x8000)) for each in completions]


def with_states(completion: Completion, bits: Bits) -> Completion:
    return dataclasses.replace(completion, tops=find_tops([bits], EVERYTHING)[0])


def test_calibrate__equal_bit_for_bit__opens_the_exact_mode_in_which_any_difference_is_hard():
    # No token of the tiny model is a near tie here, so decoding and prefill choose the same tokens.
    found = run("float32", Replaying(load_engine()), load_engine(), mode="exact")
    assert (found.is_identical, found.verification.mode) == (True, "exact")
    exact = Calibrated(make_params("float32", mode="exact"), found.verification, load_engine())
    judge = partial(exact.judge, seed=77)
    assert judge(Replaying(load_engine())) is None
    flipped = judge(Replaying(load_engine(), flip_bit))
    numbers = {"window": 0, "exponent": 0, "mantissa": 1 / 128, "differing": 1, "windows": 16}
    assert (flipped.reason, flipped.row, flipped.statistics) == (Reason.PROOF, 15, numbers)
    moved = judge(Replaying(load_engine(), move_logprob))
    assert (moved.reason, moved.statistics["differing"]) == (Reason.LOGPROB, 1)
    signed = judge(Replaying(load_engine(), partial(flip_bit, bit=15)))
    assert (signed.reason, signed.statistics["exponent"]) == (Reason.PROOF, 1)
    far = judge(Replaying(load_engine(), negate))
    assert (far.reason, far.row) == (Reason.PROOF, 0)


def test_calibrate__one_differing_logprob__closes_the_exact_mode():
    with pytest.raises(OperatorError, match="exact_impossible"):
        run("float32", Replaying(load_engine(), move_logprob), load_engine(), mode="exact")


def test_calibrate__proposal_too_narrow_for_others__is_refused(monkeypatch: pytest.MonkeyPatch):
    narrow = Thresholds(logprob_max=0, logprob=None)
    monkeypatch.setattr(calibration, "propose", lambda *_, **__: narrow)
    with pytest.raises(OperatorError, match="honest_rejected: the proposed thresholds reject 2 of 2 other"):
        run("float32", load_engine(), load_engine())


def test_calibrate__thresholds_that_let_a_forgery_pass__are_refused(monkeypatch: pytest.MonkeyPatch):
    wide = Thresholds(exponent_max=128, mantissa_mean_max=128, logprob=None)
    monkeypatch.setattr(calibration, "propose", lambda *_, **__: wide)
    with pytest.raises(OperatorError, match=r"forgery_passes: .* accept \d+ of \d+ windows of the forgery constant"):
        run("float32", load_engine(), load_engine())


def test_try_forgeries__without_a_window_for_one__is_refused(honest_bf16: list[CalibrationSample], bf16: Calibrated):
    """A forgery that was tried on no window proves nothing by not passing."""
    one = dataclasses.replace(honest_bf16[0], rollouts=honest_bf16[0].rollouts[:1])
    with pytest.raises(OperatorError, match="too_few_windows"):
        try_forgeries([one], bf16.params, bf16.rules.thresholds, validator=bf16.validator)


@NEEDS_BFLOAT16
def test_try_forgeries__another_policy__does_not_pass_but_the_same_one_does(
    honest_bf16: list[CalibrationSample], bf16: Calibrated, tmp_path: Path
):
    # On some processors the thresholds of this tiny model are so wide that a forgery passes on a window of few tokens.
    # That is another test's subject, so these are narrow.
    few, thresholds = honest_bf16[:8], bf16.rules.thresholds.model_copy(update={"exponent_max": 3})
    save_policy(build_model(9), build_tokenizer(), tmp_path, BF16)
    other = load_engine(BF16, folder=tmp_path)
    tried = try_forgeries(few, bf16.params, thresholds, validator=bf16.validator, previous=other)
    # Only windows of the same length can be compared, and an untrained model seldom ends within five tokens.
    assert 0 < tried["previous"] <= 8 * 16
    with pytest.raises(OperatorError, match=r"forgery_passes: .* accept 128 of 128 windows of the forgery previous"):
        try_forgeries(few, bf16.params, thresholds, validator=bf16.validator, previous=load_engine(BF16))
