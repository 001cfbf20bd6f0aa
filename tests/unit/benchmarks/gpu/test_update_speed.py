"""The trainer's section: tokens of its cases, and rows of a tiny one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.gpu import update_speed
from benchmarks.gpu.section_rows import SectionRow
from benchmarks.gpu.section_run import SectionRun
from benchmarks.gpu.update_speed import CASES, UpdateCase, build_batch, get_peak_flops, measure_update

pytestmark = pytest.mark.unit

Rows = Callable[[], dict[str, SectionRow]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_build_batch__a_case__fills_its_row(run: SectionRun, case: UpdateCase) -> None:
    batch = build_batch(replace(run, is_tiny=False), case)
    assert sum(sample.fed for sample in batch.samples) == case.row
    assert len({sample.prompt for sample in batch.samples}) == case.samples // case.siblings
    assert {len(sample.prompt) for sample in batch.samples} == {case.prompt}


def test_measure_update__a_tiny_case__has_a_time_and_a_share(run: SectionRun, rows: Rows) -> None:
    case = replace(CASES[1], updates=1)
    measure_update(run, case)
    time, share = rows()[case.name], rows()[f"{case.name}, MFU"]
    assert time.value is not None
    assert time.peer_value is not None
    assert (time.unit, time.peer, time.note) == ("ms", "transformers", "")
    assert share.value is not None
    assert 0 < share.value < 10
    assert share.aim_of == "value"


def test_measure_update__a_peer_that_fails__leaves_our_time(
    run: SectionRun, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[float]:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(update_speed, "time_peer", fail)
    measure_update(run, replace(CASES[1], updates=1))
    row = rows()[CASES[1].name]
    assert row.value is not None
    assert (row.peer_value, row.note) == (None, "failed: RuntimeError: CUDA out of memory")


def test_get_peak_flops__unknown_gpu__is_none(run: SectionRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_peak_flops(run) == 1e11
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H200")
    assert get_peak_flops(replace(run, device="cuda")) == 989e12
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA Z1")
    assert get_peak_flops(replace(run, device="cuda")) is None
