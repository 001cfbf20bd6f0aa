import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.protocol import columns, rollout
from covey.sandbox import Sandbox, SandboxError

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
BEHAVE = "tests.unit.covey.sandboxed:behave"


@pytest.fixture
def sandbox(monkeypatch):
    monkeypatch.chdir(ROOT)
    with Sandbox(BEHAVE, seconds=5, memory_bytes=256 << 20, output_bytes=1 << 20) as made:
        yield made


def die(sandbox, payload):
    with pytest.raises(SandboxError) as caught:
        sandbox.call(payload)
    return caught.value.code


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_call__several__answered_by_one_process(sandbox):
    assert sandbox.call(b"echo hello") == b"hello"
    assert sandbox.call(b"echo ") == b""
    assert sandbox.call(b"count") == b"3"


def test_call__frame_larger_than_any_pipe__goes_through(sandbox):
    payload = os.urandom(1_000_000)
    assert sandbox.call(b"echo " + payload) == payload


def test_call__protocol_error__keeps_code_and_message_and_process(sandbox):
    with pytest.raises(ProtocolError) as caught:
        sandbox.call(b"refuse")
    assert (caught.value.code, caught.value.message) == ("too_odd", "line one\nline two")
    assert sandbox.call(b"count") == b"2"


@pytest.mark.parametrize("payload", [b"exit 0", b"exit 3", b"quit", b"segfault", b"raise", b"eat 1000000000"])
def test_call__process_dies__input_is_blamed_and_the_next_call_is_served(sandbox, payload):
    assert sandbox.call(b"echo a") == b"a"
    assert die(sandbox, payload) == "sandbox_died"
    assert sandbox.call(b"count") == b"1"


def test_call__memory_within_the_limit__served(sandbox):
    assert sandbox.call(b"eat 100000000") == b"100000000"


@pytest.mark.parametrize("payload", [b"sleep 60", b"spin"])
def test_call__too_long__ended_in_time_and_the_next_call_is_served(monkeypatch, payload):
    monkeypatch.chdir(ROOT)
    with Sandbox(BEHAVE, seconds=0.3) as sandbox:
        pid = int(sandbox.call(b"pid"))
        started = time.monotonic()
        assert die(sandbox, payload) == "sandbox_timeout"
        assert 0.25 < time.monotonic() - started < 2
        assert not is_alive(pid)
        assert sandbox.call(b"echo again") == b"again"


def test_call__answer_too_large__refused_before_it_is_read(sandbox):
    assert sandbox.call(b"say 1048576") == bytes(1 << 20)
    assert die(sandbox, b"say 1048577") == "sandbox_output"
    assert sandbox.call(b"echo again") == b"again"


def test_call__function_prints__nothing_reaches_the_frames(sandbox):
    assert sandbox.call(b"print") == b"printed"
    assert sandbox.call(b"echo clean") == b"clean"


