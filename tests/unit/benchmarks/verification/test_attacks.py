"""What each attack changes, with an engine whose output shows how it was called."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.verification import attacks
from benchmarks.verification.attacks import (
    GROUP_SIZE,
    GROUPS,
    OBSERVED_ATTACKS,
    SUBMISSION,
    SUBMISSION_ATTACKS,
    WINDOW_ATTACKS,
    AttackInput,
    SimulatedWorker,
    build_params,
)
from benchmarks.verification.cheating_engines import TopP
from covey.engines.base import Completion, Engine, GenerationRequest, Replay, ReplayRequest
from covey.toploc.topk import Capture

pytestmark = pytest.mark.unit

LENGTH, HIDDEN = 40, 4
REPLAYED = -7.0
"""Log-probability of every replayed token."""


@dataclass
class EchoEngine:
    """Engine that generates the seed's last byte, with a log-probability that depends on policy and seed."""

    policy: str = ""
    policy_version: int = 0
    end_tokens: frozenset[int] = frozenset({1})
    calls: list[tuple[str, str, float]] = field(default_factory=list)

    def load_policy(self, folder: Path, version: int) -> None:
        assert version == 0
        self.policy = folder.name

    def generate(
        self, requests: Sequence[GenerationRequest], *, temperature: float, capture: Capture
    ) -> list[Completion]:
        self.calls.append(("generate", self.policy, temperature))
        return [
            Completion(
                policy_version=0, tokens=(3 + each.seed % 256,) * LENGTH, logprobs=(-1.0 - each.seed % 5,) * LENGTH,
                tops=(), finished=False,
            )
            for each in requests
        ]  # fmt: skip

    def replay(
        self, claims: Sequence[ReplayRequest], *, temperature: float, capture: Capture | None = None
    ) -> list[Replay]:
        """Give a forged end at place 5 the smallest margin."""
        self.calls.append(("replay", self.policy, temperature))
        return [
            Replay(
                tops=(),
                logprobs=np.full(len(each.tokens), REPLAYED, np.float32),
                margins=np.full(len(each.tokens), abs(len(each.tokens) - 6) + 1.0, np.float32),
            )
            for each in claims
        ]


@pytest.fixture
def inputs(tmp_path: Path) -> AttackInput:
    """Inputs of two submissions of honest work."""
    engine: Any = EchoEngine()
    worker = SimulatedWorker(folder=tmp_path, params=build_params("float32"), build_worker=lambda: engine)
    requests = [GenerationRequest(prompt=(2, 70, 71, 72), seed=i, max_tokens=LENGTH) for i in range(2 * SUBMISSION)]
    honest = worker.generate("true", requests)
    states = [np.full((LENGTH, HIDDEN), i, np.uint16) for i in range(len(requests))]
    return AttackInput(worker=worker, requests=requests, honest=honest, states=states, rng=random.Random(0))


def list_calls(inputs: AttackInput) -> list[tuple[str, str, float]]:
    engine: Any = inputs.worker.build_worker()
    return list(engine.calls[1:])  # the first call made the honest work


def find_changed(inputs: AttackInput, completions: Sequence[Completion]) -> list[int]:
    pairs = zip(inputs.honest, completions, strict=True)
    return [i for i, (honest, other) in enumerate(pairs) if other.tokens != honest.tokens]


@pytest.mark.parametrize("name", ["other_model", "int8", "int4", "perturbed_1pct", "stale_lr1e-5"])
def test_policy_attack__name__is_that_of_the_policy_that_generates(inputs: AttackInput, name: str) -> None:
    WINDOW_ATTACKS[name](inputs)
    assert list_calls(inputs) == [("generate", name, 1.0)]


def test_other_seed__every_completion__has_the_next_seed(inputs: AttackInput) -> None:
    completions = WINDOW_ATTACKS["other_seed"](inputs)
    assert [each.tokens[0] for each in completions] == [3 + i + 1 for i in range(2 * SUBMISSION)]


