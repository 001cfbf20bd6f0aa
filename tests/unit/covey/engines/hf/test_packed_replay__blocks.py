"""Feed-forward networks on blocks of tokens compute the right values, only if dense, and are restored afterwards."""

from collections.abc import Iterator

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedModel

from covey.engines import cpu_tuning
from tests.unit.covey.engines.hf.test_packed_replay import RAGGED, SIZES, build, read_alone, read_packed

pytestmark = pytest.mark.unit
TOKENS = 67 - len(RAGGED)
"""Tokens of the packed row of `RAGGED`: 19 of distinct prompts and 48 of completions, without the last of each."""


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_tuning, "BLOCK", 25)


@pytest.fixture
def model() -> PreTrainedModel:
    return build("llama")


@pytest.fixture
def fed(model: PreTrainedModel) -> Iterator[list[int]]:
    """Number of tokens in each call of the first layer's network."""
    sizes: list[int] = []
    handle = model.model.layers[0].mlp.act_fn.register_forward_pre_hook(
        lambda _, inputs: sizes.append(inputs[0].shape[1])
    )
    yield sizes
    handle.remove()


@torch.no_grad()
def test_read_completions__more_tokens_than_a_block__are_computed_in_blocks(
    model: PreTrainedModel, fed: list[int]
) -> None:
    hidden, logits = read_packed(model, RAGGED)
    assert fed == [25, 25, TOKENS - 50]
    expected_hidden, expected_logits = read_alone(model, RAGGED)
    assert torch.allclose(hidden, expected_hidden, atol=1e-4)
    assert torch.allclose(logits, expected_logits, atol=1e-4)


@torch.no_grad()
def test_read_completions__done_or_failed__leaves_the_networks_as_they_were(
    model: PreTrainedModel, fed: list[int]
) -> None:
    read_packed(model, RAGGED)
    with pytest.raises(IndexError):
        read_packed(model, [((2, 4000), (1, 1))])  # beyond the vocabulary
    fed.clear()
    model(torch.ones(1, 99, dtype=torch.int64))
    assert fed == [99]
    assert all("forward" not in vars(module) for module in model.modules())


@torch.no_grad()
def test_read_completions__experts__are_computed_at_once_and_correctly() -> None:
    torch.manual_seed(3)
    model = MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)).eval()
    sizes: list[int] = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[1]))
    hidden, _ = read_packed(model, RAGGED)
    assert sizes == [TOKENS]
    assert torch.allclose(hidden, read_alone(model, RAGGED)[0], atol=1e-4)
