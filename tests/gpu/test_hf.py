"""The reference engine on a CUDA device: it returns top values only, as close to a CPU's as those of honest work."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from covey.engines.base import GenerationRequest, ReplayRequest
from covey.engines.hf.decode import widen_head
from covey.engines.hf.engine import HuggingFaceEngine
from covey.model.policy_files import get_head, load_model
from covey.model.tiny import tiny_folder
from covey.protocol.thresholds import Thresholds
from covey.toploc import proofs, topk_torch
from covey.toploc.closeness import is_within
from covey.toploc.topk import EVERYTHING, Capture, Top, join

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

CAPTURE = Capture(window=4, top_k=32)
REQUESTS = [
    GenerationRequest(prompt=(2, *range(40 + i, 60 + i)), seed=i * 977, max_tokens=5 + i % 7) for i in range(24)
]


def load(device: str) -> HuggingFaceEngine:
    engine = HuggingFaceEngine(device=device, max_batch=8)
    engine.load_policy(tiny_folder(), 0)
    return engine


def claim(tokens: Sequence[tuple[int, ...]]) -> list[ReplayRequest]:
    return [
        ReplayRequest(prompt=request.prompt, tokens=each, seed=request.seed)
        for request, each in zip(REQUESTS, tokens, strict=True)
    ]


def test_generate_and_replay__on_cuda__tops_are_within_the_limits_of_float32_of_a_cpus() -> None:
    there, here = load("cuda"), load("cpu")
    made = there.generate(REQUESTS, temperature=1.0, capture=CAPTURE)
    claims = claim([each.tokens for each in made])
    built = proofs.build_many([each.tops for each in made])
    assert [len(each) for each in built] == [-(-len(each.tokens) // 4) for each in made]
    for engine in (there, here):
        replays = engine.replay(claims, temperature=1.0, capture=CAPTURE)
        compared = proofs.compare_many(built, [each.tops for each in replays])
        assert all(is_within(Thresholds(), distances) for each in compared for distances in each)


def test_widen_head__bfloat16_on_cuda__logits_are_rounded_to_float32_only() -> None:
    model = load_model(tiny_folder(), "bfloat16")
    torch.nn.Module.to(model, "cuda")
    head, states = get_head(model), torch.randn(2, 3, get_head(model).weight.shape[1]).to("cuda", torch.bfloat16)
    exact = states.double() @ head.weight.double().T
    rounded = head(states)
    widen_head(model)
    wide = head(states)
    assert (rounded.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    assert float((wide - exact).abs().max()) < 1e-5 < float((rounded - exact).abs().max())


def test_generate_and_replay__on_cuda__tops_are_found_there_and_are_those_of_the_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, searched = load("cuda"), list[torch.Size]()
    compute = topk_torch.compute_top_tensor

    def record(windows: torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        assert windows.device.type == "cuda"
        searched.append(windows.shape)
        found = compute(windows, k)
        assert all(each.shape == (len(windows), k) for each in found)
        return found

    def fail(*_: object) -> None:
        raise AssertionError("states of an accelerator were searched on the CPU")

    monkeypatch.setattr(topk_torch, "compute_top_tensor", record)
    with monkeypatch.context() as patched:
        patched.setattr(proofs, "find_tops", fail)
        made = engine.generate(REQUESTS, temperature=1.0, capture=CAPTURE)
        claims = claim([each.tokens for each in made])
        replays = engine.replay(claims, temperature=1.0, capture=CAPTURE)
        states = [join(each.tops) for each in engine.replay(claims, temperature=1.0, capture=EVERYTHING)]
    assert searched
    for replay, tops in zip(replays, proofs.find_tops(states, CAPTURE), strict=True):
        assert [show(top) for top in replay.tops] == [show(top) for top in tops]


def show(top: Top) -> tuple[list[int], list[int]]:
    return top.indices.tolist(), top.bits.tolist()
