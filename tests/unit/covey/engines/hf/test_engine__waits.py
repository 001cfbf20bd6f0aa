"""How often the host waits for the device: once per token, and a few times per replay pass."""

import pytest
import torch

from covey.engines.base import GenerationRequest, ReplayRequest
from covey.engines.hf import engine as hf_engine
from covey.engines.hf import proof_windows
from covey.engines.hf.engine import HuggingFaceEngine
from covey.sampling import sampler, torch_sampler
from covey.toploc.topk import Capture
from covey.toploc.topk_torch import compute_tops_tensor
from tests.fakes.device_waits import DeviceWaits

pytestmark = pytest.mark.unit

CAPTURE = Capture(window=4, top_k=16)


@pytest.fixture(autouse=True)
def _code_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Select what runs on a GPU. The check of claimed tokens and the compiled kernels are a CPU's."""
    monkeypatch.setattr(hf_engine, "find_tops", compute_tops_tensor)
    monkeypatch.setattr(proof_windows, "find_tops", compute_tops_tensor)
    monkeypatch.setattr(hf_engine, "sample", race)
    monkeypatch.setattr(hf_engine, "score", score)


def race(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: float) -> sampler.Sampled:
    found = torch_sampler.race(logits, seeds, positions, temperature)
    return sampler.Sampled(found.tokens, found.logprobs)


def score(
    logits: torch.Tensor, tokens: torch.Tensor, seeds: sampler.Seeds, positions: sampler.Positions, temperature: float
) -> sampler.Scored:
    moved = (sampler._move(each, logits.device) for each in (seeds, positions))
    found = torch_sampler.race(logits, *moved, temperature, claims=tokens)
    return sampler.Scored(found.margins, found.logprobs)


def draw(count: int, tokens: int, *, is_ragged: bool = False) -> list[GenerationRequest]:
    """Draw requests, of which each second one has the prompt of the one before."""
    return [
        GenerationRequest(
            prompt=tuple(range(5 + i // 2, 9 + i // 2 + (i // 2 if is_ragged else 0))), seed=i, max_tokens=tokens
        )
        for i in range(count)
    ]


def count_waits(engine: HuggingFaceEngine, requests: list[GenerationRequest], capture: Capture | None) -> int:
    with DeviceWaits() as waits:
        engine.generate(requests, temperature=1.0, capture=capture)
    return waits.total


def test_waits__what_waits__is_counted() -> None:
    tensor = torch.arange(4.0)
    with DeviceWaits() as waits:
        assert (tensor[0].item(), bool(tensor[1] > 0), float(tensor[2])) == (0, True, 2)
        assert tensor.cpu()[tensor > 1].shape == (2,)
        assert (tensor.nonzero().shape, tensor.tolist()) == ((3, 1), [0, 1, 2, 3])
    assert waits.found == {
        "torch.Tensor.cpu": 1, "torch.Tensor.tolist": 1, "aten::_local_scalar_dense": 3, "aten::nonzero": 1,
        "aten::index": 1,
    }  # fmt: skip


@pytest.mark.parametrize("tokens", [3, 9])
def test_generate__each_token__waits_once(llama: HuggingFaceEngine, tokens: int) -> None:
    """The host needs the tokens. At the end it fetches all log-probabilities together."""
    requests = draw(4, tokens)
    steps = max(len(each.tokens) for each in llama.generate(requests, temperature=1.0))
    assert steps == tokens
    assert count_waits(llama, requests, None) == steps + 1


def test_generate__prompts_of_different_lengths__wait_no_more(llama: HuggingFaceEngine) -> None:
    assert count_waits(llama, draw(6, 5, is_ragged=True), None) == 5 + 1


def test_generate__each_full_window__waits_once(llama: HuggingFaceEngine) -> None:
    requests = draw(4, 9)
    assert count_waits(llama, requests, CAPTURE) == 9 + 1 + 3


@pytest.mark.parametrize("count", [2, 12])
def test_replay__one_pass__waits_twice_whatever_its_size(llama: HuggingFaceEngine, count: int) -> None:
    claims = [ReplayRequest(prompt=(2, 9, i), tokens=(5,) * (1 + i), seed=i) for i in range(count)]
    with DeviceWaits() as waits:
        llama.replay(claims, temperature=1.0, capture=CAPTURE)
    assert waits.found == {"torch.Tensor.cpu": 2}


def test_replay__chunks_of_the_head__do_not_wait(llama: HuggingFaceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_engine, "MAX_LOGITS", 3 * llama.vocabulary_size)
    claims = [ReplayRequest(prompt=(2, 9), tokens=(5,) * 20, seed=i) for i in range(3)]
    with DeviceWaits() as waits:
        llama.replay(claims, temperature=1.0)
    assert waits.found == {"torch.Tensor.cpu": 1}
