"""The arithmetic of the benchmark of the head, by hand, and one small measurement of each head."""

from dataclasses import replace

import pytest
import torch

from benchmarks.measurement import Measurement, find_misses, set_bars
from benchmarks.training.head_memory import (
    BARS,
    DENSE,
    TILED,
    HeadSize,
    build_measurements,
    compute_dense,
    fit,
    measure,
)
from trainer.algorithm.lm_head import compute_head

pytestmark = pytest.mark.unit

SIZE = HeadSize(tokens=4096, vocabulary=128_000, hidden=1024, dtype="float32")


def test_compute_dense__random_input__equals_the_tiled_head() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(9, 8), torch.randn(70, 8), torch.randint(0, 70, (9,))
    for ours, theirs in zip(compute_head(*inputs, dtype=torch.float32), compute_dense(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_fit__ever_less_memory__halves_the_tokens() -> None:
    # The weight and its gradient take 1.05 GB, the copies of the logits 8.39 GB.
    assert fit(SIZE, 9.5e9) == SIZE
    assert fit(SIZE, 9.4e9) == replace(SIZE, tokens=2048)
    assert fit(SIZE, 5.0e9) == replace(SIZE, tokens=1024)
    assert fit(SIZE, 0).tokens == 1


def test_build_measurements__two_runs_of_half_the_tokens__are_the_ratios_by_hand() -> None:
    runs = {
        DENSE: [{"extra": 1.0e9, "wall": 5.0, "cpu": 4.0}, {"extra": 1.2e9, "wall": 6.0, "cpu": 3.0}],
        TILED: [{"extra": 0.1e9, "wall": 12.0, "cpu": 9.0}, {"extra": 0.05e9, "wall": 11.0, "cpu": 9.5}],
    }
    measurements = {each.name: each for each in build_measurements(SIZE, replace(SIZE, tokens=2048), runs)}
    values = {name: each.value for name, each in measurements.items()}
    assert values["head_memory_ratio"] == pytest.approx(0.1 / 2)  # the worst tiled run over twice the best dense one
    assert values["head_time_ratio"] == pytest.approx(11 / 10)
    assert values["head_time_ratio_by_cpu"] == pytest.approx(9 / 6)
    assert values["head_extra_mb.dense"] == pytest.approx(2000)
    assert measurements["head_memory_ratio"].peer == "dense, 2048 tokens, times 2"
    assert {each.n for each in measurements.values()} == {2}


@pytest.mark.parametrize(("name", "value", "failures"), [("memory", 0.05, 0), ("memory", 0.051, 1), ("time", 1.51, 1)])
def test_bars__ratio_above_its_bar_or_nan__is_a_miss(name: str, value: float, failures: int) -> None:
    (measurement,) = set_bars([Measurement(name=f"head_{name}_ratio", value=value, unit="ratio", n=1)], BARS)
    assert len(find_misses([measurement])) == failures
    assert find_misses([replace(measurement, value=float("nan"))])


@pytest.mark.full
@pytest.mark.slow
def test_measure__small_size__only_the_dense_head_holds_the_logits() -> None:
    size = HeadSize(tokens=512, vocabulary=60_000, hidden=16, dtype="float32")
    logits = 4 * size.tokens * size.vocabulary
    found = {side: measure(side, size) for side in (DENSE, TILED)}
    assert found[DENSE]["extra"] > 2 * logits
    assert found[TILED]["extra"] < 0.7 * logits
    assert all(value["wall"] > 0 < value["cpu"] for value in found.values())
