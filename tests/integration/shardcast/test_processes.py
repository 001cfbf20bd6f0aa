"""An origin and a relay as processes of their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from covey.runtime.http import find_free_ports
from covey.shardcast.origin_store import OriginStore
from tests.fakes.served_policies import Publisher

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]
HANG_S = 120.0
"""Deadline against hanging, in seconds. A process imports much before it serves."""
ORIGIN = "from pathlib import Path; from covey.shardcast.launch import run_origin; run_origin(root=Path({root!r}), "
RELAY = "from pathlib import Path; from covey.shardcast.launch import run_relay; run_relay(root=Path({root!r}), "


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a process from a call, and returns it."""
    processes = []

    def start_process(code):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        log = (tmp_path / f"log-{len(processes)}").open("wb")
        processes.append(subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=log))
        log.close()
        return processes[-1]

    yield start_process
    for process in processes:
        process.kill()
        process.wait()


def wait_until_healthy(client, url):
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        try:
            return client.get(f"{url}/health").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError(url)


def test_command__port_is_taken__is_reported(tmp_path, start):
    (port,) = find_free_ports(1)
    start(ORIGIN.format(root=str(tmp_path / "origin")) + f"host='127.0.0.1', port={port})")
    with httpx.Client(trust_env=False, timeout=HANG_S) as client:
        wait_until_healthy(client, f"http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "covey", "origin", "run", "--root", str(tmp_path), "--port", str(port)]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=HANG_S, check=False)
    printed = second.stderr.decode()
    assert second.returncode == 1, printed
    assert f"\ncovey: address_in_use: cannot listen on 127.0.0.1:{port}" in f"\n{printed}", printed


def test_origin_and_relay__serve_and_end_on_a_signal(tmp_path, start):
    ports = find_free_ports(2)
    made = Publisher(OriginStore(tmp_path / "origin"), tmp_path).add_anchor(1, sizes=(5 << 20, 1000))
    origin = start(ORIGIN.format(root=str(tmp_path / "origin")) + f"host='127.0.0.1', port={ports[0]})")
    upstreams = f"upstreams=['http://127.0.0.1:{ports[0]}']"
    relay = start(RELAY.format(root=str(tmp_path / "relay")) + f"{upstreams}, host='127.0.0.1', port={ports[1]})")
    with httpx.Client(trust_env=False, timeout=HANG_S) as client:
        for port in ports:
            wait_until_healthy(client, f"http://127.0.0.1:{port}")
        for port in reversed(ports):
            for piece in made.anchor.pieces:
                assert len(client.get(f"http://127.0.0.1:{port}/pieces/{piece.digest}").content) == piece.size
        client.get(f"http://127.0.0.1:{ports[1]}/heads/1.json").raise_for_status()
    for process in (relay, origin):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=HANG_S) == 0
    log = (tmp_path / "log-1").read_text()
    assert "relay serves policies" in log
    assert "Traceback" not in log
