"""The benchmark of a GPU's use at a size that a CPU runs, with operations counted by hand."""

from pathlib import Path

import pytest
import torch

from benchmarks import results
from benchmarks.training import utilisation
from benchmarks.training.utilisation import (
    SIZES,
    build_measurements,
    build_model,
    build_update,
    choose_device,
    find_peak_flops,
)
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

FLOPS = 2_340_864
"""Operations of an update of the tiny size, by hand.

A layer has 2,368 parameters.  Queries, keys and values have 272 + 136 + 136 with their biases, the projection after
attention 256, the feed-forward network 3 x 16 x 32, and two norms 16 each.  Two layers and the last norm have
4,752, and the head 64 x 16.  There are four samples of 16 tokens, 3 of which belong to the prompt alone:
6 x 4,752 x 64 + 6 x 1,024 x 4 x 13 + 6 x 2 layers x 16 wide x 4 x 16^2."""


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return utilisation.main(options)


@pytest.mark.parametrize("extra", [[], ["--activation-checkpointing"]])
def test_main__tiny_on_a_cpu__writes_measurements_of_operations_by_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "--size", "tiny", "--peak-flops", "1e9", "--updates", "2", *extra) == 0
    (result,) = results.read(Path("build/bench/utilisation.json"))[1].values()
    measurements = {each.name: each for each in result.measurements}
    assert list(measurements) == ["utilisation", "tokens_per_s", "peak_memory_gb", "seconds_per_update"]
    assert {each.n for each in measurements.values()} == {2}
    seconds = measurements["seconds_per_update"].value
    assert measurements["utilisation"].value * seconds * 1e9 == pytest.approx(FLOPS)
    assert measurements["tokens_per_s"].value * seconds == pytest.approx(64)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], "no_gpu"),
        (["--device", "cuda"], "no_gpu"),
        (["--size", "tiny"], "unknown_peak"),
        (["--size", "tiny", "--peak-flops", "1e9", "--tokens", "50"], "odd_tokens"),
        (["--size", "tiny", "--peak-flops", "1e9", "--tokens", "0"], "odd_tokens"),
    ],
)
def test_main__run_that_is_impossible__prints_the_code_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], code: str
) -> None:
    assert run(monkeypatch, *options) == 1
    assert capsys.readouterr().err.startswith(code)


def test_choose_device__with_a_gpu__is_cuda_unless_another_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    devices = [choose_device(size, wanted) for size in ("tiny", "1.5b") for wanted in (None, "cuda:1", "cpu")]
    assert devices == ["cuda", "cuda:1", "cpu"] * 2


def test_find_peak_flops__name_of_cuda__must_be_known_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert find_peak_flops("cuda:1") == 989e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 PCIe")  # a slower variant
    with pytest.raises(OperatorError, match=r"unknown_peak.*H100 PCIe.*--peak-flops"):
        find_peak_flops("cuda")


def test_sizes__large__has_the_parameters_of_qwen_and_fills_its_update() -> None:
    workload = SIZES["1.5b"]
    assert sum(each.numel() for each in build_model(workload, "meta").parameters()) == 1_543_714_304  # Qwen2.5-1.5B's
    batch = build_update(workload, workload.tokens)
    assert [sample.fed for sample in batch.samples] == [1024] * 16
    assert len({sample.prompt for sample in batch.samples}) == 16


def test_build_measurements__three_updates__use_the_median() -> None:
    measurements = build_measurements([4.0, 2.0, 9.0], tokens=1000, flops=8e9, peak_flops=1e10, memory=5e9)
    assert [each.value for each in measurements] == [0.2, 250.0, 5.0, 4.0]
