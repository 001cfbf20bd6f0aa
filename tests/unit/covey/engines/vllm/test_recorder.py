"""The recorder works with a runner that steps as vLLM's does: parts of prompts, preemption, padding, other workers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from covey.engines.vllm.recorder import KEY, STEPS, Recorder, ReplayClaim
from covey.sampling.noise import gumbel
from covey.toploc.topk import EVERYTHING, Capture

pytestmark = pytest.mark.unit

VOCABULARY, HIDDEN, PADDING = 11, 4, 3


def state_of(name: str, position: int) -> torch.Tensor:
    """Return the state after the token at a position of a sequence. It is exact in bfloat16."""
    return torch.tensor([len(name), position % 7, position // 7, position + 1], dtype=torch.float32)


@dataclass
class Runner:
    """Fake of the part of `GPUModelRunner` that the recorder uses."""

    max_num_reqs: int = 2
    max_model_len: int = 64
    model_config: Any = field(default_factory=lambda: SimpleNamespace(get_vocab_size=lambda: VOCABULARY))
    requests: dict[str, Any] = field(default_factory=dict)
    execute_model_state: Any = None
    sampler: Any = field(default_factory=SimpleNamespace)
    is_async: bool = False
    """Whether a sampled token is known only when the next one is sampled, as with asynchronous scheduling."""
    ends: tuple[int, ...] = ()
    """Tokens that end a completion."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Tokens that are not known yet, by request."""
    head: torch.Tensor = field(default_factory=lambda: torch.randn(VOCABULARY, HIDDEN, generator=torch.manual_seed(3)))

    def __post_init__(self) -> None:
        self.model = SimpleNamespace(compute_logits=lambda states: states @ self.head.T)

    def add(self, name: str, extra: dict[str, Any] | None) -> None:
        params = SimpleNamespace(extra_args=extra, stop_token_ids=list(self.ends))
        self.requests[name] = SimpleNamespace(sampling_params=params, output_token_ids=[])

    def execute(
        self, parts: Sequence[tuple[str, int, int]], finished: Sequence[str] = (), preempted: Sequence[str] = ()
    ) -> None:
        """Run one step, followed by rows of padding.

        `parts` has the name, the first computed position and the number of positions of each request.
        """
        names = [name for name, _, _ in parts]
        counts = [count for _, _, count in parts]
        rows = [state_of(name, first + i) for name, first, count in parts for i in range(count)]
        states = torch.stack([*rows, *[torch.full((HIDDEN,), 99.0)] * PADDING])
        ends = np.cumsum([0, *counts])
        last = states[torch.from_numpy(ends[1:] - 1)]
        computed = np.array([first for _, first, _ in parts])
        self.input_batch = SimpleNamespace(req_ids=names, num_computed_tokens_cpu=computed)
        self.query_start_loc = SimpleNamespace(np=ends)
        output = SimpleNamespace(
            num_scheduled_tokens=dict(zip(names, counts, strict=True)),
            finished_req_ids=set(finished),
            preempted_req_ids=set(preempted) or None,
        )
        self.execute_model_state = SimpleNamespace(
            scheduler_output=output,
            logits=self.model.compute_logits(last),
            hidden_states=states,
            sample_hidden_states=last,
        )

    def sample_tokens(self, tokens: Sequence[int | None]) -> Any:
        """Append the tokens. None means a part of a prompt, whose token is discarded."""
        chosen = torch.tensor([token or 0 for token in tokens])
        self.sampler.logprobs = self.execute_model_state.logits.log_softmax(dim=-1).gather(1, chosen[:, None])[:, 0]
        self.execute_model_state = None
        names = self.input_batch.req_ids
        self.discard_request_mask = SimpleNamespace(np=np.array([token is None for token in tokens]))
        for name, token in zip(names, tokens, strict=True):
            known = self.requests[name].output_token_ids
            if self.is_async and known:
                known[-1] = self.unknown.get(name, known[-1])
            if token is not None:
                self.unknown[name] = token
                known.append(-1 if self.is_async else token)
        return SimpleNamespace(req_ids=names)


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def make(is_first: bool = True, **values: Any) -> tuple[Runner, Recorder]:
    runner = Runner(**values)
    return runner, Recorder(runner, runner.sampler, is_first)


