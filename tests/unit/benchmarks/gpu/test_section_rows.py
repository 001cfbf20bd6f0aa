"""Rows of the table: ratios and aims by hand, lines of JSON, and aligned columns."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu.section_rows import SectionRow, build_table, decode_row, find_missed, read_rows
from benchmarks.measurement import Bar

pytestmark = pytest.mark.unit

FAST = SectionRow(
    section="sampler", case="64 rows", value=26.0, unit="us", n=3, peer="race", peer_value=130.0, aim=Bar(most=0.25),
    memory_gb=0.5,
)  # fmt: skip
SLOW = replace(FAST, case="256 rows", value=65.0)
RATE = SectionRow(section="export", case="gather", value=9.5, unit="GB/s", aim=Bar(least=8), aim_of="value")
SKIPPED = SectionRow(section="exact", case="all", value=None, aim=Bar(most=0), note="skipped: 3 | 4 s\nare left")


def test_ratio__of_rows_by_hand__needs_both_numbers() -> None:
    assert [each.ratio for each in (FAST, SLOW, RATE, SKIPPED)] == [0.2, 0.5, None, None]
    assert replace(FAST, peer_value=0.0).ratio is None


def test_is_met__aim_of_ratio_or_value__needs_the_number() -> None:
    assert [each.is_met for each in (FAST, SLOW, RATE, SKIPPED)] == [True, False, True, None]
    assert replace(FAST, aim=None).is_met is None
    assert replace(RATE, value=7.9).is_met is False


@pytest.mark.parametrize("row", [FAST, RATE, SKIPPED])
def test_encode__a_row__is_one_line_that_decodes_to_it(row: SectionRow) -> None:
    assert row.encode().count("\n") == 1
    assert decode_row(row.encode()) == row


def test_read_rows__last_line_cut_off__is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == []
    path.write_text(FAST.encode() + RATE.encode() + SLOW.encode()[:30])
    assert read_rows(path) == [FAST, RATE]


def test_build_table__four_rows__has_aligned_columns_without_characters_that_end_a_cell() -> None:
    lines = build_table([FAST, SLOW, RATE, SKIPPED], is_judged=True).splitlines()
    assert len(lines) == 6
    assert len({len(line) for line in lines}) == len({line.count("|") for line in lines}) == 1
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[2] == [
        "sampler",
        "64 rows",
        "26 us",
        "race 130 us",
        "0.2",
        "ratio at most 0.25",
        "yes",
        "0.5",
        "3",
        "",
    ]
    assert [row[6] for row in cells[2:]] == ["yes", "NO", "yes", ""]
    assert cells[4][5] == "at least 8 GB/s"
    assert cells[5][2:] == ["", "", "", "ratio at most 0", "", "", "", "skipped: 3 / 4 s are left"]


def test_build_table__sizes_are_tiny__no_row_is_judged() -> None:
    assert " NO " not in build_table([SLOW], is_judged=False)


def test_find_missed__one_of_four__is_named_with_its_aim() -> None:
    assert find_missed([FAST, SLOW, RATE, SKIPPED]) == ["sampler: 256 rows misses its aim, ratio at most 0.25"]
