import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from covey.devnet.anvil import find_anvil
from covey.errors import OperatorError

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[4]
HANG_S = 60.0
"""Deadline against hanging, in seconds."""


def test_devnet_up__stop_signal__ends_with_its_chain(tmp_path):
    try:
        find_anvil()
    except OperatorError as error:
        pytest.skip(error.message)
    command = [sys.executable, "-m", "covey", "devnet", "up", "--folder", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = next(line for line in process.stdout if line.startswith("chain")).split()[1]
            body = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
            assert httpx.post(url, json=body, trust_env=False, timeout=HANG_S).json()["result"] == hex(31337)
            assert process.stdout.readline().startswith("contracts")
            assert process.stdout.readline().startswith("token")
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(HANG_S) == 0
        finally:
            process.kill()
    with pytest.raises(httpx.ConnectError):
        httpx.post(url, json=body, trust_env=False)


def test_devnet_up__node_is_killed__ends_with_advice(tmp_path):
    try:
        find_anvil()
    except OperatorError as error:
        pytest.skip(error.message)
    command = [sys.executable, "-m", "covey", "devnet", "up", "--folder", str(tmp_path), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        try:
            assert [process.stdout.readline().split()[0] for _ in range(3)] == ["chain", "contracts", "token"]
            os.kill(int((tmp_path / "anvil.pid").read_text()), signal.SIGKILL)
            assert process.wait(HANG_S) == 1
            assert process.stderr.read().startswith(
                "covey: anvil_ended: the test chain's Anvil process ended unexpectedly"
            )
        finally:
            process.kill()
