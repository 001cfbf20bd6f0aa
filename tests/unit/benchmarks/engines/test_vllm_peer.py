"""The process of plain vLLM: its messages, and the error if it ends."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import vllm_peer
from benchmarks.engines.vllm_peer import MODES, VllmPeer
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


class FakeProcess:
    """A process that gives prepared answers and keeps what it is sent."""

    def __init__(self, answers: str) -> None:
        self.stdin, self.stdout = io.StringIO(), io.StringIO(answers)
        self.was_killed = False

    def kill(self) -> None:
        self.was_killed = True

    def communicate(self) -> None:
        assert self.was_killed


def start(monkeypatch: pytest.MonkeyPatch, folder: Path, answers: str) -> tuple[FakeProcess, list[dict[str, Any]]]:
    process, options = FakeProcess(answers), []

    def popen(command: list[str], **given: Any) -> FakeProcess:
        options.append({"command": command, **given})
        return process

    monkeypatch.setattr(vllm_peer.subprocess, "Popen", popen)
    monkeypatch.setattr(vllm_peer, "LOG", folder / "peer.log")
    return process, options


def test_run__a_mode__sends_a_line_and_returns_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, options = start(monkeypatch, tmp_path, '{}\n{"wall": 0.5, "cpu": 0.25, "tokens": 3.0}\n')
    with VllmPeer(tmp_path, "float32", 64) as peer:
        assert peer.run("plain", [(2, 5)], [3]) == {"wall": 0.5, "cpu": 0.25, "tokens": 3.0}
        first, second = [json.loads(line) for line in process.stdin.getvalue().splitlines()]
    assert (first["folder"], first["dtype"], first["batch"]) == (str(tmp_path), "float32", 64)
    assert second == {"mode": "plain", "prompts": [[2, 5]], "limits": [3]}
    assert options[0]["command"][1:] == ["-m", "benchmarks.engines.vllm_peer"]
    assert process.was_killed


def test_peer__on_a_gpu__compiles_and_keeps_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, options = start(monkeypatch, tmp_path, "{}\n")
    with VllmPeer(tmp_path, "float32", 64, device="cuda", options=VllmOptions(kv_cache_memory_bytes=5)):
        (values,) = [json.loads(line) for line in process.stdin.getvalue().splitlines()]
    assert (values["enforce_eager"], values["kv_cache_memory_bytes"]) == (False, 5)
    assert options[0]["env"]["TRITON_F32_DEFAULT"] == "ieee"


def test_peer__process_that_ends__names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, _ = start(monkeypatch, tmp_path, "")
    with pytest.raises(OperatorError, match=r"plain vLLM ended\. Read .*peer\.log") as caught:
        VllmPeer(tmp_path, "float32", 64)
    assert caught.value.code == "engine_died"
    assert process.was_killed


def test_modes__plain__asks_for_the_log_probability_that_a_worker_must_report() -> None:
    assert MODES["plain"] == {"temperature": 1.0, "logprobs": 0}


def test_answer__a_line__is_json() -> None:
    line = io.StringIO()
    vllm_peer._answer(line, {"wall": 0.5})
    assert line.getvalue() == '{"wall": 0.5}\n'
