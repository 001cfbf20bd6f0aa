"""The connection to the subprocess, for which scripts stand in: its answers, its end and the log lines quoted."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from covey.engines.vllm import frames
from covey.engines.vllm.engine_process import EngineProcess, build_environment
from covey.engines.vllm.frames import Frame, receive, send
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError, ProtocolError, TransientError

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""

HEAD = """#!{python}
import os, signal, socket, subprocess, sys, time
from covey.engines.vllm.frames import Frame, receive, send
connection = socket.socket(fileno=int(sys.argv[3]))
question = receive(connection)
"""


def start(folder: Path, body: str) -> EngineProcess:
    """Start a process that runs `body` after it has received a question."""
    script = folder / "interpreter"
    script.write_text(HEAD.format(python=sys.executable) + body)
    script.chmod(0o755)
    return EngineProcess(str(script), {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd()})


def test_frame__arrays_and_values__arrive_unchanged() -> None:
    arrays = {
        "seeds": np.array([2**63 - 1, 0], np.uint64),
        "bits": np.array([[65535, 1]], np.uint16),
        "nothing": np.empty(0, np.int64),
        "margins": np.array([0.1, np.nan], np.float32),
    }
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, Frame("generate", {"temperature": 0.6, "top_k": 1 << 31, "folder": "é", "window": None}, arrays))
        send(ours, Frame("check"))
        full, empty = receive(theirs), receive(theirs)
    assert (full.kind, dict(full.values)) == (
        "generate",
        {"temperature": 0.6, "top_k": 1 << 31, "folder": "é", "window": None},
    )
    assert sorted(full.arrays) == sorted(arrays)
    for name, array in arrays.items():
        assert full.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(full.arrays[name], array)
    assert (empty.kind, empty.values, empty.arrays) == ("check", {}, {})


def test_frame__larger_than_its_limits__is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, Frame("replay", {}, {"tokens": np.zeros(100, np.int64)}))
        monkeypatch.setattr(frames, "MAX_PAYLOAD", 500)
        with pytest.raises(ValueError, match="exceeds the limits"):
            receive(theirs)
        with pytest.raises(ValueError, match="exceeds the limits"):
            send(ours, Frame("replay", {}, {"tokens": np.zeros(100, np.int64)}))


def test_receive__half_a_frame_and_the_end__raises_eof_error() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(b"\0\0\0\x09")
        with pytest.raises(EOFError):
            receive(theirs)


def test_ask__other_side_does_not_read__ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.engines.vllm.engine_process._SEND_SECONDS", 1)
    process = start(tmp_path, "send(connection, Frame('did', call=1))\ntime.sleep(600)")
    process.ask(Frame("check"), HANG_S)
    with pytest.raises(TransientError, match="did not read the request replay") as caught:
        process.ask(Frame("replay", {}, {"tokens": np.zeros(1 << 20, np.int64)}), HANG_S)
    assert (caught.value.code, process.is_alive) == ("engine_timeout", False)


def test_ask__several_threads__each_gets_its_own_answer(tmp_path: Path) -> None:
    """The other side answers three questions in reverse order."""
    body = "others = [question, receive(connection), receive(connection)]\n"
    body += "for each in reversed(others):\n    send(connection, Frame('did', each.values, call=each.call))\n"
    process = start(tmp_path, body + "time.sleep(600)")
    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(process.ask, Frame("generate", {"folder": str(n)}), HANG_S) for n in range(3)]
        assert [each.result().values["folder"] for each in answers] == ["0", "1", "2"]
    process.close()


def test_ask__process_dies_while_several_wait__all_raise(tmp_path: Path) -> None:
    process = start(tmp_path, "receive(connection)\nsys.exit('no kernel image')")
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(process.ask, Frame("generate"), HANG_S) for _ in range(2)]
        for answer in answers:
            with pytest.raises(TransientError, match="process died"):
                answer.result()
    assert not process.is_alive


def test_ask__answer__is_that_of_the_question(tmp_path: Path) -> None:
    body = "while True:\n    answer = Frame('did ' + question.kind, question.values, question.arrays, question.call)\n"
    process = start(tmp_path, body + "    send(connection, answer)\n    question = receive(connection)\n")
    for kind in ("check", "reload"):
        answer = process.ask(Frame(kind, {"folder": "x"}, {"a": np.arange(3)}), HANG_S)
        assert (answer.kind, answer.values, answer.arrays["a"].tolist()) == (f"did {kind}", {"folder": "x"}, [0, 1, 2])
    assert process.is_alive
    process.close()
    process.close()
    assert not process.is_alive


@pytest.mark.parametrize(("fix", "kind"), [("", ProtocolError), ("Buy more", OperatorError)])
def test_ask__refused__is_the_error_that_the_other_side_raised(tmp_path: Path, fix: str, kind: type) -> None:
    values = {"code": "policy_mismatch", "message": "it is another", "fix": fix}
    process = start(tmp_path, f"send(connection, Frame('refused', {values}, call=1))\ntime.sleep(600)")
    with pytest.raises(kind, match="it is another") as caught:
        process.ask(Frame("reload"), HANG_S)
    assert caught.value.code == "policy_mismatch"
    assert process.is_alive
    process.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('no kernel image')", r"exit code 1; its last log lines:\n  no kernel image"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"signal 9 \(SIGKILL\)"),
        ("connection.sendall(b'\\0\\0'); sys.exit(0)", "exit code 0"),
    ],
)
def test_ask__process_dies__reports_how_and_quotes_the_log(tmp_path: Path, body: str, message: str) -> None:
    process = start(tmp_path, body)
    with pytest.raises(TransientError, match=message) as caught:
        process.ask(Frame("generate"), HANG_S)
    assert (caught.value.code, process.is_alive) == ("engine_died", False)


def test_ask__long_log__quotes_the_last_lines(tmp_path: Path) -> None:
    process = start(tmp_path, "print('\\n'.join(f'line {i} ' + 'x' * 999 for i in range(5000)), file=sys.stderr)")
    with pytest.raises(TransientError) as caught:
        process.ask(Frame("generate"), HANG_S)
    assert "line 4999" in caught.value.message
    assert "line 4987 " not in caught.value.message
    assert len(caught.value.message) < 6000


def test_ask__no_answer_in_time__ends_it_and_its_children(tmp_path: Path) -> None:
    """With several devices, vLLM's workers are children of vLLM's process."""
    note = tmp_path / "note"
    body = f"other = subprocess.Popen(['sleep', '600'])\nopen({str(note)!r}, 'w').write(str(other.pid))\n"
    process = start(tmp_path, body + "send(connection, Frame('ready', call=question.call))\ntime.sleep(600)")
    assert process.ask(Frame("hello"), HANG_S).kind == "ready", "the child runs before the short timeout begins"
    with pytest.raises(TransientError, match=r"more than 0\.3 s") as caught:
        process.ask(Frame("generate"), 0.3)
    assert (caught.value.code, process.is_alive) == ("engine_timeout", False)
    state, deadline = Path(f"/proc/{note.read_text()}/stat"), time.monotonic() + HANG_S
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":  # it may not be reaped yet
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ask__interrupted__leaves_no_half_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(tmp_path, "time.sleep(600)")

    def interrupt(*_: object) -> Frame:
        raise KeyboardInterrupt

    monkeypatch.setattr("covey.engines.vllm.engine_process.Future.result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        process.ask(Frame("generate"), HANG_S)
    assert not process.is_alive


def test_process__no_such_interpreter__raises_engine_start(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot be started") as caught:
        EngineProcess(str(tmp_path / "nothing"), {})
    assert caught.value.code == "engine_start"


def test_process__ended__leaves_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    before = (threading.active_count(), len(os.listdir("/proc/self/fd")))
    process = start(tmp_path, "sys.exit(3)")
    with pytest.raises(TransientError, match="exit code 3"):
        process.ask(Frame("generate"), HANG_S)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_engine_module__imports_no_heavy_library() -> None:
    """Roles import it before they know which engine they run."""
    code = "import sys, covey.engines.vllm.engine; print({'torch', 'transformers', 'vllm', 'numba'} & set(sys.modules))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert completed.stdout.strip() == "set()"


OUT_OF_MEMORY = """
import types
serving = types.ModuleType("covey.engines.vllm.serving")