def expect_logprob(runner: Runner, name: str, position: int, token: int) -> float:
    logits = (runner.head.double() @ state_of(name, position).double()).numpy()
    return float(logits[token] - np.log(np.exp(logits).sum()))


def get_states(taken: Any) -> list[list[float]]:
    """Return the states of requests that were captured with `EVERYTHING`."""
    bits = taken["bits"].reshape(-1, HIDDEN).astype(np.uint32) << 16
    return bits.view(np.float32).tolist()


def test_decode__parts_of_a_prompt_a_preemption_and_rows_that_move__each_position_counts_once(is_async: bool) -> None:
    runner, recorder = make(is_async=is_async)
    recorder.begin(EVERYTHING, 1.0)
    runner.add("a", {KEY: 0})
    runner.add("bb", {KEY: 1})
    steps: list[tuple[list[tuple[str, int, int]], list[int | None], list[str], list[str]]] = [
        ([("a", 0, 3), ("bb", 0, 2)], [None, 5], [], []),  # the prompt of "a" has 5 tokens
        ([("a", 3, 2), ("bb", 2, 1)], [7, 6], [], []),
        ([("bb", 3, 1), ("a", 5, 1)], [1, 8], [], []),
        ([("a", 0, 4)], [None], ["bb"], ["a"]),  # 5 tokens of the prompt and 2 sampled ones are computed again
        ([("a", 4, 3)], [9], [], []),
    ]
    for parts, tokens, finished, preempted in steps:
        runner.execute(parts, finished, preempted)
        runner.sample_tokens(tokens)
    taken = recorder.take(0, 2)
    rows = [("a", 4, 7), ("a", 5, 8), ("a", 6, 9), ("bb", 1, 5), ("bb", 2, 6), ("bb", 3, 1)]
    np.testing.assert_allclose(taken["logprobs"], [expect_logprob(runner, *row) for row in rows], rtol=1e-5)
    assert get_states(taken) == [state_of(name, position).tolist() for name, position, _ in rows]
    assert (taken["preempted"].tolist(), taken["margins"].tolist()) == ([1], [])


def test_decode__more_steps_than_are_copied_together__keep_their_order(is_async: bool) -> None:
    runner, recorder = make(is_async=is_async)
    recorder.begin(None, 1.0)
    for key, name in enumerate(["a", "bb"]):
        runner.add(name, {KEY: key})
    for t in range(STEPS + 5):
        runner.execute([("a", t, 1), ("bb", t, 1)])
        runner.sample_tokens([t % VOCABULARY, 3])
    rows = [(name, t) for name in ("a", "bb") for t in range(STEPS + 5)]
    expected = [expect_logprob(runner, name, t, t % VOCABULARY if name == "a" else 3) for name, t in rows]
    np.testing.assert_allclose(recorder.take(0, 2)["logprobs"], expected, rtol=1e-4)


def test_decode__requests_that_are_not_ours__leave_no_trace(is_async: bool) -> None:
    runner, recorder = make(is_async=is_async)
    recorder.begin(EVERYTHING, 1.0)
    runner.add("x", None)
    runner.add("a", {KEY: 0})
    runner.execute([("x", 0, 2), ("a", 0, 1)])
    runner.sample_tokens([3, 4])
    taken = recorder.take(0, 1)
    assert get_states(taken) == [state_of("a", 0).tolist()]
    assert taken["logprobs"] == pytest.approx(expect_logprob(runner, "a", 0, 4), rel=1e-5)


