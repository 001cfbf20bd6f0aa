"""The noise of the sampler's Triton kernels for given words, compared with that of torch operations."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton compiles the function with its decorator, and knows no annotations but its own.

import torch
import triton
import triton.language as tl

from covey.sampling import triton_sampler
from covey.sampling.torch_sampler import compute_noise

TOGETHER = 1 << 24
"""Maximum number of words that are compared at once."""
BLOCK = 1024

_gumbel = triton_sampler._gumbel


@triton.jit
def _write_noise(out, first, count, BLOCK: tl.constexpr):
    """Write the noise of the words from `first` on, float32[count]."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    words = (first + index).to(tl.uint32)
    tl.store(out + index, _gumbel(words), mask=index < count)


def count_different(words: int, device: str) -> int:
    """Return for how many of the words from 0 to `words` - 1 the two versions differ in a bit."""
    different = 0
    for first in range(0, words, TOGETHER):
        count = min(TOGETHER, words - first)
        noise = torch.empty(count, device=device)
        # The fused products and sums are off, as in the sampler.
        _write_noise[(triton.cdiv(count, BLOCK),)](noise, first, count, BLOCK=BLOCK, enable_fp_fusion=False)
        wanted = compute_noise(torch.arange(first, first + count, device=device))
        different += int((noise.view(torch.int32) != wanted.view(torch.int32)).sum())
    return different
