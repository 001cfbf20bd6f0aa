"""Limits of a call, at every isolation level that this machine supports."""

import math
import signal
import time

import pytest

from covey.sandbox import CallLimits, Sandbox
from tests.fakes.cpu_unit import measure_cpu_unit
from tests.integration.sandbox.conftest import LIMITS, Build, die, list_tree

pytestmark = pytest.mark.integration


def narrow(**changes: float) -> CallLimits:
    values = {name: getattr(LIMITS, name) for name in CallLimits.__dataclass_fields__}
    return CallLimits(**(values | changes))  # type: ignore[arg-type]


def require_quiet(sandbox: Sandbox, *, attempts: int = 1) -> None:
    """Check that the next call succeeds and that nothing of an earlier call is left."""
    assert sandbox.call(b"echo next", attempts=attempts) == b"next"
    (zygote,) = sandbox.process_ids
    assert list_tree(zygote) == []


@pytest.mark.parametrize(("word", "processes"), [(b"spin", 1), (b"spin_unbound", 1), (b"spin_in_children", 3)])
def test_cpu__endless_loop__ends_at_its_cpu_seconds(build: Build, isolation, word: bytes, processes: int):
    """The kernel ends each process after two whole seconds, even if the sandbox's own limit fails.

    A busy machine can delay the process that watches, so only one of several calls has to end well before that.
    """
    sandbox = build(isolation=isolation.level, limits=narrow(cpu_seconds=0.5))
    least = math.inf
    for _ in range(10):
        outcome = sandbox.run(word)
        assert getattr(outcome.error, "code", None) == "sandbox_cpu"
        assert outcome.error.is_limit
        assert 0.2 < outcome.cpu_seconds < 2 * processes + 1.1
        least = min(least, outcome.cpu_seconds)
        if least < 1.5:
            break
    assert least < 1.5, "only the kernel's limit has ended it"
    require_quiet(sandbox)


@pytest.mark.parametrize("number", [signal.SIGPROF, signal.SIGXCPU])
def test_cpu__signal_that_the_call_sends_itself__is_no_limit(build: Build, isolation, number: int):
    outcome = build(isolation=isolation.level, limits=narrow(cpu_seconds=20)).run(b"signal %d" % number)
    assert getattr(outcome.error, "code", None) == "sandbox_died"


def test_cpu__honest_call__is_measured(sandbox: Sandbox):
    echo, sleeper = sandbox.run(b"echo x").cpu_seconds, sandbox.run(b"sleep 0.5").cpu_seconds
    assert 0 < echo < 100 * measure_cpu_unit()
    assert sleeper < echo + 0.4, "time that a call sleeps is no CPU time"


def test_wall__sleeper__ends_and_the_zygote_stays(build: Build, isolation):
    """A machine that pauses lets calls that do not sleep reach the short limit, too, so they get further attempts."""
    sandbox = build(isolation=isolation.level, limits=narrow(wall_seconds=0.5))
    sandbox.call(b"echo warm", attempts=100)
    zygote, started = sandbox.process_ids, time.monotonic()
    assert die(sandbox, b"sleep 600") == "sandbox_timeout"
    assert time.monotonic() - started > 0.45
    require_quiet(sandbox, attempts=100)
    assert sandbox.process_ids == zygote


@pytest.mark.parametrize("word", [b"eat 1000000000", b"eat_everything"])
def test_memory__of_one_process__ends(sandbox: Sandbox, word: bytes):
    assert die(sandbox, word) == "sandbox_memory"
    require_quiet(sandbox)


def test_memory__of_many_processes__counts_together(sandbox: Sandbox):
    assert die(sandbox, b"eat_in_children") == "sandbox_memory"
    require_quiet(sandbox)


def test_memory__within_the_limit__is_served(sandbox: Sandbox):
    assert sandbox.call(b"eat 100000000") == b"100000000"


def test_processes__fork_bomb__is_bounded(sandbox: Sandbox):
    assert int(sandbox.call(b"fork_bomb")) < 40
    require_quiet(sandbox)


def test_processes__that_fork_for_ever__end(build: Build, isolation):
    sandbox = build(isolation=isolation.level, limits=narrow(cpu_seconds=0.5, wall_seconds=60))
    assert die(sandbox, b"fork_for_ever") in {"sandbox_cpu", "sandbox_died", "sandbox_timeout"}
    require_quiet(sandbox)


def test_output__at_and_over_the_limit(sandbox: Sandbox):
    assert sandbox.call(b"say 1048576") == bytes(1 << 20)
    assert die(sandbox, b"say 1048577") == "sandbox_output"
    assert die(sandbox, b"say_for_ever") == "sandbox_output"
    require_quiet(sandbox)


def test_scratch__filled__has_its_size_and_is_empty_for_the_next_call(sandbox: Sandbox, isolation):
    written = int(sandbox.call(b"fill"))
    assert written >= 4 << 20
    if isolation.has_namespaces:
        assert written <= 8 << 20
    assert sandbox.call(b"list .") == b""


def test_scratch__file_over_the_limit__ends_the_call(sandbox: Sandbox):
    assert sandbox.call(b"write small") == b"written"
    assert sandbox.call(b"open small").startswith(b"!")


@pytest.mark.parametrize("levels", [3, 300, 2000])
def test_scratch__deep_folders_without_rights__are_gone(sandbox: Sandbox, levels: int):
    assert sandbox.call(b"leave %d" % levels) == b"left"
    assert sandbox.call(b"list .") == b""


def test_died__code_tells_it_from_a_limit(sandbox: Sandbox):
    for word in (b"exit 0", b"exit 3", b"quit", b"segfault", b"raise", b"answer_odd"):
        error = sandbox.run(word).error
        assert (error.code, error.is_limit) == ("sandbox_died", False), word
    assert "ValueError" in str(sandbox.run(b"raise").error)
    require_quiet(sandbox)
