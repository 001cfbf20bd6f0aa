"""The arithmetic of the benchmark of generation: requests of the sides, and measurements from their times."""

import os
import time

import pytest

from benchmarks.engines.generation_speed import (
    BARS,
    BATCH,
    RATIOS,
    WORKLOADS,
    EngineTimes,
    build_measurements,
    build_requests,
    find_failures,
)
from benchmarks.engines.generation_speed import _time as time_call
from benchmarks.measurement import Measurement, set_bars
from covey.engines.base import Completion

pytestmark = pytest.mark.unit


def make_times(*runs: tuple[float, float, float]) -> EngineTimes:
    times = EngineTimes()
    for tokens, wall, cpu in runs:
        times.add({"tokens": tokens, "wall": wall, "cpu": cpu})
    return times


def test_build_requests__any_workload_and_round__groups_of_siblings_with_prompts_of_their_own() -> None:
    for workload in WORKLOADS:
        rounds = [build_requests(workload, round_) for round_ in range(-1, 4)]
        prompts = [request.prompt for requests in rounds for request in requests]
        assert [len(requests) for requests in rounds] == [BATCH] * 5 == [64] * 5
        assert len(set(prompts)) == 5 * 8
        assert {len(prompt) for prompt in prompts} == {40}
        assert {prompt[:32] for prompt in prompts[:64]}.isdisjoint(prompt[:32] for prompt in prompts[64:])  # a block
        seeds = {request.seed for requests in rounds for request in requests}
        assert len(seeds) == 5 * 64
        assert all(0 <= seed < 2**63 for seed in seeds)
        assert all(0 <= token < 259 for prompt in prompts for token in prompt)
        assert {request.max_tokens for requests in rounds for request in requests} == {workload.tokens}


def test_build_measurements__rates_of_the_fastest_runs__are_divided_side_by_side() -> None:
    """By hand: plain 8000 / 2, sampler 8000 / 1.6, proofs 8000 / 2.5; against Hugging Face 8000 / 2 over 6000 / 3."""
    times = {
        "with_sampler": make_times((8000, 1.6, 2.0), (8000, 4.0, 1.2)),
        "with_proofs": make_times((8000, 5.0, 3.0), (8000, 2.5, 3.2)),
        "plain": make_times((8000, 2.0, 1.6), (8000, 2.1, 2.0)),
        "with_proofs_beside_hf": make_times((8000, 2.0, 2.0)),
        "hf": make_times((6000, 3.0, 3.0)),
    }
    measurements = {each.name: each for each in build_measurements(WORKLOADS[1], times)}
    assert measurements["with_sampler_over_plain.v32000"].value == pytest.approx(1.25)
    assert measurements["with_proofs_over_plain.v32000"].value == pytest.approx(0.8)
    assert measurements["vllm_over_hf.v32000"].value == pytest.approx(2.0)
    # Medians of 1.6 / 2.0 and 2.0 / 1.2, of 1.6 / 3.0 and 2.0 / 3.2; the last is 3.0 / 6000 over 2.0 / 8000.
    assert measurements["with_sampler_over_plain_by_cpu.v32000"].value == pytest.approx((4 / 5 + 5 / 3) / 2)
    assert measurements["with_proofs_over_plain_by_cpu.v32000"].value == pytest.approx((8 / 15 + 5 / 8) / 2)
    assert measurements["vllm_over_hf_by_cpu.v32000"].value == pytest.approx(2.0)
    assert measurements["tokens_per_second.with_proofs.v32000"].value == pytest.approx(3200)
    assert measurements["cpu_per_token.with_sampler.v32000"].value == pytest.approx(200)
    assert [measurements[f"{name}.v32000"].n for name in ("with_proofs_over_plain", "vllm_over_hf")] == [2, 1]
    assert len(measurements) == 2 * 3 + 2 * 5


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
def test_find_failures__ratio_below_its_bar__is_named(name: str, value: float, count: int) -> None:
    measurements = set_bars([Measurement(name=name, value=value, unit="ratio", n=3)], BARS)
    assert len(find_failures(measurements, [])) == count


def test_find_failures__ratios_that_are_absent_or_of_few_rounds__are_named() -> None:
    measurements = [Measurement(name=name, value=1.0, unit="ratio", n=21) for name in RATIOS]
    assert find_failures(measurements, WORKLOADS[:1]) == []
    assert find_failures(measurements[:2], WORKLOADS[:1]) == ["vllm_over_hf was not measured"]
    assert [text.partition(" ")[0] for text in find_failures(measurements, WORKLOADS[:2])] == [
        f"{each}.v32000" for each in RATIOS
    ]
    few = [Measurement(name=name, value=1.0, unit="ratio", n=1) for name in RATIOS]
    assert find_failures(few, WORKLOADS[:1]) == [f"{name} has an n of 1, less than 21" for name in RATIOS]
    assert find_failures(few, WORKLOADS[:1], rounds=1) == []


def test_time__call_with_a_second_process__counts_tokens_and_the_cpu_time_of_both() -> None:
    """The second process is this one, so that its time counts twice."""
    used: list[float] = []

    def call() -> list[Completion]:
        started = time.process_time()
        while time.process_time() < started + 0.05:
            pass
        used.append(time.process_time() - started)
        return [Completion(policy_version=0, tokens=(5, 6, 1), logprobs=(0.0,) * 3, tops=(), finished=True)] * 2

    completions, alone = time_call(call, None)
    _, together = time_call(call, os.getpid())
    assert (len(completions), alone["tokens"]) == (2, 6.0)
    assert alone["wall"] >= 0.05
    assert used[0] <= alone["cpu"] < used[0] + 0.05
    assert 2 * used[1] - 0.02 <= together["cpu"] < 2 * used[1] + 0.1
