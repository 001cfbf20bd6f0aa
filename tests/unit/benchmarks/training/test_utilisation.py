"""The benchmark of a GPU's use, at a size that a CPU runs; operations by hand."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.training import utilisation
from benchmarks.training.utilisation import (
    SIZES,
    build_claims,
    build_model,
    build_update,
    choose_device,
    find_peak_flops,
)
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

FLOPS = 2_340_864
"""Of an update of the tiny size, by hand.  A layer has 2,368 values: 272 + 136 + 136 of queries, keys and values with
their biases, 256 behind attention, 3 x 16 x 32 and two norms of 16; with the last norm two have 4,752, the head
64 x 16.  Four samples of 16 tokens, of which 3 belong to the prompt alone:
6 x 4,752 x 64 + 6 x 1,024 x 4 x 13 + 6 x 2 layers x 16 wide x 4 x 16^2."""


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return utilisation.main(options)


@pytest.mark.parametrize("extra", [[], ["--activation-checkpointing"]])
def test_main__tiny_on_a_cpu__writes_the_claims_of_operations_by_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "--size", "tiny", "--peak-flops", "1e9", "--updates", "2", *extra) == 0
    claims = {each["name"]: each for each in json.loads(Path("build/bench/utilisation.json").read_text())["claims"]}
    assert list(claims) == ["utilisation", "tokens_per_s", "peak_memory_gb", "seconds_per_update"]
    assert {each["n"] for each in claims.values()} == {2}
    seconds = claims["seconds_per_update"]["value"]
    assert claims["utilisation"]["value"] * seconds * 1e9 == pytest.approx(FLOPS)
    assert claims["tokens_per_s"]["value"] * seconds == pytest.approx(64)


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
def test_main__what_cannot_run__says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], code: str
) -> None:
    assert run(monkeypatch, *options) == 1
    assert capsys.readouterr().err.startswith(code)


def test_choose_device__gpu__is_taken_unless_another_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = [choose_device(size, wanted) for size in ("tiny", "1.5b") for wanted in (None, "cuda:1", "cpu")]
    assert found == ["cuda", "cuda:1", "cpu"] * 2


def test_find_peak_flops__by_name__is_of_the_very_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert find_peak_flops("cuda:1") == 989e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 PCIe")  # slower by a quarter
    with pytest.raises(OperatorError, match=r"unknown_peak.*H100 PCIe.*--peak-flops"):
        find_peak_flops("cuda")


def test_sizes__large__is_qwens_and_its_samples_fill_the_update() -> None:
    case = SIZES["1.5b"]
    assert sum(each.numel() for each in build_model(case, "meta").parameters()) == 1_543_714_304  # Qwen2.5-1.5B's
    batch = build_update(case, case.tokens)
    assert [sample.fed for sample in batch.samples] == [1024] * 16
    assert len({sample.prompt for sample in batch.samples}) == 16


def test_build_claims__three_updates__are_of_the_median_one() -> None:
    claims = build_claims([4.0, 2.0, 9.0], tokens=1000, flops=8e9, peak_flops=1e10, memory=5e9)
    assert [each.value for each in claims] == [0.2, 250.0, 5.0, 4.0]
