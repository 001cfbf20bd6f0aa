"""The check of gradients: gaps by hand, and that a wrong gradient is far."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu.gradient_check import (
    check_gradients,
    compute_gap,
    compute_ours,
    compute_plainly,
    take_gradient,
)
from benchmarks.gpu.random_models import SMALL, TINY_VOCABULARY, build_model
from benchmarks.gpu.section_rows import SectionRow
from benchmarks.gpu.section_run import SectionRun
from benchmarks.training.utilisation import draw_batch

pytestmark = pytest.mark.unit


def test_compute_gap__vectors_by_hand__is_relative_to_the_second() -> None:
    assert compute_gap(torch.tensor([3.0, 8.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.8)


def test_compute_ours__weights_of_a_batch__matter_and_the_model_stays(run: SectionRun) -> None:
    batch = draw_batch([5, 3, 4, 2], prompt=4, vocabulary=TINY_VOCABULARY, siblings=2)
    model = build_model(run, SMALL)
    before = torch.cat([each.detach().flatten().clone() for each in model.parameters()])
    wanted, found = compute_plainly(model, batch, is_mixed=False), compute_ours(model, batch, "float32")
    assert compute_gap(found, wanted) < 1e-5
    assert torch.equal(before, torch.cat([each.detach().flatten() for each in model.parameters()]))
    halved = replace(batch, weights=tuple(each / 2 for each in batch.weights))
    assert compute_gap(compute_ours(model, halved, "float32"), wanted) == pytest.approx(0.5, rel=1e-4)


def test_take_gradient__a_model__has_none_afterwards(run: SectionRun) -> None:
    model = build_model(run, SMALL)
    compute_plainly(model, draw_batch([3], prompt=2, vocabulary=TINY_VOCABULARY), is_mixed=True)
    assert all(each.grad is None for each in model.parameters())
    with pytest.raises(ValueError, match="non-empty"):
        take_gradient(model)


def test_check_gradients__tiny__meets_both_aims(run: SectionRun, rows: Callable[[], dict[str, SectionRow]]) -> None:
    check_gradients(run)
    assert {case: row.is_met for case, row in rows().items()} == {"gradient, bfloat16": True, "gradient, float32": True}
