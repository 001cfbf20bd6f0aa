"""Processes of a sandbox: how they start, serve, restart and end."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.sandbox import CallLimits, IsolationTrial, Sandbox, SandboxError, find_isolation, zygote_process
from tests.integration.sandbox.conftest import HOSTILE, LIMITS, Build, die, is_alive, list_tree

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]


def test_call__several__none_sees_an_earlier_one(sandbox: Sandbox):
    assert sandbox.call(b"echo hello") == b"hello"
    assert sandbox.call(b"echo ") == b""
    assert sandbox.call(b"patch") == b"patched"
    assert sandbox.call(b"ask") == b"1"
    assert sandbox.call(b"count") == b"1"


def test_call__daemon__ends_with_its_call(sandbox: Sandbox):
    sandbox.call(b"daemon")
    (zygote,) = sandbox.process_ids
    assert list_tree(zygote) == []


def test_call__frame_larger_than_any_pipe__goes_through(best: Sandbox):
    payload = os.urandom(1_000_000)
    assert best.call(b"echo " + payload) == payload


def test_call__setup__is_what_the_factory_got(build: Build):
    setup = os.urandom(300_000)
    assert build(setup=setup).call(b"setup") == setup


def test_call__protocol_error__keeps_code_and_message(best: Sandbox):
    with pytest.raises(ProtocolError) as caught:
        best.call(b"refuse", attempts=2)
    assert (caught.value.code, caught.value.message) == ("too_odd", "line one\nline two")
    assert best.counts == {"calls": 1}


def test_call__function_prints__nothing_reaches_the_answer(best: Sandbox):
    assert best.call(b"print") == b"printed"


@pytest.mark.parametrize("attempts", [1, 3])
def test_call__death__is_tried_that_often(best: Sandbox, attempts: int):
    with pytest.raises(SandboxError, match="sandbox_died"):
        best.call(b"exit 1", attempts=attempts)
    assert best.counts == {"calls": attempts, "sandbox_died": attempts}


def test_call__limit_that_no_busy_machine_causes__is_not_tried_again(best: Sandbox):
    with pytest.raises(SandboxError, match="sandbox_memory"):
        best.call(b"eat 1000000000", attempts=3)
    assert best.counts == {"calls": 1, "sandbox_memory": 1}


def test_call__from_threads__answers_are_not_mixed_up(build: Build):
    sandbox, answers = build(processes=2), {}

    def ask(i: int) -> None:
        answers[i] = sandbox.call(b"echo %d" % i)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: b"%d" % i for i in range(8)}
    assert len(sandbox.process_ids) <= 2


def test_call__thread_that_started_the_process_ends__goes_on(best: Sandbox):
    thread = threading.Thread(target=best.call, args=(b"echo x",))
    thread.start()
    thread.join()
    zygote = best.process_ids
    assert best.call(b"echo y") == b"y"
    assert best.process_ids == zygote


def test_call__interrupted__half_an_answer_is_never_the_next_calls(best: Sandbox, monkeypatch):
    assert best.call(b"echo first") == b"first"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(zygote_process.ZygoteProcess, "_await", interrupt)
        with pytest.raises(KeyboardInterrupt):
            best.call(b"echo stale")
    assert best.call(b"echo fresh") == b"fresh"


def test_run_many__bad_payloads_between__cost_no_other_its_answer(build: Build):
    sandbox = build(processes=2, limits=CallLimits(cpu_seconds=0.5, wall_seconds=120, memory_bytes=256 << 20))
    payloads = [b"echo 0", b"spin", b"echo 2", b"refuse", b"exit 3", b"echo 5", b"eat 1000000000", b"echo 7"]
    outcomes = sandbox.run_many(payloads)
    assert [outcome.answer for outcome in outcomes] == [b"0", None, b"2", None, None, b"5", None, b"7"]
    codes = [outcome.error.code for outcome in outcomes if outcome.error]
    assert codes == ["sandbox_cpu", "too_odd", "sandbox_died", "sandbox_memory"]
    assert sandbox.counts == {"calls": 8, "sandbox_cpu": 1, "sandbox_died": 1, "sandbox_memory": 1}
    assert sandbox.cpu_seconds == pytest.approx(sum(outcome.cpu_seconds for outcome in outcomes))
    assert outcomes[1].cpu_seconds > 0.2, "the kernel's timer counts in ticks, and early on a busy machine"


def test_run_many__nothing__is_nothing(best: Sandbox):
    assert best.run_many([]) == []


def test_recycle__after_that_many_calls__is_another_process(build: Build):
    sandbox = build(recycle=2)
    sandbox.call(b"echo x")
    first = sandbox.process_ids
    sandbox.call(b"echo x")
    assert sandbox.process_ids == ()
    sandbox.call(b"echo x")
    assert sandbox.process_ids != first


@pytest.mark.parametrize(
    ("setup", "kind", "code"),
    [
        (b"operator", OperatorError, "bad_environment"),
        (b"transient", TransientError, "no_data"),
        (b"bug", OperatorError, "sandbox_start"),
        (b"exit", OperatorError, "sandbox_start"),
    ],
)
def test_start__factory_fails__is_not_the_inputs_fault(build: Build, setup: bytes, kind: type[Exception], code: str):
    with pytest.raises(kind) as caught:
        build("tests.fakes.hostile:fail", setup=setup).call(b"honest work")
    assert caught.value.code == code  # type: ignore[attr-defined]
    if setup == b"operator":
        assert caught.value.message == "the options are odd. Correct them"  # type: ignore[attr-defined]


@pytest.mark.parametrize("function", ["covey.protocol.submission_file.rows:nothing", "covey.nothing:at_all"])
def test_start__function_that_does_not_exist__is_the_operators_fault(build: Build, function: str):
    with pytest.raises(OperatorError, match="sandbox_start"):
        build(function).call(b"honest work")


def test_sandbox__required_level_does_not_hold__is_refused_before_any_call(monkeypatch):
    monkeypatch.setattr(
        "covey.sandbox.isolation_trials.try_level", lambda level: IsolationTrial(level=level, reason="it is not there")
    )
    with pytest.raises(OperatorError, match="the isolation level bwrap does not work on this machine: it is not there"):
        Sandbox(HOSTILE, isolation="bwrap")


def test_start__no_process_can_be_started__is_tried_again(build: Build, monkeypatch):
    find_isolation()

    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    sandbox = build()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", fail)
        with pytest.raises(TransientError, match="sandbox_start"):
            sandbox.call(b"honest work")
    assert sandbox.call(b"echo x") == b"x"


def test_start__takes_too_long__is_tried_again(build: Build, monkeypatch):
    find_isolation()
    monkeypatch.setattr(zygote_process, "START_SECONDS", 0.001)
    with pytest.raises(TransientError, match="sandbox_start"):
        build().call(b"honest work")


def test_close__ends_the_processes_and_may_be_repeated(build: Build, isolation):
    before, opened = set(list_tree(os.getpid())), len(os.listdir("/proc/self/fd"))
    sandbox = build(isolation=isolation.level, processes=2)
    sandbox.start()
    zygotes = sandbox.process_ids
    assert len(set(zygotes)) == 2
    sandbox.close()
    sandbox.close()
    assert not any(map(is_alive, zygotes))
    assert set(list_tree(os.getpid())) == before
    assert len(os.listdir("/proc/self/fd")) == opened
    assert sandbox.call(b"echo x") == b"x"


def test_zygote__killed_from_outside__is_started_again(best: Sandbox):
    best.call(b"echo x")
    (zygote,) = best.process_ids
    os.kill(zygote, signal.SIGKILL)
    assert best.run(b"echo x", attempts=2).answer == b"x"
    assert best.process_ids != (zygote,)


def test_parent__killed_in_a_call__leaves_no_process(isolation):
    code = f"""
