"""The memory benchmark's arithmetic by hand, and one small measurement of each side."""

from dataclasses import replace

import pytest
import torch

from benchmarks.harness import Measurement
from benchmarks.training.head_memory import (
    DENSE,
    TILED,
    HeadSize,
    build_claims,
    compute_dense,
    find_failures,
    fit,
    measure,
)
from trainer.algorithm.lm_head import compute_head

pytestmark = pytest.mark.unit

CASE = HeadSize(tokens=4096, vocabulary=128_000, hidden=1024, dtype="float32")


def test_compute_dense__random_input__is_what_the_head_computes() -> None:
    torch.manual_seed(0)
    given = torch.randn(9, 8), torch.randn(70, 8), torch.randint(0, 70, (9,))
    for ours, theirs in zip(compute_head(*given, dtype=torch.float32), compute_dense(*given), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_fit__less_and_less_memory__halves_the_tokens() -> None:
    # 1.05 GB of weight and gradient, 8.39 GB of logits
    assert fit(CASE, 9.5e9) == CASE
    assert fit(CASE, 9.4e9) == replace(CASE, tokens=2048)
    assert fit(CASE, 5.0e9) == replace(CASE, tokens=1024)
    assert fit(CASE, 0).tokens == 1


def test_build_claims__two_runs_and_half_of_the_tokens__are_the_ratios_by_hand() -> None:
    runs = {
        DENSE: [{"extra": 1.0e9, "wall": 5.0, "cpu": 4.0}, {"extra": 1.2e9, "wall": 6.0, "cpu": 3.0}],
        TILED: [{"extra": 0.1e9, "wall": 12.0, "cpu": 9.0}, {"extra": 0.05e9, "wall": 11.0, "cpu": 9.5}],
    }
    claims = {claim.name: claim for claim in build_claims(CASE, replace(CASE, tokens=2048), runs)}
    values = {name: claims[name].value for name in claims}
    assert values["head_memory_ratio"] == pytest.approx(0.1 / 2)  # our worst over twice their best
    assert values["head_time_ratio"] == pytest.approx(11 / 10)
    assert values["head_time_ratio_by_cpu"] == pytest.approx(9 / 6)
    assert values["head_extra_mb.dense"] == pytest.approx(2000)
    assert claims["head_memory_ratio"].peer == "dense, 2048 tokens, times 2"
    assert {claim.n for claim in claims.values()} == {2}


@pytest.mark.parametrize(("name", "value", "failures"), [("memory", 0.05, 0), ("memory", 0.051, 1), ("time", 1.51, 1)])
def test_find_failures__ratio_above_its_bar__is_named(name: str, value: float, failures: int) -> None:
    claim = Measurement(name=f"head_{name}_ratio", value=value, unit="ratio", n=1)
    assert len(find_failures([claim])) == failures
    assert find_failures([replace(claim, value=float("nan"))])


@pytest.mark.full
@pytest.mark.slow
def test_measure__small_case__dense_holds_the_logits_and_ours_does_not() -> None:
    case = HeadSize(tokens=512, vocabulary=60_000, hidden=16, dtype="float32")
    logits = 4 * case.tokens * case.vocabulary
    found = {side: measure(side, case) for side in (DENSE, TILED)}
    assert found[DENSE]["extra"] > 2 * logits
    assert found[TILED]["extra"] < 0.7 * logits
    assert all(value["wall"] > 0 < value["cpu"] for value in found.values())
