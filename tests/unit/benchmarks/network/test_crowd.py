"""The command line of the benchmark `crowd`, its bars, and the connections that nodes share."""

import resource

import pytest

from benchmarks.measurement import Measurement, find_misses, set_bars
from benchmarks.network.crowd import BARS, build_parser, count_connections

pytestmark = pytest.mark.unit


def test_parser__no_arguments__is_ten_minutes_of_ten_thousand_nodes() -> None:
    options = build_parser().parse_args([])
    assert (options.seconds, options.nodes, options.viewers, options.rate) == (600.0, 10_000, 200, 50.0)
    assert (options.storm, options.registrations, options.only) == (False, 7.0, "sqlite")
    assert "default: 10000" in build_parser().format_help()


@pytest.mark.parametrize(("descriptors", "shared"), [(65_536, 10_000), (20_000, 8_608), (1024, 1)])
def test_count_connections__limit_of_the_system__is_kept_with_room_for_others(
    descriptors: int, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, descriptors))
    assert count_connections(10_000) == shared
    assert count_connections(1) == 1


def test_bars__one_lease_twice_and_a_slow_heartbeat__are_missed() -> None:
    values = {"double_leases.sqlite": 1.0, "heartbeat_p99_ms.sqlite": 51.0, "claim_p99_ms.sqlite": 200.0}
    found = [Measurement(name=name, value=value, unit="", n=1) for name, value in values.items()]
    assert find_misses(set_bars(found, BARS)) == [
        "double_leases.sqlite is 1, above 0",
        "heartbeat_p99_ms.sqlite is 51, above 50",
    ]
