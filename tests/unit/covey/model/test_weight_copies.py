"""Weights arrive whole, whatever their size, layout and number format."""

import pytest
import torch

from covey.model import weight_copies
from covey.model.weight_copies import WeightCopies

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("device", ["cpu", "a GPU"])
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 5), (4, 2, 2), (), (0, 3)])
def test_copy__any_shape__arrives(monkeypatch: pytest.MonkeyPatch, device: str, shape: tuple[int, ...]) -> None:
    monkeypatch.setattr(weight_copies, "CHUNK", 4)
    copies = WeightCopies(torch.device("cpu"))
    copies._is_direct = device == "cpu"
    sources = [torch.randn(shape), torch.randn(shape).to(torch.bfloat16), torch.randn(shape)]
    targets = [torch.full(shape, 7.0), torch.full(shape, 7.0), torch.full(shape, 7.0, dtype=torch.bfloat16)]
    for target, source in zip(targets, sources, strict=True):
        copies.copy(target, source)
    copies.finish()
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source.to(target.dtype))


def test_copy__target_of_another_layout__arrives() -> None:
    copies, target, source = WeightCopies(torch.device("meta")), torch.zeros(3, 2).T, torch.randn(2, 3)
    copies.copy(target, source)
    assert torch.equal(target, source)


@pytest.mark.parametrize("device", ["cpu", "a GPU"])
def test_send__a_tensor__is_copied_only_to_another_device(device: str) -> None:
    copies, source = WeightCopies(torch.device("cpu")), torch.randn(3, 5)
    copies._is_direct = device == "cpu"
    sent = copies.send(source)
    copies.finish()
    assert torch.equal(sent, source)
    assert (sent is source) == (device == "cpu")
