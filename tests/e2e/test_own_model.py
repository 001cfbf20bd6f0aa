"""The guide for one's own model: every command of it, with a tiny model on the CPU instead of a large one on GPUs.

The variables that the guide sets first are those of this machine. Two processes of torchrun train.
"""

import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from covey.local.keeper import stop_keeper
from tests.e2e.fences import read_fences
from tests.e2e.test_readme import OWN_MODEL, ROOT, run_fence
from trainer import tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.full]
COORDINATOR = "http://127.0.0.1:9400"
PORTS = (*range(9400, 9405), 29500)
SECONDS = 600


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"something listens on port {port}, which the guide names")
    variables = {"MODEL": str(tmp_path / "tiny"), "DEVICE": "cpu", "TRAINER_GPUS": "2", "WORKER_GPUS": "0"}
    variables |= {"ROWS": "rows.jsonl", "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield tmp_path
    for lock in tmp_path.glob("*/.up.lock"):  # whatever a command that failed has left running
        stop_keeper(lock.parent)
    if (file := tmp_path / "own/torchrun.pid").exists() and is_running(int(file.read_text())):
        os.kill(int(file.read_text()), signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def await_accepted(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        status = httpx.get(f"{COORDINATOR}/v1/status", timeout=60).json()
        if any(node["accepted"] > 0 for node in status["nodes"].values()):
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.5)


def test_guide__every_command__works_as_written(folder: Path):
    fences = [fence for fence in read_fences(ROOT / "docs/guides" / OWN_MODEL) if fence.language == "sh"]
    variables, *fences = fences
    assert [fence.reason for fence in fences] == [""] * len(fences)
    assert "the tiny model" in variables.reason
    names = {word.partition("=")[0] for word in variables.body.split() if "=" in word}
    assert names <= set(os.environ), "the fixture sets all variables of the guide"
    tiny_model.warm_start_tiny(0, folder / "tiny", lambda step, loss: None)
    rows = [{"problem_id": f"{i}", "task_type": "math", "prompt": f"What is {i} + 1?",
             "verification_info": {"ground_truth": str(i + 1)}} for i in range(400)]  # fmt: skip
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    printed = []
    for fence in fences:
        printed.append(run_fence(fence, folder))
        if "covey up ownworkers" in fence.body:
            await_accepted(SECONDS)
    assert any("claimed" in text for text in printed)
    assert list((folder / "weights").glob("*/model.safetensors"))
    deadline = time.monotonic() + 120
    while is_running(int((folder / "own/torchrun.pid").read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.2)
