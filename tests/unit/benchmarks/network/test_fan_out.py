"""The simulated network of the fan-out benchmark, by hand."""

import pytest

from benchmarks.network.fan_out import build_simulation, simulate
from covey.protocol.pieces import PIECE_BYTES

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("workers", "relays", "uplink", "link", "rate"),
    [
        (100, 10, 1000.0, 50.0, 50.0),  # Each link is the limit.
        (100, 10, 200.0, 50.0, 20.0),  # The origin's uplink, shared by 10 relays, and a relay's, shared by 10 workers.
        (101, 10, 220.0, 50.0, 20.0),  # One relay has 11 workers.
    ],
)
def test_simulate__by_hand(workers: int, relays: int, uplink: float, link: float, rate: float):
    first = PIECE_BYTES / min(link, uplink / relays)
    seconds = simulate(1e6, workers=workers, relays=relays, uplink=uplink, link=link)
    assert seconds == pytest.approx(first + 1e6 / rate)


def test_build_simulation__measured_efficiency__scales_the_time():
    once, twice = build_simulation(1.0), build_simulation(2.0)
    assert twice.value == pytest.approx(2 * once.value)
    assert once.value == pytest.approx(PIECE_BYTES / 50e6 + 62e9 / 159 / 25e6)
