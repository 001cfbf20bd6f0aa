"""The section on vLLM's rate with engines that are given: which sides are compared with which mode of the peer."""

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from benchmarks.engines.vllm_peer import VllmPeer
from benchmarks.gpu.section_rows import SectionRow
from benchmarks.gpu.section_run import SectionRun
from benchmarks.gpu.vllm_speed import draw_round, measure_generation, measure_replay
from covey.engines.base import Completion, GenerationRequest, Replay, ReplayRequest
from covey.engines.vllm.engine import VllmEngine

pytestmark = pytest.mark.unit

Rows = Callable[[], dict[str, SectionRow]]


class TokensPerMillisecond:
    """An engine that takes a millisecond for a call."""

    def generate(self, requests: Sequence[GenerationRequest], **_: Any) -> list[Completion]:
        time.sleep(0.001)
        return [
            Completion(policy_version=0, tokens=(5,) * each.max_tokens, logprobs=(), tops=(), finished=False)
            for each in requests
        ]

    def replay(self, claims: Sequence[ReplayRequest], **_: Any) -> list[Replay]:
        time.sleep(0.001)
        return []


class PeerOfModes:
    """A peer that makes 50 tokens per second with log-probabilities and 100 without."""

    def __init__(self) -> None:
        self.modes: list[str] = []

    def run(self, mode: str, prompts: list[tuple[int, ...]], limits: list[int]) -> dict[str, float]:
        self.modes.append(mode)
        return {"tokens": sum(limits), "wall": sum(limits) / (50 if mode == "plain" else 100)}


def test_measure_generation__both_modes_of_the_peer__are_compared(run: SectionRun, rows: Rows) -> None:
    engine, peer = cast(VllmEngine, TokensPerMillisecond()), PeerOfModes()
    measure_generation(run, engine, cast(VllmPeer, peer), "", 8, 4)
    assert peer.modes == ["plain_without_logprobs", "plain"] * 4  # the first two warm up
    found = {case: (row.peer_value, row.n, row.aim is not None) for case, row in rows().items()}
    assert found == {
        "0.6B, batch 8, sampler": (50, 3, True),
        "0.6B, batch 8, sampler and proofs": (50, 3, True),
        "0.6B, batch 8, sampler and proofs, peer without logprobs": (100, 3, False),
    }


def test_measure_generation__a_peer_that_did_not_start__leaves_our_rates(run: SectionRun, rows: Rows) -> None:
    measure_generation(run, cast(VllmEngine, TokensPerMillisecond()), None, "failed: no memory", 8, 4)
    assert {row.peer_value for row in rows().values()} == {None}
    assert {row.note for row in rows().values()} == {"failed: no memory"}
    assert all(0 < (row.value or 0) < 33_000 for row in rows().values())


def test_measure_replay__a_batch__has_its_rate(run: SectionRun, rows: Rows) -> None:
    measure_replay(run, cast(VllmEngine, TokensPerMillisecond()), 8, 4)
    assert 0 < (rows()["0.6B, replay"].value or 0) < 33_000


def test_draw_round__rounds_and_batches__share_no_prompt(run: SectionRun) -> None:
    prompts = [{each.prompt for each in draw_round(run, *given)} for given in ((8, 4, 0), (8, 4, 1), (16, 4, 0))]
    assert [len(each) for each in prompts] == [1, 1, 2]
    assert len(set.union(*prompts)) == 4