def test_prompt_changed__every_prompt__differs_in_one_byte(
    inputs: AttackInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[tuple[int, ...]] = []

    def generate(_: SimulatedWorker, policy: str, requests: Sequence[GenerationRequest]) -> list[Completion]:
        assert policy == "true"
        prompts.extend(each.prompt for each in requests)
        return []

    monkeypatch.setattr(SimulatedWorker, "generate", generate)
    WINDOW_ATTACKS["prompt_changed"](inputs)
    for prompt in prompts:
        assert sum(a != b for a, b in zip(prompt, (2, 70, 71, 72), strict=True)) == 1
        assert prompt[0] == 2
        assert all(3 <= token < 259 for token in prompt[1:])


def test_swapped_token__every_window__differs_in_one_token_that_the_true_policy_proves(inputs: AttackInput) -> None:
    completions = WINDOW_ATTACKS["swapped_token"](inputs)
    for honest, other in zip(inputs.honest, completions, strict=True):
        differing = [i for i in range(LENGTH) if honest.tokens[i] != other.tokens[i]]
        assert [i // 32 for i in differing] == [0, 1]
        assert set(other.logprobs) == {REPLAYED}
    assert list_calls(inputs) == [("replay", "true", 1.0)]


def test_swapped_token__finished_completion__keeps_its_end_token(inputs: AttackInput) -> None:
    ended = [replace(each, tokens=(*each.tokens[:-1], 1), finished=True) for each in inputs.honest]
    completions = WINDOW_ATTACKS["swapped_token"](replace(inputs, honest=ended))
    assert all(each.tokens[-1] == 1 and each.finished for each in completions)


def test_temperature_07__generation__has_it(inputs: AttackInput) -> None:
    SUBMISSION_ATTACKS["temperature_07"](inputs)
    assert list_calls(inputs) == [("generate", "true", 0.7)]


def test_best_of_4__four_seeds__keeps_the_likeliest(inputs: AttackInput) -> None:
    completions = SUBMISSION_ATTACKS["best_of_4"](inputs)
    for i, completion in enumerate(completions):
        # Seeds i to i + 3 have -1 - seed % 5.
        assert completion.logprobs[0] == max(-1.0 - seed % 5 for seed in range(i, i + 4))


def test_small_writes_large_proves__policies__are_those(inputs: AttackInput) -> None:
    SUBMISSION_ATTACKS["small_writes_large_proves"](inputs)
    assert list_calls(inputs) == [("generate", "small", 1.0), ("replay", "true", 1.0)]


def test_truncated__each_submission__has_one_completion_cut_with_proofs_of_its_states(inputs: AttackInput) -> None:
    completions = SUBMISSION_ATTACKS["truncated"](inputs)
    changed = find_changed(inputs, completions)
    assert [i // SUBMISSION for i in changed] == [0, 1]
    for i in changed:
        cut, honest = completions[i], inputs.honest[i]
        assert honest.tokens[: len(cut.tokens)] == cut.tokens
        assert (len(cut.logprobs), cut.finished) == (len(cut.tokens), False)
        assert len(cut.tops) == -(-len(cut.tokens) // 32)
        assert set(cut.tops[0].bits.tolist()) == {i}


def test_false_eos__every_completion__ends_early_with_a_forged_token(inputs: AttackInput) -> None:
    completions = SUBMISSION_ATTACKS["false_eos"](inputs)
    assert find_changed(inputs, completions) == list(range(2 * SUBMISSION))
    for honest, other in zip(inputs.honest, completions, strict=True):
        length = len(other.tokens)
        assert (other.tokens[-1], other.finished) == (1, True)
        assert other.tokens[:-1] == honest.tokens[: length - 1]
        assert other.logprobs == (*honest.logprobs[: length - 1], REPLAYED)


def test_false_eos_once__each_submission__has_one(inputs: AttackInput) -> None:
    changed = find_changed(inputs, OBSERVED_ATTACKS["false_eos_once"](inputs))
    assert [i // SUBMISSION for i in changed] == [0, 1]


def test_false_eos_best_place__each_submission__ends_where_the_end_token_loses_by_least(inputs: AttackInput) -> None:
    completions = OBSERVED_ATTACKS["false_eos_best_place"](inputs)
    changed = find_changed(inputs, completions)
    assert [i // SUBMISSION for i in changed] == [0, 1]
    assert [len(completions[i].tokens) for i in changed] == [6, 6]


def test_take__fewer_requests__are_the_first_with_their_work(inputs: AttackInput) -> None:
    first = inputs.take(3, seed=5)
    assert (first.requests, first.honest) == (inputs.requests[:3], inputs.honest[:3])
    assert len(first.states) == 3
    assert first.rng.random() == random.Random(5).random()


def test_draw_requests__two_submissions__are_groups_with_one_prompt_and_own_seeds(inputs: AttackInput) -> None:
    requests = inputs.worker.draw_requests(2, seed=1)
    assert len(requests) == 2 * SUBMISSION
    groups = [requests[start : start + GROUP_SIZE] for start in range(0, len(requests), GROUP_SIZE)]
    assert len(groups) == 2 * GROUPS
    assert all(len({each.prompt for each in group}) == 1 for group in groups)
    assert all(17 <= len(each.prompt) <= 1 + 4 * 40 for each in requests)
    assert len({each.seed for each in requests}) == len(requests)
    assert requests == inputs.worker.draw_requests(2, seed=1)


def test_top_p_09__generation__samples_from_the_top_of_the_true_policy(
    inputs: AttackInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    class Recorded(TopP):
        def __init__(self, engine: Engine, *, share: float) -> None:
            super().__init__(engine, share=share)
            shares.append(share)

    monkeypatch.setattr(attacks, "TopP", Recorded)
    SUBMISSION_ATTACKS["top_p_09"](inputs)
    assert list_calls(inputs) == [("generate", "true", 1.0)]
    assert shares == [0.9]
