import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.errors import OperatorError
from covey.local import keeper as module
from covey.local.keeper import LOCK_FILE, MAX_PAUSE, MAX_RESTARTS, STEADY_SECONDS, Keeper, locked, stop_keeper

pytestmark = pytest.mark.unit
HANG_S = 60.0
"""Deadline against hanging, in seconds."""
HOLD = """
import sys, time
from pathlib import Path
from covey.local.keeper import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


class FakeProcesses:
    """Starts nothing; a test sets the exit codes."""

    def __init__(self, logs, *, environment, cwd, is_alone):
        self.logs, self.started, self.rotations, self.log_trouble = logs, [], 0, None
        self.environment = environment
        logs.mkdir(parents=True)

    def start(self, name, *arguments):
        log = self.logs / f"{name}.log"
        log.write_text("first\nlast words\n")
        running = SimpleNamespace(name=name, arguments=arguments, exit_code=None, log=log, begun=0, pid=1)
        self.started.append(running)
        return running

    def rotate_logs(self):
        self.rotations += 1
        return self.log_trouble


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, said: list[str]) -> Keeper:
    monkeypatch.setattr(module, "Processes", FakeProcesses)
    commands = {"relay": 'relay run --root "my relay"', "worker": "worker run"}
    return Keeper(tmp_path, commands, say=said.append, clock=clock)


def fail(keeper: Keeper, place: int, code: int) -> None:
    running = keeper.kept[place].running
    assert running is not None
    running.exit_code = code  # type: ignore[misc]


def test_start__commands__are_split_as_a_shell_does(keeper: Keeper):
    keeper.start("relay")
    assert [each.state for each in keeper.kept] == ["runs", "waits"]
    keeper.start()
    assert [each.arguments for each in keeper._processes.started] == [
        ("relay", "run", "--root", "my relay"),
        ("worker", "run"),
    ]


def test_start__variables_of_commands__do_not_reach_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "Processes", FakeProcesses)
    for name in ("COVEY_KEY_FILE", "COVEY_POOL", "COVEY_DEPLOYMENT", "COVEY_RPC_URL", "COVEY_COORDINATOR_URL"):
        monkeypatch.setenv(name, "a person's")
    monkeypatch.setenv("COVEY_LOG_LEVEL", "debug")
    environment = Keeper(tmp_path, {"worker": "worker run"}, say=print)._processes.environment
    assert {name: value for name, value in environment.items() if name.startswith("COVEY_")} == {
        "COVEY_LOG_LEVEL": "debug"
    }
    assert environment["PATH"] == os.environ["PATH"]


def fail_and_restart(keeper: Keeper, clock: Clock, place: int, code: int = 1) -> float:
    """Let a process fail and wait until it is restarted. Return the pause in seconds."""
    fail(keeper, place, code)
    keeper.look()
    assert keeper.kept[place].state == "restarting"
    begun = clock.now
    while keeper.kept[place].restart_at is not None:
        clock.now += 0.5
        keeper.look()
    return clock.now - begun


def make_keeper(folder: Path, clock: Clock, said: list[str], commands: dict[str, str]) -> Keeper:
    keeper = Keeper(folder, commands, say=said.append, clock=clock)
    keeper.start()
    return keeper


def give_up(keeper: Keeper, clock: Clock, place: int) -> None:
    """Let a process fail until it is given up."""
    for _ in range(MAX_RESTARTS):
        fail_and_restart(keeper, clock, place)
    (keeper._processes.logs / f"{keeper.kept[place].name}.log").write_text(
        "covey: no_key: the key is missing. Add it\n"
    )
    fail(keeper, place, 1)
    keeper.look()


def test_look__one_keeps_failing__is_given_up_alone_after_doubling_pauses(
    keeper: Keeper, clock: Clock, said: list[str], tmp_path: Path
):
    keeper.start()
    assert [fail_and_restart(keeper, clock, 0) for _ in range(MAX_RESTARTS)] == [1, 2, 4, 8, 16, 32]
    assert said[0] == "relay ended with exit code 1 and restarts in 1 s; its last error is: last words"
    (keeper._processes.logs / "relay.log").write_text("covey: bad_port: port 9 is taken. Choose another one\n")
    fail(keeper, 0, 1)
    keeper.look()
    assert said[-1] == (
        "relay failed 7 times and is given up; its last error is: bad_port: port 9 is taken. Choose another one; "
        f'start it again with: cd {tmp_path} && covey relay run --root "my relay"'
    )
    count = len(said)
    clock.now += 1000
    keeper.look()
    assert [each.state for each in keeper.kept] == ["failed", "runs"]
    assert len(said) == count, "it is not looked at again"
    with pytest.raises(OperatorError) as caught:
        keeper.require_none_failed()
    assert caught.value.code == "keeps_failing"
    assert caught.value.message == (
        "relay failed 7 times, so it was given up; its last error is: bad_port: port 9 is taken. Choose another one. "
        f"Correct the cause, which {keeper._processes.logs}/relay.log explains, and run covey up {tmp_path} again"
    )


def test_require_none_failed__all_run__is_no_error(keeper: Keeper):
    keeper.start()
    keeper.require_none_failed()


@pytest.mark.parametrize("command", ["coordinator serve", "coordinator jobs", "devnet up", "trainer run"])
def test_look__one_that_all_need_keeps_failing__ends_all(
    keeper: Keeper, tmp_path: Path, clock: Clock, said: list[str], command: str
):
    made = make_keeper(tmp_path / "pool", clock, said, {"needed": command, "worker": "worker run"})
    with pytest.raises(OperatorError, match=r"keeps_failing: needed failed 7 times, so all processes are .* no_key: "):
        give_up(made, clock, 0)


def test_look__no_other_one_is_left__ends_all(keeper: Keeper, clock: Clock):
    keeper.start("relay")
    give_up(keeper, clock, 0)
    keeper.start("worker")
    with pytest.raises(OperatorError, match="keeps_failing: worker failed 7 times, so all processes are stopped"):
        give_up(keeper, clock, 1)


def test_look__one_fails_that_was_steady_once__is_restarted_without_an_end(
    keeper: Keeper, tmp_path: Path, clock: Clock, said: list[str]
):
    made = make_keeper(tmp_path / "pool", clock, said, {"trainer": "trainer run"})
    clock.now += STEADY_SECONDS
    made.look()
    pauses = [fail_and_restart(made, clock, 0) for _ in range(3 * MAX_RESTARTS)]
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, MAX_PAUSE, MAX_PAUSE]
    assert made.kept[0].why == "last words"


def test_look__transient_errors__are_restarted_without_an_end_and_do_not_count(
    keeper: Keeper, tmp_path: Path, clock: Clock, said: list[str]
):
    made = make_keeper(tmp_path / "pool", clock, said, {"coordinator": "coordinator serve"})
    for _ in range(3 * MAX_RESTARTS):
        fail_and_restart(made, clock, 0, os.EX_TEMPFAIL)
    assert said[-1].startswith("coordinator ended with exit code 75 and restarts in 60 s; ")
    for _ in range(MAX_RESTARTS):
        fail_and_restart(made, clock, 0)


def test_look__one_restarted__is_restarting_until_it_has_run_for_a_minute(keeper: Keeper, clock: Clock):
    keeper.start()
    assert fail_and_restart(keeper, clock, 1) == 1
    assert [each.state for each in keeper.kept] == ["runs", "restarting"]
    assert keeper.kept[1].why == "last words"
    clock.now += STEADY_SECONDS
    keeper.look()
    assert [each.state for each in keeper.kept] == ["runs", "runs"]
    assert fail_and_restart(keeper, clock, 1) == 1, "the pauses begin again"


def test_look__one_that_ended_with_0__has_done_its_work(keeper: Keeper, said: list[str]):
    keeper.start()
    fail(keeper, 1, 0)
    keeper.look()
    assert ([each.state for each in keeper.kept], said) == (["runs", "done"], [])


def test_look__for_a_minute__keeps_the_logs_small_every_ten_seconds(keeper: Keeper, clock: Clock):
    keeper.start()
    for _ in range(240):
        clock.now += 0.25
        keeper.look()
    assert keeper._processes.rotations == 6


def test_look__the_disk_is_full__says_so_once_and_goes_on(keeper: Keeper, clock: Clock, said: list[str]):
    keeper.start()
    for trouble in ("disk is full", "disk is full", None, "disk is full"):
        keeper._processes.log_trouble = trouble
        clock.now += module.ROTATE_SECONDS
        keeper.look()
    assert said == ["disk is full", "disk is full"]
    assert [each.state for each in keeper.kept] == ["runs", "runs"]


def test_locked__a_second_time__names_the_first(tmp_path: Path):
    with locked(tmp_path), pytest.raises(OperatorError) as caught, locked(tmp_path):
        raise AssertionError("two keepers have one folder")
    assert caught.value.code == "already_up"
    assert f"managed by process {os.getpid()}" in caught.value.message
    with locked(tmp_path):
        pass


def test_stop_keeper__nothing_runs__says_so(tmp_path: Path):
    assert stop_keeper(tmp_path) is False
    with locked(tmp_path):
        pass
    assert stop_keeper(tmp_path) is False


@pytest.mark.integration
def test_stop_keeper__one_runs__ends_it_and_waits(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert stop_keeper(tmp_path, seconds=HANG_S) is True
    assert process.wait(HANG_S) == -signal.SIGTERM
    process.stdout.close()


@pytest.mark.integration
def test_stop_keeper__the_keeper_was_killed__leaves_the_process_that_has_its_id_now(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (tmp_path / LOCK_FILE).write_text(f"{stranger.pid}\n")
        assert stop_keeper(tmp_path) is False
        assert stranger.poll() is None
        stranger.communicate(b"\n", timeout=HANG_S)
    assert stranger.returncode == 0


def test_stop_keeper__the_next_keeper_has_not_written_its_id_yet__signals_only_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The lock is held, but the file still contains the process id of a keeper that was killed."""
    file, signalled = tmp_path / LOCK_FILE, []
    file.write_text("1111\n")
    with file.open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def look_again(_: float) -> None:
            file.write_text("2222\n")

        def end(pid: int, number: int) -> None:
            signalled.append((pid, number))
            fcntl.flock(held, fcntl.LOCK_UN)

        monkeypatch.setattr(module, "threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=look_again)))
        monkeypatch.setattr(module.os, "kill", end)
        assert stop_keeper(tmp_path, seconds=HANG_S) is True
    assert signalled == [(2222, signal.SIGTERM)]


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Time passes only while `stop_keeper` waits."""

    def wait(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(module, "threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=wait)))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))


@pytest.mark.usefixtures("passing")
@pytest.mark.parametrize("text", ["", "half", "99999999"])
def test_stop_keeper__no_process_has_the_id__is_an_error_that_says_so(tmp_path: Path, text: str):
    file = tmp_path / LOCK_FILE
    file.write_text(text)
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OperatorError) as caught:
            stop_keeper(tmp_path, seconds=20)
    assert caught.value.code == "still_up"
    assert text in caught.value.message


@pytest.mark.usefixtures("passing")
def test_stop_keeper__takes_long__names_what_it_waits_for_again_and_again(tmp_path: Path, said: list[str]):
    file = tmp_path / LOCK_FILE
    file.write_text("99999999")
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OperatorError):
            stop_keeper(tmp_path, seconds=35, say=said.append)
    assert said == [
        f"waiting at most {left} s more for process 99999999 to stop the processes of {tmp_path}"
        for left in (25, 15, 5)
    ]


@pytest.mark.usefixtures("passing")
def test_stop_keeper__kept_by_another_user__is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(module.os, "kill", refuse)
    with locked(tmp_path), pytest.raises(OperatorError) as caught:
        stop_keeper(tmp_path, seconds=5)
    assert caught.value.code == "not_yours"
    assert str(os.getpid()) in caught.value.message
