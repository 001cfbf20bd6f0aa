"""Linear layers by oneDNN against float64, and where they stay as they are."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.model import linear
from covey.model.linear import BLOCK, NARROWEST, WORTH, QuickLinear, multiply, quicken

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not linear.has_onednn(), reason="torch was built without oneDNN"),
]
ROWS, WIDTH, OUT = 600, 130, 200
"""Two blocks and a rest."""
assert 2 * BLOCK < ROWS < 3 * BLOCK
assert NARROWEST <= WIDTH < OUT
assert WIDTH * OUT >= WORTH


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> QuickLinear:
    """As on a processor that it is made for."""
    monkeypatch.setattr(linear, "is_worth_it", lambda: True)
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, OUT)
    quicken(nn.Sequential(layer, nn.ReLU()))
    assert isinstance(layer, QuickLinear)
    return layer


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def require_close(found: Tensor | None, wanted: Tensor) -> None:
    """Within float32's rounding of a sum of some hundred products."""
    assert found is not None
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < 3e-6 * float(wanted.abs().max())


@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (3, ROWS // 3, WIDTH), (BLOCK, WIDTH), (2 * BLOCK, WIDTH)])
def test_quick_linear__values_and_gradients__are_those_of_float64(quick: QuickLinear, shape: tuple[int, ...]):
    hidden = draw(*shape).requires_grad_()
    slopes = draw(*shape[:-1], OUT, seed=2)
    found = quick(hidden)
    found.backward(slopes)
    inputs, weight, rows = hidden.detach().double(), quick.weight.detach().double(), slopes.double()
    assert quick.bias is not None
    require_close(found.detach(), inputs @ weight.T + quick.bias.detach().double())
    require_close(hidden.grad, rows @ weight)
    require_close(quick.weight.grad, rows.flatten(0, -2).T @ inputs.flatten(0, -2))
    require_close(quick.bias.grad, rows.flatten(0, -2).sum(dim=0))


def test_quick_linear__frozen_weight_and_no_bias__only_the_input_has_a_gradient():
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, OUT, bias=False).requires_grad_(False)
    layer.__class__ = QuickLinear
    hidden = draw(ROWS, WIDTH).requires_grad_()
    layer(hidden).sum().backward()
    require_close(hidden.grad, layer.weight.double().sum(dim=0).expand(ROWS, WIDTH))
    assert layer.weight.grad is None


@torch.no_grad()
def test_quick_linear__without_gradients__has_the_bits_that_it_has_with_them(quick: QuickLinear):
    hidden = draw(ROWS, WIDTH)
    with torch.enable_grad():
        learning = quick(hidden)
    assert torch.equal(quick(hidden), learning)
    with torch.inference_mode():
        assert torch.equal(quick(hidden), learning)


@torch.no_grad()
def test_quick_linear__less_than_a_block_or_another_dtype__goes_the_usual_way(quick: QuickLinear):
    for shape in ((BLOCK - 1, WIDTH), (0, WIDTH), (WIDTH,)):
        few = draw(*shape)
        assert torch.equal(quick(few), F.linear(few, quick.weight, quick.bias))
    hidden = draw(ROWS, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert quick(hidden).dtype is torch.bfloat16
    quick.to(torch.float64)
    assert torch.equal(quick(hidden.double()), F.linear(hidden.double(), quick.weight, quick.bias))


def test_quick_linear__output_of_several_blocks__can_be_changed_in_place(quick: QuickLinear):
    """As models with `clip_qkv` do."""
    for shape in ((3, ROWS // 3, WIDTH), (1, BLOCK, WIDTH), (ROWS, WIDTH)):
        hidden = draw(*shape).requires_grad_()
        quick(hidden).clamp_(0, 0.5).sum().backward()
        inside = hidden.detach() @ quick.weight.detach().T + quick.bias.detach()  # type: ignore[union-attr]
        taught = ((inside > 0) & (inside < 0.5)).double()
        require_close(hidden.grad, taught @ quick.weight.detach().double())


def test_quick_linear__frozen__keeps_no_input_for_the_backward_pass(quick: QuickLinear):
    quick.requires_grad_(False)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        quick(draw(ROWS, WIDTH).requires_grad_())
    assert [each.shape for each in kept] == [quick.weight.shape]


def test_quick_linear__many_lengths__kernels_are_made_for_one(quick: QuickLinear, monkeypatch: pytest.MonkeyPatch):
    """Each length would leave megabytes behind."""
    shapes: set[tuple[torch.Size, torch.Size]] = set()
    inner = linear._multiply_block

    def watch(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.add((left.shape, right.shape))
        return inner(left, right, bias)

    monkeypatch.setattr(linear, "_multiply_block", watch)
    for rows in range(BLOCK - 5, 3 * BLOCK, 37):
        quick(draw(rows, WIDTH).requires_grad_()).sum().backward()
    assert len(shapes) == 3, "forward, and a gradient each of input and weight"


def test_quick_linear__copied__has_weights_of_its_own(quick: QuickLinear):
    copied = copy.deepcopy(quick)
    with torch.no_grad():
        copied.weight.zero_()
        assert copied.bias is not None
        assert torch.equal(copied(draw(ROWS, WIDTH)), copied.bias.expand(ROWS, OUT))
        assert not torch.equal(quick(draw(ROWS, WIDTH)), copied(draw(ROWS, WIDTH)))


def test_multiply__transposed_operands__are_read_by_their_strides():
    left, right = draw(70, ROWS).T, draw(70, 50, seed=2).T
    require_close(multiply(left, right), left.double() @ right.double().T)


def test_quicken__processor_that_mkl_serves__changes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "is_worth_it", lambda: False)
    layer = nn.Linear(WIDTH, OUT)
    quicken(layer)
    assert type(layer) is nn.Linear


@pytest.mark.parametrize(
    ("given", "taken", "is_quick"),
    [
        (NARROWEST, WORTH // NARROWEST, True),
        (WORTH // NARROWEST, NARROWEST, True),
        (NARROWEST, WORTH // NARROWEST - 1, False),
        (NARROWEST - 1, 2 * WORTH, False),
        (2 * WORTH, NARROWEST - 1, False),
    ],
)
def test_quicken__layer__is_worth_it_by_its_sides_and_its_weights(
    monkeypatch: pytest.MonkeyPatch, given: int, taken: int, is_quick: bool
):
    monkeypatch.setattr(linear, "is_worth_it", lambda: True)
    layer = nn.Linear(given, taken)
    quicken(layer)
    assert type(layer) is (QuickLinear if is_quick else nn.Linear)


@pytest.mark.parametrize(
    ("capability", "cpuinfo", "worth"),
    [
        ("AVX512", "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n", True),
        ("AVX512", "vendor_id\t: AuthenticAMD\ncpu family\t: 27\nmodel\t\t: 2\n", True),
        ("AVX512", "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 97\n", False),
        ("AVX512", "vendor_id\t: AuthenticAMD\n", False),
        ("AVX512", "vendor_id\t: GenuineIntel\ncpu family\t: 26\nmodel\t\t: 143\n", False),
        ("AVX2", "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n", False),
        ("AVX512", None, False),
    ],
)
def test_is_worth_it__processor__is_known_by_its_maker_its_family_and_its_width(
    monkeypatch: pytest.MonkeyPatch, capability: str, cpuinfo: str | None, worth: bool
):
    def read(_: object) -> str:
        if cpuinfo is None:
            raise OSError
        return cpuinfo

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(linear.Path, "read_text", read)
    linear.is_worth_it.cache_clear()
    try:
        assert linear.is_worth_it() is worth
    finally:
        linear.is_worth_it.cache_clear()
