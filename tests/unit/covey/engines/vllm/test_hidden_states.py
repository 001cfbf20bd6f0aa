"""The top values equal those of the whole completions, in whatever order the states arrive."""

import numpy as np
import pytest
import torch

from covey.engines.vllm.hidden_states import States
from covey.toploc.proofs import find_tops
from covey.toploc.topk import EVERYTHING, Capture, Top

pytestmark = pytest.mark.unit

HIDDEN = 8
CAPTURES = [Capture(window=4, top_k=6), Capture(window=32, top_k=128), Capture(window=1000, top_k=3), EVERYTHING]


def make_states(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(n, HIDDEN, generator=generator) for n in lengths]


def expect(states: torch.Tensor, capture: Capture) -> tuple[Top, ...]:
    bits = states.to(torch.bfloat16).view(torch.uint16).numpy()
    return find_tops([bits], capture)[0]


def assert_tops(tops: list[Top], expected: tuple[Top, ...]) -> None:
    assert len(tops) == len(expected)
    for top, other in zip(tops, expected, strict=True):
        np.testing.assert_array_equal(top.indices, other.indices)
        np.testing.assert_array_equal(top.bits, other.bits)


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda each: f"{each.window}x{each.top_k}")
@pytest.mark.parametrize("places", [1, 5])
def test_add_each__requests_that_come_and_go__leave_their_tops(capture: Capture, places: int) -> None:
    """Only some of five requests have a row in each step, and some start after others have finished."""
    lengths = [1, 9, 40, 4, 13]
    whole, states = make_states(lengths), States(capture, places, longest=64)
    added = [0] * len(lengths)
    for step in range(200):
        keys = [key for key in range(5) if added[key] < lengths[key] and (step + key) % (key + 2) and step >= 7 * key]
        if keys:
            states.add_each(keys, torch.stack([whole[key][added[key]] for key in keys]))
        for key in keys:
            added[key] += 1
            if added[key] == lengths[key]:
                states.finish(key)
    assert added == lengths
    for key, completion in enumerate(whole):
        assert_tops(states.pop_tops(key), expect(completion, capture))
        assert states.pop_tops(key) == []


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda each: f"{each.window}x{each.top_k}")
@pytest.mark.parametrize("cuts", [[], [1], [3, 4, 5, 36], [32], [31, 33]])
def test_add_run__a_completion_in_pieces__leaves_its_tops(capture: Capture, cuts: list[int]) -> None:
    (whole,), states = make_states([50]), States(capture, 2, longest=64)
    for first, last in zip([0, *cuts], [*cuts, 50], strict=True):
        states.add_run(3, whole[first:last])
    states.finish(3)
    assert_tops(states.pop_tops(3), expect(whole, capture))


def test_drop__request_that_starts_again__forgets_its_first_rows() -> None:
    capture = Capture(window=4, top_k=5)
    (whole,), states = make_states([9]), States(capture, 1, longest=64)
    states.add_run(0, whole[2:9])
    states.drop(0)
    states.add_run(0, whole)
    states.finish(0)
    assert_tops(states.pop_tops(0), expect(whole, capture))


def test_finish__request_without_states__has_no_tops() -> None:
    states = States(Capture(window=4, top_k=5), 1, longest=64)
    states.finish(0)
    assert states.pop_tops(0) == []


def test_held__more_requests_than_places__grows_and_is_reused() -> None:
    """Preempted requests keep unfinished windows, so there may be more windows than running requests.

    No other case allocates more room.
    """
    states, (whole,) = States(Capture(window=4, top_k=5), 2, longest=64), make_states([3])
    for key in range(3):
        states.add_each([key], whole[:1])
    assert states._held is not None
    assert len(states._held) == 4
    for key in range(3):
        states.finish(key)
    for key in range(3, 7):
        states.add_each([key], whole[:1])
    assert len(states._held) == 4
