"""The comparison with `toploc`: activations, ties, counts and speedups."""

from types import ModuleType

import numpy as np
import pytest

from benchmarks.engines import activation_proofs, toploc_peer
from benchmarks.engines.activation_proofs import (
    HIDDEN,
    TOP_K,
    ByteComparison,
    build_measurements,
    compare_bytes,
    draw,
    draw_gains,
    is_tied,
    take_least,
)
from benchmarks.measurement import find_misses
from covey.toploc import proofs

pytestmark = pytest.mark.unit

TIMES = {"build": 10.0, "peer_build": 150.0, "verify": 20.0, "peer_verify": 190.0}
COMPARISON = ByteComparison(windows=100, identical=99, tied=40, untied_identical=58, accepted_by_both=60)


def test_draw_gains__any_seed__makes_eight_channels_twelve_times_larger() -> None:
    gains = draw_gains(np.random.default_rng(0))
    assert gains.shape == (HIDDEN,)
    assert gains.min() > 0
    assert sorted(gains)[-1] > 5 * np.median(gains)


def test_draw__two_windows__are_bfloat16_bits_of_values_times_gains() -> None:
    gains = np.zeros(HIDDEN, np.float32)
    gains[7] = 3.0
    bits = draw(np.random.default_rng(0), gains, 2)
    assert (bits.shape, bits.dtype) == ((64, HIDDEN), np.uint16)
    assert np.count_nonzero(bits[:, 7] & 0x7FFF) == 64
    assert np.count_nonzero(np.delete(bits, 7, axis=1) & 0x7FFF) == 0


def test_is_tied__equal_magnitudes_at_rank_128_and_129__are_a_tie_whatever_their_sign() -> None:
    windows = np.tile(np.arange(2000, 1000, -1, dtype=np.uint16), (3, 1))
    windows[1, TOP_K] = windows[1, TOP_K - 1]
    windows[2, TOP_K] = windows[2, TOP_K - 1] | 0x8000
    assert is_tied(windows).tolist() == [False, True, True]


def test_compare_bytes__peer_that_is_covey_itself__agrees_in_every_window(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(_: ModuleType, flat: np.ndarray, __: int) -> list[bytes]:
        return proofs.build(flat.reshape(-1, 64))

    def verify(_: ModuleType, states: np.ndarray, found: list[bytes], *__: int) -> list[tuple[int, float, float]]:
        distances = proofs.compare_all(found, states)
        return [(each.sign_exponent_mismatches, each.mantissa_mean, each.mantissa_median) for each in distances]

    monkeypatch.setattr(activation_proofs, "HIDDEN", 64)
    monkeypatch.setattr(toploc_peer, "to_tensor", lambda bits: bits)
    monkeypatch.setattr(toploc_peer, "build", build)
    monkeypatch.setattr(toploc_peer, "verify", verify)
    monkeypatch.setattr(toploc_peer, "build_from_top", lambda *_: [b"another"] * 12)
    comparison = compare_bytes(ModuleType("toploc"), 12, seed=1)
    untied = comparison.windows - comparison.tied
    assert untied > 0
    assert (comparison.windows, comparison.identical) == (12, 0)
    assert comparison.untied_identical == comparison.accepted_by_both == untied


def test_take_least__runs_in_turns__are_microseconds_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.64, 1.0, 1.064, 2.0, 2.32, 3.0, 3.128])
    monkeypatch.setattr(activation_proofs.time, "process_time", lambda: next(clock))
    calls: list[str] = []
    functions = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    assert take_least(2, functions) == pytest.approx({"a": 5000, "b": 1000})
    assert calls == ["a", "b", "a", "b"]


def test_build_measurements__counts_and_times__are_ratios_by_hand() -> None:
    values = {each.name: each.value for each in build_measurements(TIMES, COMPARISON, 15)}
    assert (values["build_speedup"], values["verify_speedup"]) == (15, 9.5)
    assert values["bytes_different"] == 1 + 2  # of equal input, and end to end
    assert {each.name: each.n for each in build_measurements(TIMES, COMPARISON, 15)}["cross_verified"] == 60


def test_build_measurements__slow_and_different__misses_its_bars() -> None:
    comparison = ByteComparison(windows=100, identical=99, tied=40, untied_identical=58, accepted_by_both=59)
    misses = find_misses(build_measurements(TIMES, comparison, 15))
    assert misses == [
        "verify_speedup is 9.5, below 10",
        "bytes_different is 3, above 0",
        "cross_verified is 59, below 60",
    ]
