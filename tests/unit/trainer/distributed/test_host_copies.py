"""Copies keep their values while the learner's tensors change, and their buffers are kept."""

import pytest
import torch

from trainer.distributed.host_copies import HostCopies

pytestmark = pytest.mark.unit


def test_copy__tensor_in_main_memory__is_the_tensor_itself() -> None:
    copies, tensor = HostCopies(), torch.ones(3, requires_grad=True)
    copied = copies.copy("a", tensor)
    copies.finish()
    assert copied.data_ptr() == tensor.data_ptr()
    assert not copied.requires_grad


def test_keep__tensor_that_changes__keeps_its_values_and_reuses_its_buffer() -> None:
    copies, tensor = HostCopies(), torch.ones(3)
    first = copies.keep("a", tensor)
    tensor.add_(1)
    other, address = copies.keep("b", tensor), first.data_ptr()
    copies.finish()
    assert (first.tolist(), other.tolist()) == ([1, 1, 1], [2, 2, 2])
    second = copies.keep("a", tensor)
    assert (second.data_ptr(), second.tolist()) == (address, [2, 2, 2])
    assert copies.keep("a", tensor.to(torch.bfloat16)).dtype is torch.bfloat16
    assert copies.keep("a", torch.ones(2, 2)).shape == (2, 2)