def test_call__secrets_of_the_parent__are_not_in_its_environment(monkeypatch, sandbox):
    monkeypatch.setenv("COVEY_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    names = sandbox.call(b"environment").decode()
    assert "COVEY_KEY" not in names
    assert "AWS" not in names
    assert "OMP_NUM_THREADS" in names


def test_call__slow_once__the_second_attempt_answers(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    with Sandbox(BEHAVE, seconds=0.5) as sandbox:
        payload = b"late " + bytes(tmp_path / "met")
        assert sandbox.call(payload, attempts=2) == b"in time"
        assert sandbox.call(b"count") == b"2"


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_call__ends_every_child__is_blamed_after_so_many_fresh_ones(sandbox, tmp_path, attempts):
    log = tmp_path / "log"
    with pytest.raises(SandboxError) as caught:
        sandbox.call(b"log " + bytes(log), attempts=attempts)
    assert caught.value.code == "sandbox_died"
    assert len(set(log.read_text().split())) == attempts
    assert sandbox.call(b"echo again") == b"again"


def test_call__refused__is_an_answer_and_not_tried_again(sandbox):
    with pytest.raises(ProtocolError, match="too_odd"):
        sandbox.call(b"refuse", attempts=2)
    assert sandbox.call(b"count") == b"2"


def test_call__interrupted__half_an_answer_is_never_the_next_calls(sandbox, monkeypatch):
    assert sandbox.call(b"echo first") == b"first"

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("covey.sandbox._read_exactly", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sandbox.call(b"echo stale")
    assert sandbox.call(b"echo fresh") == b"fresh"


def test_call__from_threads__answers_are_not_mixed_up(sandbox):
    answers = {}

    def ask(i):
        answers[i] = sandbox.call(b"echo %d" % i)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: b"%d" % i for i in range(8)}


def test_call__many_open_files__still_waits(sandbox):
    """A busy server has descriptors over 1023, which select() refuses."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("fewer than 2,048 files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    opened = []
    try:
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        assert sandbox.call(b"echo hello") == b"hello"
    finally:
        for descriptor in opened:
            os.close(descriptor)
        sandbox.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("function", ["covey.protocol.rollout:nothing", "covey.nothing:at_all"])
def test_call__function_that_does_not_exist__is_the_operators_fault_not_the_inputs(function):
    with Sandbox(function, seconds=5) as sandbox, pytest.raises(OperatorError, match="sandbox_start"):
        sandbox.call(b"honest work")


def test_call__no_process_can_be_started__is_tried_again(monkeypatch):
    def fail(*_, **__):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with Sandbox(BEHAVE, seconds=5) as sandbox, pytest.raises(TransientError, match="sandbox_start"):
        sandbox.call(b"honest work")


def test_close__ends_the_process_and_may_be_repeated(sandbox):
    pid = int(sandbox.call(b"pid"))
    sandbox.close()
    sandbox.close()
    assert not is_alive(pid)
    assert int(sandbox.call(b"pid")) != pid


def test_child__parent_killed_meanwhile__ends_by_itself():
    """A grader that spins outlives its parent by at most its wall clock and a second or two."""
    code = f"""
import os, threading
from covey.sandbox import Sandbox
sandbox = Sandbox({BEHAVE!r}, seconds=0.5)
print(sandbox.call(b"pid").decode(), flush=True)
threading.Timer(0.1, os._exit, (0,)).start()
sandbox.call(b"spin")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=30, check=True)
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the orphan goes on")


# -- the decoder of submissions: threats.md, row 18

BUDGET = rollout.Budget(file_bytes=4 << 20, rows=16, prompt_tokens=64, completion_tokens=32)


def make_row(**changes):
    """One row that reads as a rollout file's; `changes` replace plain ones."""
    plain = {
        "group": pa.array([0], pa.int32()),
        "sibling": pa.array([0], pa.int32()),
        "seed": pa.array([1], pa.int64()),
        "prompt": pa.array([[1]], columns.SCHEMA.field("prompt").type),
        "tokens": pa.array([[1]], columns.SCHEMA.field("tokens").type),
        "logprobs": pa.array([[0.0]], columns.SCHEMA.field("logprobs").type),
        "proofs": pa.array([[b"x"]], columns.SCHEMA.field("proofs").type),
        "finished": pa.array([True]),
        "reward": pa.array([1.0]),
    } | changes
    schema = pa.schema([pa.field(name, column.type, nullable=False) for name, column in plain.items()])
    sink = io.BytesIO()
    table = pa.Table.from_arrays(list(plain.values()), schema=schema)
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue()


def make_dictionary_bomb():
    """10,000 times the same megabyte, which the file holds once: 10 GB of proofs from a few kB."""
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int32)), pa.array([bytes(1 << 20)]))
    kind = pa.list_(pa.field("element", words.type, nullable=False))
    return make_row(proofs=pa.ListArray.from_arrays(pa.array([0, 10_000], pa.int32()), words, type=kind))


def make_zero_bomb():
    """One prompt of 20 million tokens."""
    kind = columns.SCHEMA.field("prompt").type
    zeros = pa.array(np.zeros(20_000_000, np.int32))
    return make_row(prompt=pa.ListArray.from_arrays(pa.array([0, len(zeros)], pa.int32()), zeros, type=kind))


@pytest.fixture(scope="module")
def decoder():
    with Sandbox("covey.protocol.columns:decode_json", seconds=5, memory_bytes=512 << 20) as made:
        made.call(rollout.pack_call(make_row(), BUDGET))
        yield made


def test_decoder__honest_row__comes_back(decoder):
    (row,) = rollout.unpack_answer(decoder.call(rollout.pack_call(make_row(), BUDGET)))
    assert (row.tokens, row.proofs, row.reward) == ((1,), (b"x",), 1.0)


@pytest.mark.parametrize("make", [make_dictionary_bomb, make_zero_bomb])
def test_decoder__bomb__refused_within_a_second_in_bounded_memory(decoder, make):
    bomb = make()
    assert len(bomb) < 200_000
    started = time.monotonic()
    with pytest.raises((ProtocolError, SandboxError)) as caught:
        decoder.call(rollout.pack_call(bomb, BUDGET))
    assert time.monotonic() - started < 1
    assert caught.value.code in ("oversized", "malformed", "sandbox_died")
    if decoder._child and decoder._child.poll() is None:
        status = Path(f"/proc/{decoder._child.pid}/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0])
        assert peak < 700_000  # kB: the limit and the libraries
    (row,) = rollout.unpack_answer(decoder.call(rollout.pack_call(make_row(), BUDGET)))
    assert row.tokens == (1,)
