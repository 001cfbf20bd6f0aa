"""Throughput, idle time and floating-point operations, against values worked out by hand."""

import sys
from pathlib import Path

import pytest
import torch

from covey.model.policy_files import load_model
from covey.model.tiny import tiny_folder
from covey.protocol.ids import GroupId, RolloutId, Step, TaskId
from trainer.algorithm.lora import add_adapters
from trainer.data.packing import PrefixTree, group
from trainer.data.samples import Sample
from trainer.monitoring.performance import ModelSize, build_performance, compute_flops, get_peak_memory, measure_model

pytestmark = pytest.mark.unit

REPORT = {
    "time/wait_for_batch": 6.0, "time/update": 3.0, "time/save": 1.0,
    "batch/tokens": 500, "batch/samples": 40, "perf/flops": 6e12,
}  # fmt: skip


def build_family(lengths: list[tuple[int, int]]) -> PrefixTree:
    """Build siblings with the given numbers of prompt and completion tokens. The last completion token is not fed."""
    samples = [
        Sample(
            id=RolloutId(task=TaskId(0), group=GroupId(0), sibling=i), policy_version=Step(0), prompt=(3,) * prompt,
            tokens=(4 + i,) * completion, reward=0.0, advantage=1.0, old=None,
        )
        for i, (prompt, completion) in enumerate(lengths)
    ]  # fmt: skip
    (family,) = group(samples, seq_len=100, crossover=1000, is_shared=True)
    return family


def test_build_performance__ten_seconds__by_hand() -> None:
    found = build_performance(REPORT, peak_flops=8e12)
    assert found == pytest.approx(
        {
            "time/step": 10.0, "trainer/idle_ratio": 0.6, "perf/tokens_per_second": 50.0,
            "perf/samples_per_second": 4.0, "perf/mfu": 0.25,
        }
    )  # fmt: skip


def test_build_performance__peak_unknown__has_no_utilisation() -> None:
    assert "perf/mfu" not in build_performance(REPORT, peak_flops=None)


def test_build_performance__no_time_passed__is_zeros() -> None:
    still = REPORT | {name: 0.0 for name in REPORT if name.startswith("time/")}
    assert set(build_performance(still, peak_flops=1e12).values()) == {0.0}


def test_build_performance__four_devices__each_has_a_quarter_of_the_use() -> None:
    one, four = (build_performance(REPORT, peak_flops=1e12, devices=count)["perf/mfu"] for count in (1, 4))
    assert one == REPORT["perf/flops"] / (REPORT["time/update"] * 1e12)
    assert four == pytest.approx(one / 4)


SIZE = ModelSize(token=6000, prediction=600, layers=2, width=8)
"""Size of a model with 1000 parameters in the layers and 100 in the head, all of which are trained."""


def test_compute_flops__two_sequences__by_hand() -> None:
    families = [build_family([(4, 7)]), build_family([(1, 20)])]
    expected = 6 * 1000 * 30 + 6 * 100 * 27 + 6 * 2 * 8 * (100 + 400)
    assert compute_flops(families, SIZE, predictions=27) == expected
    assert compute_flops([], SIZE, predictions=0) == 0.0


def test_compute_flops__siblings_with_one_prompt__do_not_attend_to_each_other() -> None:
    """Two siblings feed 3 + 3 tokens each and predict 4 each. They cost two sequences of 6, minus one prompt of 3."""
    found = compute_flops([build_family([(3, 4), (3, 4)])], SIZE, predictions=8)
    assert found == 6 * 1000 * 9 + 6 * 100 * 8 + 6 * 2 * 8 * (36 + 36 - 9)


HEAD = 259 * 96


def test_measure_model__shipped_model__head_once_and_embedding_not() -> None:
    """Head and embedding are tied, so their single matrix counts as the head, and every parameter counts once."""
    model = load_model(tiny_folder(), "float32")
    count = sum(p.numel() for p in model.parameters())
    tied = measure_model(model)
    assert tied == ModelSize(token=6 * (count - HEAD), prediction=6 * HEAD, layers=2, width=96)
    head = model.get_output_embeddings()
    head.weight = type(head.weight)(head.weight.detach().clone())
    assert measure_model(model) == tied  # untied, the embedding is another 259 x 96, which is left out


def test_measure_model__adapters__frozen_weights_have_no_gradient_of_their_own() -> None:
    """Adapters of rank 2 at the queries of both layers are 2 x 96 down and, with heads 96 wide in all, 96 x 2 up."""
    model = load_model(tiny_folder(), "float32")
    count = sum(p.numel() for p in model.parameters())
    add_adapters(model, rank=2, alpha=4.0, targets=("q_proj",), dtype=torch.float32)
    adapters = 2 * (2 * 96 + 96 * 2)
    assert measure_model(model) == ModelSize(
        token=4 * (count - HEAD) + 6 * adapters, prediction=4 * HEAD, layers=2, width=96
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own figure is Linux's")
def test_get_peak_memory__cpu__is_what_the_kernel_says() -> None:
    found = get_peak_memory("cpu")
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    assert found == pytest.approx(int(line.split()[1]) * 1024, rel=0.02)
