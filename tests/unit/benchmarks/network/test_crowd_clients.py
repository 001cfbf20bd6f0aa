"""The times of a run, the addresses of its clients, and what they count."""

import json

import pytest

from benchmarks.network.crowd_clients import PhasedTally, Schedule, build_address

pytestmark = pytest.mark.unit

SCHEDULE = Schedule(warm_s=30.0, run_s=600.0, beat_s=30.0)


def test_find_phase__around_the_borders__is_that_of_the_time() -> None:
    phases = [SCHEDULE.find_phase(elapsed) for elapsed in (0.0, 29.9, 30.0, 329.9, 330.0, 900.0)]
    assert phases == ["warm", "warm", "first", "first", "second", "second"]


def test_compute_vanishing__ten_thousand_nodes__are_three_of_ten_and_evenly_over_the_run() -> None:
    found = [SCHEDULE.compute_vanishing(number, 10_000) for number in range(10_000)]
    times = [time for time in found if time is not None]
    assert len(times) == 3000
    assert times == sorted(times)
    assert 30.0 < times[0] < 31.0
    assert 628.0 < times[-1] < 630.0
    assert 1490 <= sum(time < 330.0 for time in times) <= 1510


def test_build_address__many_numbers__are_different_and_of_this_machine() -> None:
    assert build_address(256, first=64) == "127.64.1.0"
    assert build_address(65_536 + 3, first=64) == "127.65.0.3"
    assert len({build_address(number, first=64) for number in range(70_000)}) == 70_000


def test_encode__answers_in_three_phases__has_percentiles_of_each_and_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tally = PhasedTally(schedule=SCHEDULE, started_at=100.0)
    for sent, answered, status in ((105.0, 106.0, 204), (140.0, 142.0, 204), (450.0, 453.0, 403)):
        monkeypatch.setattr("time.monotonic", lambda now=answered: now)
        tally.add("heartbeat", sent, status, b'{"code":"suspended","message":"node 7"}')
    found = json.loads(tally.encode())
    phases = found["phases"]["heartbeat"]
    assert {phase: (times["n"], times["max"]) for phase, times in phases.items()} == {
        "warm": (1, 1.0),
        "first": (1, 2.0),
        "second": (1, 3.0),
        "run": (2, 3.0),
    }
    assert found["refused"] == {"heartbeat": 1}
    assert found["problems"] == {'heartbeat@second: 403 {"code":"suspended"': 1}
