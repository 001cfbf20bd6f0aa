"""What the broadcast benchmarks make: weights, steps and their bfloat16 bits."""

import numpy as np
import pytest
import torch

from benchmarks.network.broadcast import build_weights, take_step, to_bfloat16

pytestmark = pytest.mark.unit


def test_to_bfloat16__random_values__rounds_as_torch_does():
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(to_bfloat16(values), expected)


@pytest.mark.parametrize("size", [2, 3000, 60_000_000])
def test_build_weights__size__in_bfloat16(size: int):
    weights = build_weights(size)
    assert sum(2 * len(values) for values in weights.values()) == size


def test_take_step__every_weight__moves_by_the_learning_rate():
    before = build_weights(4000)
    after = {name: values.copy() for name, values in before.items()}
    take_step(after, 1)
    moved = np.concatenate([after[name] - before[name] for name in before])
    assert np.abs(moved) == pytest.approx(1e-6, rel=0.05)
