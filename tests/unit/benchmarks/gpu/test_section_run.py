"""A section's run: cases that fail or do not fit, medians of timed calls, and sizes."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.gpu.section_rows import SectionRow
from benchmarks.gpu.section_run import SectionRun
from benchmarks.measurement import Bar
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

Rows = Callable[[], dict[str, SectionRow]]


def fail() -> None:
    raise OperatorError("trainer_out_of_memory", "no memory is left", fix="Buy more")


def test_attempt__a_case_that_fails__has_a_row_that_says_why(run: SectionRun, rows: Rows) -> None:
    run.attempt("first", fail, seconds=1)
    run.attempt("second", lambda: run.record("second", 5.0, "s", memory_gb=run.read_peak_gb()), seconds=1)
    assert rows()["first"].value is None
    assert rows()["first"].note.startswith("failed: OperatorError: trainer_out_of_memory")
    assert rows()["second"] == SectionRow(section="sampler", case="second", value=5.0, unit="s")


def test_attempt__less_time_than_it_needs__is_skipped_unless_tiny(run: SectionRun, rows: Rows) -> None:
    late, calls = replace(run, ends=time.monotonic() + 5, is_tiny=False), list[str]()
    late.attempt("long", lambda: calls.append("long"), seconds=20)
    late.attempt("short", lambda: calls.append("short"), seconds=1)
    replace(late, is_tiny=True).attempt("tiny", lambda: calls.append("tiny"), seconds=20)
    assert calls == ["short", "tiny"]
    assert rows()["long"].note in {"skipped: needs 20 s, 5 s are left", "skipped: needs 20 s, 4 s are left"}


def test_guard__an_error_of_the_process__is_not_caught(run: SectionRun) -> None:
    assert run.guard(lambda: 3) == (3, "")
    assert run.guard(fail)[0] is None
    with pytest.raises(SystemExit):
        run.guard(lambda: exit(1))


@pytest.mark.parametrize(
    ("repeats", "calls", "is_warm", "made"), [(3, 1, False, 4), (2, 5, False, 11), (1, 1, True, 1)]
)
def test_time__runs_of_several_calls__warm_up_once(
    run: SectionRun, repeats: int, calls: int, is_warm: bool, made: int
) -> None:
    done: list[int] = []
    seconds = run.time(lambda: done.append(1), repeats=repeats, calls=calls, is_warm=is_warm)
    assert (len(seconds), len(done)) == (repeats, made)
    assert all(0 <= each < 1 for each in seconds)


def test_time__no_time_left__makes_one_run(run: SectionRun) -> None:
    assert len(replace(run, ends=time.monotonic()).time(lambda: None, repeats=3)) == 1


def test_record_times__two_sides__has_their_medians_in_the_unit(run: SectionRun, rows: Rows) -> None:
    run.record_times("update", [0.5, 0.2, 0.3], [0.4, 0.6], "ms", peer="other", aim=Bar(most=1))
    row = rows()["update"]
    assert (row.value, row.peer_value, row.n, row.is_met) == (300.0, 500.0, 3, True)


def test_pick__sizes__are_those_of_a_gpu_unless_tiny(run: SectionRun) -> None:
    assert [replace(run, is_tiny=is_tiny).pick(64, 2) for is_tiny in (False, True)] == [64, 2]