import os, sys, threading
from covey.sandbox import CallLimits, Sandbox
sandbox = Sandbox({HOSTILE!r}, isolation={isolation.level!r})
sandbox.call(b"echo x")
print(*sandbox.process_ids, flush=True)
threading.Timer(0.3, os.kill, (os.getpid(), 9)).start()
sandbox.call(b"spin_in_children")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    zygote, deadline = int(done.stdout), time.monotonic() + 60
    while (is_alive(zygote) or list_tree(zygote)) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert not is_alive(zygote)
    assert list_tree(zygote) == []


@pytest.mark.parametrize(
    "calls", [pytest.param(200, id="quick"), pytest.param(1000, id="full", marks=pytest.mark.full)]
)
def test_run_many__mixed_calls__no_zombie_and_no_growth(build: Build, calls: int):
    words = [b"echo 1", b"exit 3", b"daemon", b"eat 50000000", b"write file", b"refuse", b"fork_bomb", b"leave 5"]
    sandbox = build(processes=2, recycle=10_000)
    sandbox.run_many(words * 2)
    zygotes, opened = sandbox.process_ids, len(os.listdir("/proc/self/fd"))
    held = [measure(zygote) for zygote in zygotes]
    outcomes = sandbox.run_many([words[i % len(words)] for i in range(calls)])
    assert [outcome.answer for outcome in outcomes[::8]] == [b"1"] * (calls // 8)
    assert {outcome.error.code for outcome in outcomes[1::8] if outcome.error} == {"sandbox_died"}
    assert sandbox.process_ids == zygotes
    assert [list_tree(zygote) for zygote in zygotes] == [[], []]
    assert all(measure(zygote) < before + (2 << 20) for zygote, before in zip(zygotes, held, strict=True))
    assert len(os.listdir("/proc/self/fd")) == opened


def measure(process_id: int) -> int:
    """Return the resident memory of the process in bytes."""
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * 4096


def test_hash__of_text__is_the_same_everywhere(best: Sandbox, build: Build):
    """All graders iterate sets of strings in the same order."""
    assert best.call(b"hash abc") == build(isolation="limits").call(b"hash abc")


def test_call__many_open_files__still_waits(best: Sandbox):
    """A busy server has descriptors above 1023, which select() refuses."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("fewer than 2,048 files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    opened: list[int] = []
    try:
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        assert best.call(b"echo hello") == b"hello"
        best.close()
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_sandbox__as_another_user__isolates_as_well(tmp_path: Path):
    """Most users are not root, so an ordinary user must get the same isolation."""
    if os.geteuid() != 0:
        pytest.skip("the other tests run as a plain user already")
    code = f"""
import sys
from covey.sandbox import LEVELS, CallLimits, Sandbox, try_level
for level in LEVELS:
    trial = try_level(level)
    if trial.isolation is None:
        print(level, "-", trial.reason)
        continue
    limits = CallLimits(cpu_seconds=1, memory_bytes=1 << 28, processes=16)
    with Sandbox({HOSTILE!r}, isolation=level, limits=limits) as made:
        error = made.run(b"spin").error
        print(level, made.call(b"echo well").decode(), error.code, int(made.call(b"fork_bomb")) < 40)
"""
    done = run_as_nobody(code, tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    for level in ("unshare", "landlock", "limits"):
        assert f"{level} well sandbox_cpu True" in lines or any(line.startswith(f"{level} -") for line in lines), lines
    assert "limits well sandbox_cpu True" in lines


def run_as_nobody(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python as a user that owns no files but can reach the interpreter."""
    from covey.sandbox import launcher

    readable = [sys.prefix, sys.base_prefix, str(ROOT / "covey"), str(ROOT / "tests")]
    readable += [str(Path(sys.executable).resolve().parent)]
    order = f'{{"needed": {str(readable).replace(chr(39), chr(34))}, "owned": ["{folder}"], "may_stay_root": false}}'
    command = [sys.executable, "-I", "-S", str(launcher.__file__), order, sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_limits__of_a_call__are_what_the_tests_think() -> None:
    assert (LIMITS.processes, LIMITS.output_bytes) == (16, 1 << 20)


def test_die__of_honest_work__does_not_pass(best: Sandbox):
    with pytest.raises(AssertionError):
        die(best, b"echo x")