class Serving:
    calls = ()

    def describe(self, question):
        return Frame("started", call=question.call)

    def can_join(self, question):
        return True

    def answer(self, question):
        self.calls = (*self.calls, question.call)
        return []

    def step(self):
        import torch
        torch.empty(1 << 50)  # the allocator rejects a petabyte

serving.Serving, serving.start = Serving, lambda question: Serving()
sys.modules["covey.engines.vllm.serving"] = serving
from covey.engines.vllm.engine_child import serve
send(connection, Frame("ready", call=question.call))
serve(connection.detach())
"""


def test_child__memory_runs_out_in_a_call__reports_it_before_it_ends(tmp_path: Path) -> None:
    """The child's real loop and torch's real error are used, with an engine that allocates too much."""
    process = start(tmp_path, OUT_OF_MEMORY)
    assert process.ask(Frame("hello"), 300).kind == "ready"
    assert process.ask(Frame("start"), 300).kind == "started"
    with pytest.raises(OperatorError) as caught:
        process.ask(Frame("generate"), 300)
    assert caught.value.code == "engine_out_of_memory"
    assert "Lower batch" in str(caught.value)
    with pytest.raises(TransientError, match="exit code 1"):  # it ended, because its engine contains half a batch
        process.ask(Frame("generate"), 300)
    process.close()


def test_build_environment__on_a_cpu__keeps_freed_memory_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_KEY_FILE", "a secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    on_cpu = build_environment(2, VllmOptions(), device="cpu", dtype="float32")
    on_gpu = build_environment(2, VllmOptions(), device="cuda", dtype="bfloat16")
    assert {"OMP_NUM_THREADS": "2", "MALLOC_MMAP_MAX_": "0", "TORCH_COMPILE_DISABLE": "1"}.items() <= on_cpu.items()
    assert {"COVEY_KEY_FILE", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "TORCH_COMPILE_DISABLE"}.isdisjoint(on_gpu)
    assert "COVEY_KEY_FILE" not in on_cpu
    assert {"TRITON_F32_DEFAULT", "VLLM_BATCH_INVARIANT"}.isdisjoint(on_cpu | on_gpu)
    exact = VllmOptions(exact=True)
    assert "VLLM_BATCH_INVARIANT" not in build_environment(2, exact, device="cpu", dtype="float32")
    exact_on_gpu = build_environment(2, exact, device="cuda", dtype="bfloat16")
    assert exact_on_gpu.items() >= {"VLLM_BATCH_INVARIANT": "1", "TORCH_COMPILE_DISABLE": "1"}.items()
    in_float32 = build_environment(2, VllmOptions(enforce_eager=True), device="cuda:1", dtype="float32")
    assert in_float32.items() >= {"TRITON_F32_DEFAULT": "ieee", "CUDA_VISIBLE_DEVICES": "1"}.items()
    assert in_float32["TORCH_COMPILE_DISABLE"] == "1"
    assert on_cpu.items() >= {"OMP_NUM_THREADS": "2", "PATH": os.environ["PATH"]}.items()
