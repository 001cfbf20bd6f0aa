"""The top values of windows on a CUDA device, compared with numpy."""

import numpy as np
import pytest
import torch

from covey.toploc import proofs, reference
from covey.toploc.topk import EVERYTHING, Capture, join
from covey.toploc.topk_torch import compute_top_tensor, find_tops

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("size", [200, 4_099, 32 * 5120])
def test_compute_top_tensor__on_cuda__equals_numpy(size: int) -> None:
    rng = np.random.default_rng(size)
    drawn = rng.standard_normal((6, size)).astype(np.float32)
    bits = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    bits[4] = rng.integers(0, 2**16, size)
    bits[5] = rng.choice(np.array([0x3F80, 0xBF80, 0x3F81], np.uint16), size)
    windows = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).cuda()
    indices, values = compute_top_tensor(windows, 128)
    expected_indices, expected_values = reference.find_top(bits, 128)
    assert np.array_equal(indices, expected_indices)
    assert np.array_equal(values, expected_values)


def test_find_tops__of_cuda_states__give_the_proofs_of_their_bits() -> None:
    states = torch.randn(97, 512, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    bits = states.view(torch.int16).numpy().view(np.uint16)
    tops = find_tops(states.cuda(), [64, 33], Capture(window=32, top_k=128))
    built = proofs.build_many(tops)
    assert built == [proofs.build(bits[:64]), proofs.build(bits[64:])]
    assert proofs.compare_many(built, tops) == [
        proofs.compare_all(sent, part) for sent, part in zip(built, (bits[:64], bits[64:]), strict=True)
    ]


def test_find_tops__everything_on_cuda__is_the_states() -> None:
    states = torch.randn(9, 96, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    (tops,) = find_tops(states.cuda(), [9], EVERYTHING)
    assert np.array_equal(join(tops), states.view(torch.int16).numpy().view(np.uint16))
