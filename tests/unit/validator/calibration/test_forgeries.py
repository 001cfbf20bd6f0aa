"""Every forgery is a well-formed proof, and none passes. Plain TOPLOC would let one pass."""

import numpy as np
import pytest
import torch

from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments.registry import DEMO, load
from covey.model.tiny import tiny_folder
from covey.protocol.thresholds import Thresholds
from covey.toploc.closeness import is_within
from covey.toploc.proofs import Bits, compare, compute_k, parse
from tests.fakes.tools import NEEDS_BFLOAT16, make_model_params
from validator.calibration.calibrate import collect, count_passes, cut_windows, propose, read_states
from validator.calibration.forgeries import FORGERS, forge_channels, forge_constant, forge_profile, forge_shuffled

pytestmark = pytest.mark.unit
Honest = tuple[list[Bits], Thresholds]


@pytest.fixture(scope="module", params=["float32", pytest.param("bfloat16", marks=NEEDS_BFLOAT16)])
def honest(request: pytest.FixtureRequest) -> Honest:
    """Return windows of the tiny model's work, and the limits of its number format."""
    torch.set_num_threads(1)
    params = make_model_params(
        model={"max_prompt_tokens": 64, "max_completion_tokens": 5, "compute_dtype": request.param},
        verification={"worker_engine": "hf", "validator_engine": "hf", "hardware": "cpu"},
        groups_per_task=4,
        groups_per_step=16,
    )
    engines = [HuggingFaceEngine(dtype=request.param, max_batch=batch) for batch in (64, 5)]
    for engine in engines:
        engine.load_policy(tiny_folder(), 0)
    samples = list(collect(params, load(DEMO), *engines, count=28, seed=5))
    usual = request.param == "float32"
    limits = Thresholds() if usual else propose([each.distances for each in samples], false_reject_rate=1e-6)
    states = [bits for sample in samples for bits in read_states(sample, engines[1], params)]
    return [window for bits in states for window in cut_windows(bits, params)], limits


def draw_gaussian(seed: int, rows: int = 32, hidden: int = 2048) -> Bits:
    """Return bfloat16 bits of independent normal values, uint16[rows, hidden]."""
    values = torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, hidden), np.float32))
    return values.to(torch.bfloat16).view(torch.uint16).numpy()


@pytest.mark.parametrize("name", FORGERS)
@pytest.mark.parametrize(("rows", "hidden"), [(32, 96), (1, 96), (1, 7), (2, 64)])
def test_forgers__any_window__give_a_proof_that_parses(name: str, rows: int, hidden: int):
    k = compute_k(rows, hidden)
    for seed in range(5):
        proof = FORGERS[name](draw_gaussian(seed, rows, hidden), np.random.default_rng(seed))
        assert isinstance(proof, bytes)
        assert len(proof) == 2 + 2 * k
        assert len(parse(proof, k).coefficients) == k


def test_forge_constant__any_index__has_the_median_of_the_top_without_sign():
    earlier = np.array([[0x3F80, 0xBF90, 0x3FA0, 0xBFB0, 0x3FC0]], np.uint16)  # 1.0, -1.125, 1.25, -1.375, 1.5
    polynomial = parse(forge_constant(earlier, np.random.default_rng(0)), 5)
    assert polynomial.coefficients.tolist() == [0x3FA0, 0, 0, 0, 0]
    for value, mismatches in ((0x3FA0, 0), (0xBFA0, 5), (0x40A0, 5)):
        distances = compare(forge_constant(earlier, np.random.default_rng(0)), np.full((1, 5), value, np.uint16))
        assert distances.sign_exponent_mismatches == mismatches


def test_forge_profile__its_own_window__is_the_honest_proof():
    earlier = draw_gaussian(3)
    distances = compare(forge_profile(earlier, np.random.default_rng(0)), earlier)
    assert (distances.sign_exponent_mismatches, distances.mantissa_mean) == (0, 0.0)


def test_forge_shuffled__its_own_window__has_the_values_in_other_places():
    earlier = draw_gaussian(3)
    distances = compare(forge_shuffled(earlier, np.random.default_rng(0)), earlier)
    assert distances.sign_exponent_mismatches > 32  # half of the signs alone
    assert not is_within(Thresholds(), distances)


def test_forgers__other_windows_of_the_tiny_model__never_pass(honest: Honest):
    windows, limits = honest
    passed = count_passes(windows, limits, np.random.default_rng(0))
    assert set(passed) == set(FORGERS)
    for tried in passed.values():
        assert len(tried) >= 300
        assert not any(tried)


def test_count_passes__meaningless_limits__let_forgeries_pass(honest: Honest):
    """Otherwise the test above would also hold for a count that is always zero."""
    wide = Thresholds(exponent_max=127, mantissa_mean_max=127, logprob=None)
    passed = count_passes(honest[0][:40], wide, np.random.default_rng(0))
    assert any(passed["constant"])
    assert any(passed["profile"])


def test_count_passes__equal_windows__are_not_forgeries():
    same, other = draw_gaussian(1, 2, 64), draw_gaussian(2, 2, 64)
    passed = count_passes([same, same.copy()], Thresholds(), np.random.default_rng(0))
    assert passed == {name: [] for name in FORGERS}
    passed = count_passes([same, other, draw_gaussian(3, 1, 64)], Thresholds(), np.random.default_rng(0))
    assert passed == {name: [False, False] for name in FORGERS}


def test_forge_channels__model_with_outlier_channels__passes_by_its_modulus_alone():
    """Windows have sixteen channels of one typical value each, as in large models. An index modulo the hidden size is a
    channel."""
    hidden, channels = 3584, np.arange(16) * 200

    def draw(seed: int) -> Bits:
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((32, hidden)).astype(np.float32)
        values[:, channels] = 52 * (1 + 0.006 * rng.standard_normal((32, 16)))
        return torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()

    wide = Thresholds(exponent_max=21, mantissa_mean_max=2.25)
    forged = [forge_channels(draw(seed), np.random.default_rng(0)) for seed in range(6)]
    distances = [compare(proof, draw(100 + seed)) for seed, proof in enumerate(forged)]
    assert all(is_within(wide, each) for each in distances)  # otherwise the rule of the modulus would stop nothing
    assert all(parse(proof, 128).modulus == hidden for proof in forged)
    passed = count_passes([draw(seed) for seed in range(6)], wide, np.random.default_rng(0))
    assert not any(passed["channels"])


def test_forge_constant__gaussian_windows__passes_plain_toploc_and_not_ours():
    """The paper's limits are 38 exponents, mantissa mean 10 and median 8. It ignores the sign."""
    plain = ours = with_sign = 0
    for seed in range(20):
        window = draw_gaussian(1000 + seed, hidden=8192)
        proof = forge_constant(draw_gaussian(seed, hidden=8192), np.random.default_rng(seed))
        found, signed = compare(proof, window & 0x7FFF), compare(proof, window)
        exponents, mean, median = found.sign_exponent_mismatches, found.mantissa_mean, found.mantissa_median
        plain += exponents <= 38 and mean <= 10 and median <= 8
        with_sign += signed.sign_exponent_mismatches <= 38
        ours += is_within(Thresholds(), signed)
    assert plain >= 12
    assert (with_sign, ours) == (0, 0)
