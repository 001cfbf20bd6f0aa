"""The arithmetic of the engine benchmark: what is asked of the sides, what becomes of their times."""

import io
import json
import os
import time
from typing import Any

import pytest

from benchmarks.engines import vllm_peer
from benchmarks.engines.generation_speed import BATCH, CASES, Timing, build_claims, build_requests, find_failures
from benchmarks.engines.generation_speed import _time as time_call
from benchmarks.engines.vllm_peer import VllmPeer
from benchmarks.harness import Measurement
from covey.engines.base import Completion
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


def make_timing(*runs: tuple[float, float, float]) -> Timing:
    timing = Timing()
    for tokens, wall, cpu in runs:
        timing.add({"tokens": tokens, "wall": wall, "cpu": cpu})
    return timing


def test_build_requests__any_case_and_round__groups_of_siblings_with_prompts_of_their_own() -> None:
    for case in CASES:
        rounds = [build_requests(case, round_) for round_ in range(-1, 4)]
        prompts = [request.prompt for requests in rounds for request in requests]
        assert [len(requests) for requests in rounds] == [BATCH] * 5 == [64] * 5
        assert len(set(prompts)) == 5 * 8
        assert {len(prompt) for prompt in prompts} == {40}
        assert {prompt[:32] for prompt in prompts[:64]}.isdisjoint(prompt[:32] for prompt in prompts[64:])  # a block
        seeds = {request.seed for requests in rounds for request in requests}
        assert len(seeds) == 5 * 64
        assert all(0 <= seed < 2**63 for seed in seeds)
        assert all(0 <= token < 259 for prompt in prompts for token in prompt)
        assert {request.max_tokens for requests in rounds for request in requests} == {case.tokens}


def test_build_claims__rates_of_the_fastest_runs__are_divided_side_by_side() -> None:
    """By hand: plain 8000 / 2, sampler 8000 / 1.6, proofs 8000 / 2.5; beside the reference 8000 / 2 over 6000 / 3."""
    timings = {
        "with_sampler": make_timing((8000, 1.6, 2.0), (8000, 4.0, 1.2)),
        "with_proofs": make_timing((8000, 5.0, 3.0), (8000, 2.5, 3.2)),
        "plain": make_timing((8000, 2.0, 1.6), (8000, 2.1, 2.0)),
        "with_proofs_beside_hf": make_timing((8000, 2.0, 2.0)),
        "hf": make_timing((6000, 3.0, 3.0)),
    }
    claims = {claim.name: claim for claim in build_claims(CASES[1], timings)}
    assert claims["with_sampler_over_plain.v32000"].value == pytest.approx(1.25)
    assert claims["with_proofs_over_plain.v32000"].value == pytest.approx(0.8)
    assert claims["vllm_over_hf.v32000"].value == pytest.approx(2.0)
    # Medians of 1.6 / 2.0 and 2.0 / 1.2, of 1.6 / 3.0 and 2.0 / 3.2; the last is 3.0 / 6000 over 2.0 / 8000.
    assert claims["with_sampler_over_plain_by_cpu.v32000"].value == pytest.approx((4 / 5 + 5 / 3) / 2)
    assert claims["with_proofs_over_plain_by_cpu.v32000"].value == pytest.approx((8 / 15 + 5 / 8) / 2)
    assert claims["vllm_over_hf_by_cpu.v32000"].value == pytest.approx(2.0)
    assert claims["tokens_per_second.with_proofs.v32000"].value == pytest.approx(3200)
    assert claims["cpu_per_token.with_sampler.v32000"].value == pytest.approx(200)
    assert [claims[f"{name}.v32000"].n for name in ("with_proofs_over_plain", "vllm_over_hf")] == [2, 1]
    assert len(claims) == 2 * 3 + 2 * 5


@pytest.mark.parametrize(
    ("name", "value", "count"),
    [
        ("with_sampler_over_plain", 0.9, 0),
        ("with_proofs_over_plain.v152000", 0.899, 1),
        ("with_proofs_over_plain", float("nan"), 1),
        ("with_sampler_over_plain_by_cpu", 0.8, 1),
        ("vllm_over_hf", 0.2, 0),
    ],
)
def test_find_failures__a_ratio__has_its_bar(name: str, value: float, count: int) -> None:
    assert len(find_failures([Measurement(name=name, value=value, unit="ratio", n=3)], [])) == count


def test_find_failures__what_was_not_measured__is_named() -> None:
    names = ("with_sampler_over_plain", "with_proofs_over_plain", "vllm_over_hf")
    claims = [Measurement(name=name, value=1.0, unit="ratio", n=21) for name in names]
    assert find_failures(claims, CASES[:1]) == []
    assert find_failures(claims[:2], CASES[:1]) == ["vllm_over_hf was not measured"]
    assert [text.partition(" ")[0] for text in find_failures(claims, CASES[:2])] == [f"{each}.v32000" for each in names]
    few = [Measurement(name=name, value=1.0, unit="ratio", n=1) for name in names]
    assert find_failures(few, CASES[:1]) == [f"{name} has an n of 1 only" for name in names]
    assert find_failures(few, CASES[:1], rounds=1) == []


def test_time__a_call_beside_a_living_process__counts_tokens_and_what_both_spent() -> None:
    """The other process is this one, so that its time counts twice."""

    def call() -> list[Completion]:
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        return [Completion(policy_version=0, tokens=(5, 6, 1), logprobs=(0.0,) * 3, tops=(), finished=True)] * 2

    completions, alone = time_call(call, None)
    _, beside = time_call(call, os.getpid())
    assert (len(completions), alone["tokens"]) == (2, 6.0)
    assert alone["wall"] >= 0.05
    assert 0.05 <= alone["cpu"] < 0.09
    assert 0.09 <= beside["cpu"] < 0.18


def test_peer__process_that_ends__says_where_to_look(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_peer.sys, "executable", "/bin/false")
    monkeypatch.setattr(vllm_peer, "LOG", tmp_path / "peer.log")
    with pytest.raises(OperatorError, match=r"peer\.log") as caught:
        VllmPeer(tmp_path, "float32", 64)
    assert caught.value.code == "engine_died"


def test_answer__a_line__is_json() -> None:
    line = io.StringIO()
    vllm_peer._answer(line, {"wall": 0.5})
    assert json.loads(line.getvalue()) == {"wall": 0.5}
    assert line.getvalue().endswith("}\n")
