"""The engine finds the top values as the windows fill, and they equal those of the whole states."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from covey.engines.base import Completion, GenerationRequest, Replay, ReplayRequest
from covey.engines.hf import engine as hf
from covey.engines.hf import proof_windows
from covey.engines.hf.engine import HuggingFaceEngine
from covey.engines.hf.proof_windows import Windows
from covey.model.tiny import tiny_folder
from covey.toploc.proofs import compute_top
from covey.toploc.topk import EVERYTHING, Capture, Top, join
from covey.toploc.topk_torch import compute_tops_tensor

pytestmark = pytest.mark.unit

CAPTURES = [
    Capture(window=32, top_k=128),
    Capture(window=3, top_k=50),
    Capture(window=1, top_k=4),
    Capture(window=4096, top_k=128),  # longer than any completion
]


def load(dtype: str, batch: int) -> HuggingFaceEngine:
    engine = HuggingFaceEngine(dtype=dtype, max_batch=batch)
    engine.load_policy(tiny_folder(), 0)
    return engine


def claim(requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> list[ReplayRequest]:
    return [
        ReplayRequest(prompt=request.prompt, tokens=completion.tokens, seed=request.seed)
        for request, completion in zip(requests, completions, strict=True)
    ]


def assert_tops_of_states(
    captured: Sequence[Completion | Replay], everything: Sequence[Completion | Replay], c: Capture
):
    """Compare one window at a time with the states that another call captured as a whole."""
    for one, whole in zip(captured, everything, strict=True):
        states = join(whole.tops)
        expected = [states[start : start + c.window].reshape(-1) for start in range(0, len(states), c.window)]
        assert len(one.tops) == len(expected)
        for top, values in zip(one.tops, expected, strict=True):
            indices = compute_top(values, min(c.top_k, values.size))
            assert (top.indices.dtype, top.bits.dtype) == (np.int64, np.uint16)
            assert top.indices.tolist() == indices.tolist()
            assert top.bits.tolist() == values[indices].tolist()


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda c: f"{c.window}x{c.top_k}")
@pytest.mark.parametrize(("dtype", "batch"), [("float32", 64), ("float32", 5), ("bfloat16", 7), ("bfloat16", 1)])
def test_tops__ragged_completions__are_those_of_the_whole_states(
    long_requests: list[GenerationRequest],
    short_requests: list[GenerationRequest],
    dtype: str,
    batch: int,
    capture: Capture,
) -> None:
    engine, requests = load(dtype, batch), long_requests + short_requests[::9]
    completions = engine.generate(requests, temperature=1.0, capture=capture)
    assert len({len(each.tokens) for each in completions}) > 4
    whole = engine.generate(requests, temperature=1.0, capture=EVERYTHING)
    assert [each.tokens for each in completions] == [each.tokens for each in whole]
    assert all(join(each.tops).shape == (len(each.tokens), 96) for each in whole)
    assert_tops_of_states(completions, whole, capture)
    claims = claim(requests, completions)
    replays = [engine.replay(claims, temperature=1.0, capture=each) for each in (capture, EVERYTHING)]
    assert_tops_of_states(*replays, capture)


def test_tops__found_by_torch_alone__are_equal(
    llama: HuggingFaceEngine, long_requests: list[GenerationRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code for accelerators runs on the CPU here."""

    def run() -> list[tuple[list[int], list[int]]]:
        completions = llama.generate(long_requests, temperature=1.0, capture=CAPTURES[0])
        replays = llama.replay(claim(long_requests, completions), temperature=1.0, capture=CAPTURES[0])
        tops: list[Top] = [top for each in (*completions, *replays) for top in each.tops]
        return [(top.indices.tolist(), top.bits.tolist()) for top in tops]

    compiled, calls = run(), list[int]()

    def search(states: torch.Tensor, lengths: Sequence[int], capture: Capture) -> list[tuple[Top, ...]]:
        calls.append(len(lengths))
        return compute_tops_tensor(states, lengths, capture)

    monkeypatch.setattr(proof_windows, "find_tops", search)
    monkeypatch.setattr(hf, "find_tops", search)
    assert run() == compiled
    assert sum(calls) > 2 * len(long_requests)


def test_tops__no_capture__are_empty_and_the_rest_is_the_same(
    llama: HuggingFaceEngine, long_requests: list[GenerationRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = llama.generate(long_requests, temperature=1.0, capture=CAPTURES[0])
    claims = claim(long_requests, captured)
    replayed = llama.replay(claims, temperature=1.0, capture=CAPTURES[0])
    for module in (hf, proof_windows):
        monkeypatch.setattr(module, "find_tops", None)
    for one, other in zip(captured, llama.generate(long_requests, temperature=1.0), strict=True):
        assert other.tops == ()
        assert (one.tokens, one.logprobs) == (other.tokens, other.logprobs)
    for one, other in zip(replayed, llama.replay(claims, temperature=1.0), strict=True):
        assert other.tops == ()
        assert np.array_equal(one.logprobs, other.logprobs)


def test_windows__two_requests_of_which_one_ends__by_hand() -> None:
    windows = Windows(2, 4, Capture(window=2, top_k=1))
    both, first = np.array([0, 1]), np.array([0])
    windows.add(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), both, both, np.array([True, True]))
    assert windows.get_tops(0) == ()
    windows.add(torch.tensor([[0.0, -3.0], [1.0, 1.0]]), both, both, np.array([True, True]))
    windows.add(torch.tensor([[5.0, 6.0], [9.0, 8.0]]), np.array([1, 0]), both, np.array([True, False]))
    windows.add(torch.tensor([[7.0, 10.0]]), first, first, np.array([False]))
    shown = [[(top.indices.tolist(), top.bits.tolist()) for top in windows.get_tops(request)] for request in (0, 1)]
    # The first request keeps the fourth value of 1, 2, 0, -3 and of 9, 8, 7, 10. The second request keeps the second
    # value of 3, 4, 1, 1 and of its last window 5, 6.
    assert shown == [[([3], [0xC040]), ([3], [0x4120])], [([1], [0x4080]), ([1], [0x40C0])]]


def test_windows__requests_that_still_agree__have_the_same_state() -> None:
    windows, all_three = Windows(3, 1, Capture(window=1, top_k=1)), np.arange(3)
    windows.add(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), np.array([1, 0, 1]), all_three, np.array([False] * 3))
    assert [windows.get_tops(request)[0].indices.tolist() for request in range(3)] == [[0], [1], [0]]