def test_decode__token_out_of_order__ends_the_process() -> None:
    """A state at a wrong position would be a false proof."""
    runner, recorder = make()
    recorder.begin(None, 1.0)
    runner.add("a", {KEY: 0})
    runner.requests["a"].output_token_ids.append(2)
    runner.execute([("a", 3, 1)])
    with pytest.raises(RuntimeError, match="token 1 of a request, but token 0 was expected"):
        runner.sample_tokens([4])


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_decode__step_after_the_end__is_not_recorded(tokens: int) -> None:
    """With asynchronous scheduling the end of "a" is not known when its next step is scheduled, but before that of
    "bb". Windows of 2 tokens are full, or not, when the step comes.
    """
    runner, recorder = make(is_async=True, ends=(1,))
    recorder.begin(Capture(window=2, top_k=8), 1.0)
    runner.add("a", {KEY: 0})
    runner.add("bb", {KEY: 1})
    for t in range(tokens + 1):
        runner.execute([("a", t, 1), ("bb", t, 1)])
        runner.sample_tokens([1 if t == tokens - 1 else 5, 6])
    first = recorder.take(0, 1)
    runner.execute([("bb", tokens + 1, 1)], finished=["a"])
    runner.sample_tokens([7])
    second = recorder.take(1, 1)
    expected = [expect_logprob(runner, "a", t, 1 if t == tokens - 1 else 5) for t in range(tokens)]
    np.testing.assert_allclose(first["logprobs"], expected, rtol=1e-4)
    assert get_states(first) == [state_of("a", t).tolist() for t in range(tokens)]
    assert len(second["logprobs"]) == tokens + 2
    assert get_states(second) == [state_of("bb", t).tolist() for t in range(tokens + 2)]


def test_decode__previous_token_that_is_still_unknown__ends_the_process() -> None:
    """The recorder could not tell whether the request has ended."""
    runner, recorder = make(is_async=True, ends=(1,))
    recorder.begin(None, 1.0)
    runner.add("a", {KEY: 0})
    runner.execute([("a", 0, 1)])
    runner.sample_tokens([4])
    runner.unknown.clear()
    runner.execute([("a", 1, 1)])
    with pytest.raises(RuntimeError, match="did not report the previous token"):
        runner.sample_tokens([4])


CLAIMS = [ReplayClaim(first=4, tokens=[7, 8, 9], seed=5), ReplayClaim(first=0, tokens=[1, 2, 3, 4, 10], seed=2**63 - 1)]


def expect_replay(
    runner: Runner, claims: Sequence[tuple[str, ReplayClaim]], temperature: float
) -> tuple[list, list, list]:
    logprobs, margins, states = [], [], []
    for name, claim in claims:
        for t, token in enumerate(claim.tokens):
            position = claim.first + t
            logits = (runner.head @ state_of(name, position)).numpy()
            scores = logits / temperature + gumbel(np.array([claim.seed], np.uint64), np.array([t], np.uint32), 11)[0]
            logprobs.append(expect_logprob(runner, name, position, token))
            margins.append(scores.max() - scores[token])
            states.append(state_of(name, position).tolist())
    return logprobs, margins, states


