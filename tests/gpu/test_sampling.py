"""Noise and sampler on a CUDA device, compared with numpy and the compiled versions."""

import numpy as np
import pytest
import torch

from covey.sampling.noise import gumbel, philox_words
from covey.sampling.sampler import sample, score
from covey.sampling.torch_sampler import gumbel_tensor, philox_words_tensor

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SEEDS = np.array([0, 2**64 - 1, 0x299F31D0A4093822, 7], np.uint64)
POSITIONS = np.array([0, 2**32 - 1, 0x85A308D3, 31], np.uint32)


@pytest.mark.parametrize("vocabulary", [256, 259, 32_000, 151_937, 256_000])
def test_philox_words_tensor__on_cuda__equals_numpy(vocabulary: int) -> None:
    found = philox_words_tensor(SEEDS, POSITIONS, vocabulary, "cuda").cpu().numpy()
    assert np.array_equal(found, philox_words(SEEDS, POSITIONS, vocabulary))


@pytest.mark.parametrize("vocabulary", [259, 256_000])
def test_gumbel_tensor__on_cuda__within_one_unit_of_the_last_place(vocabulary: int) -> None:
    found = gumbel_tensor(SEEDS, POSITIONS, vocabulary, "cuda").cpu().numpy()
    np.testing.assert_array_max_ulp(found, gumbel(SEEDS, POSITIONS, vocabulary), maxulp=1)


def test_score__token_sampled_on_the_other_device__loses_by_no_more_than_rounding() -> None:
    n, vocabulary = 64, 32_000
    logits = torch.randn(n, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
    seeds, positions = np.arange(n, dtype=np.uint64) * 977, np.arange(n, dtype=np.uint32)
    here, there = sample(logits, seeds, positions, 0.8), sample(logits.cuda(), seeds, positions, 0.8)
    assert there.device.type == "cuda"
    assert float(score(logits, there.cpu(), seeds, positions, 0.8).max()) < 1e-5
    assert float(score(logits.cuda(), here.cuda(), seeds, positions, 0.8).max()) < 1e-5
