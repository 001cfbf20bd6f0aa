"""Files of `make gpu ARGS=--save`, and what the page shows of them."""

from pathlib import Path

import pytest

from benchmarks.gpu import result_files
from benchmarks.gpu.result_files import EXACT_CASES, GpuResult, list_cells, read, read_all
from benchmarks.gpu.section_rows import SectionRow

pytestmark = pytest.mark.unit
SAMPLE = SectionRow(section="sampler", case="sample", value=26.0, unit="us", peer="torch", peer_value=52.0, n=3)
HONEST = SectionRow(section="exact", case="honest windows", value=0, unit="different", n=30_000)
SKIPPED = SectionRow(section="trainer", case="update", value=None, note="skipped")


def build(*rows: SectionRow, date: str = "2026-11-27, 5cc93c16") -> GpuResult:
    return GpuResult(card="NVIDIA H200", dates={row.section: date for row in rows}, rows=rows)


def test_save__another_section_later__keeps_the_first_and_replaces_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_files, "FOLDER", tmp_path / "gpu")
    assert read_all() == []
    path = build(SAMPLE, HONEST).save()
    assert path.name == "nvidia-h200.json"
    changed = SectionRow(section="exact", case="honest windows", value=2, unit="different", n=10)
    build(changed, date="2026-11-28").save()
    (found,) = read_all()
    assert found == read(path)
    assert list(found.rows) == [SAMPLE, changed]
    assert found.dates == {"sampler": "2026-11-27, 5cc93c16", "exact": "2026-11-28"}


def test_list_cells__measured_and_not__every_exact_case_has_a_line() -> None:
    cells = list_cells([build(SAMPLE, HONEST), build(SKIPPED)], ["sampler", "exact", "trainer"])
    assert cells[0] == ("sampler", "sample", "NVIDIA H200", "26 us", "3", "torch 52 us", "2026-11-27, 5cc93c16")
    exact = {case: rest for section, case, *rest in cells if section == "exact"}
    assert list(exact) == list(EXACT_CASES)
    assert exact["honest windows"] == ["NVIDIA H200", "0 different", "30,000", "", "2026-11-27, 5cc93c16"]
    assert [
        case for case, rest in exact.items() if rest[1].startswith("not measured yet: `make gpu SECTIONS=exact")
    ] == [case for case in EXACT_CASES if case != "honest windows"]
    assert cells[-1][:4] == ("trainer", "all", "", "not measured yet: `make gpu SECTIONS=trainer ARGS=--save`")