@pytest.mark.parametrize(
    "steps",
    [
        [[("a", 0, 7), ("bb", 0, 5)]],  # all at once
        [[("a", 0, 2)], [("a", 2, 3), ("bb", 0, 1)], [("bb", 1, 4), ("a", 5, 2)]],  # in parts
        [[("a", 0, 6), ("bb", 0, 2)], [("bb", 0, 5)], [("a", 0, 3)], [("a", 3, 4)]],  # again after a preemption
    ],
)
def test_replay__any_parts__scores_each_claimed_token_once(
    steps: list[list[tuple[str, int, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.engines.vllm.recorder.VLLM_LOGITS", 3 * VOCABULARY)
    runner, recorder = make()
    recorder.begin(EVERYTHING, 0.5, CLAIMS)
    runner.add("a", {KEY: 0})
    runner.add("bb", {KEY: 1})
    for parts in steps:
        runner.execute(parts)
        runner.sample_tokens([None] * len(parts))
    taken = recorder.take(0, 2)
    logprobs, margins, states = expect_replay(runner, list(zip(["a", "bb"], CLAIMS, strict=True)), 0.5)
    np.testing.assert_allclose(taken["logprobs"], logprobs, rtol=1e-4)
    np.testing.assert_allclose(taken["margins"], margins, atol=1e-4)
    assert get_states(taken) == states
    assert recorder.take_missed() == []


def test_replay__rows_read_from_the_cache__are_missed_and_run_again() -> None:
    runner, recorder = make()
    recorder.begin(EVERYTHING, 0.5, CLAIMS)
    runner.add("a", {KEY: 0})
    runner.add("bb", {KEY: 1})
    runner.execute([("a", 0, 7), ("bb", 0, 2)])
    runner.sample_tokens([1, None])
    runner.execute([("bb", 4, 1)], preempted=["bb"])  # rows 2 and 3 are not computed
    runner.sample_tokens([1])
    assert recorder.take_missed() == [1]
    runner.add("bb again", {KEY: 1})
    runner.execute([("bb again", 0, 5)], finished=["bb"])
    runner.sample_tokens([1])
    taken = recorder.take(0, 2)
    logprobs, _, states = expect_replay(runner, list(zip(["a", "bb again"], CLAIMS, strict=True)), 0.5)
    np.testing.assert_allclose(taken["logprobs"], logprobs, rtol=1e-4)
    assert get_states(taken) == states


def count_rows(runner: Runner, sizes: list[int]) -> None:
    compute = runner.model.compute_logits

    def compute_logits(states: torch.Tensor) -> torch.Tensor:
        sizes.append(len(states))
        return compute(states)

    runner.model.compute_logits = compute_logits


@pytest.mark.parametrize("claims", [(), CLAIMS])
def test_record__worker_that_does_not_answer__computes_the_same_logits_and_keeps_nothing(
    claims: Sequence[ReplayClaim],
) -> None:
    """All workers compute logits together, so each must compute the same number of products of the same sizes."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for is_first in (True, False):
        runner, recorder = make(is_first)
        count_rows(runner, sizes[is_first])
        recorder.begin(EVERYTHING, 0.5, claims)
        runner.add("a", {KEY: 0})
        for first, count, token in ((0, 5, None), (5, 2, 4)):
            runner.execute([("a", first, count)])
            runner.sample_tokens([token])
        assert recorder._states is not None
        assert (recorder._states._held is None) != is_first
    assert sizes[True] == sizes[False]
    assert len(sizes[True]) == (4 if claims else 2)


def test_take__another_call_still_runs__keeps_its_records(is_async: bool) -> None:
    """Two calls run concurrently, and the first is taken in the middle of the second."""
    runner, recorder = make(is_async=is_async)
    recorder.begin(EVERYTHING, 1.0)
    runner.add("a", {KEY: 0})
    runner.add("bb", {KEY: 1})
    runner.execute([("a", 0, 2), ("bb", 0, 3)])
    recorder.sample_tokens([4, 5])
    runner.execute([("bb", 3, 1)], preempted=["a"])
    recorder.sample_tokens([6])
    first = recorder.take(0, 1)
    runner.execute([("bb", 4, 1)], finished=["a"])
    recorder.sample_tokens([7])
    second = recorder.take(1, 1)
    assert first["logprobs"].tolist() == pytest.approx([expect_logprob(runner, "a", 1, 4)], abs=1e-5)
    expected = [expect_logprob(runner, "bb", position, token) for position, token in ((2, 5), (3, 6), (4, 7))]
    assert second["logprobs"].tolist() == pytest.approx(expected, abs=1e-5)
    assert get_states(first) == [state_of("a", 1).tolist()]
    assert get_states(second) == [state_of("bb", position).tolist() for position in (2, 3, 4)]
    assert (first["preempted"].tolist(), second["preempted"].tolist()) == ([1], [0])
    with pytest.raises(KeyError):
        recorder.take(0, 1)
