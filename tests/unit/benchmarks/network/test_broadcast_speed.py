"""The ratios of the broadcast benchmark, by hand."""

import pytest

from benchmarks.network.broadcast_speed import build_measurements

pytestmark = pytest.mark.unit


def test_build_measurements__two_rounds__are_ratios_of_medians():
    rounds = [
        {"peer_prepare": 2.0, "peer_fetch": 8.0, "socket_memory": 0.5, "socket_file": 1.0, "export": 0.5,
         "prepare": 0.6, "direct": 1.0, "relay": 1.5, "extra_mb": 80.0,
         "socket_file_apart": 0.9, "pipelined": 1.0, "server_cpu": 0.2, "relay_cpu": 0.4},
        {"peer_prepare": 4.0, "peer_fetch": 10.0, "socket_memory": 0.7, "socket_file": 2.0, "export": 0.7,
         "prepare": 0.8, "direct": 2.0, "relay": 2.5, "extra_mb": 90.0,
         "socket_file_apart": 1.5, "pipelined": 1.4, "server_cpu": 0.4, "relay_cpu": 0.8},
    ]  # fmt: skip
    found = {each.name: each.value for each in build_measurements(rounds, 1 << 30)}
    assert found["speedup_vs_shardcast"] == pytest.approx((3 + 9) / (0.7 + 1.5))
    assert found["speedup_after_export"] == pytest.approx((3 + 9) / (0.7 + 1.5 - 0.6))
    assert found["fraction_of_socket_to_file"] == pytest.approx(1.5 / 1.5)
    assert found["fraction_of_socket_to_memory"] == pytest.approx(0.6 / 1.5)
    assert found["relay_over_direct"] == pytest.approx(2.0 / 1.5)
    assert found["fraction_of_socket_to_file_apart"] == pytest.approx(1.2 / 1.5)
    assert found["speedup_pipelined"] == pytest.approx((3 + 9) / 1.2)
    assert found["server_cpu_ms_per_mb"] == pytest.approx(300 / 1073.741824)
    assert found["relay_cpu_ms_per_mb"] == pytest.approx(600 / 1073.741824)
    assert found["client_extra_mb"] == 90.0
    assert found["direct_mb_per_s"] == pytest.approx((1 << 30) / 1.5 / 1e6)
