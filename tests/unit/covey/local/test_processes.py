import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.local import logs
from covey.local import processes as module
from covey.local.processes import Processes, build_environment

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[4]
HANG_S = 180.0
"""Deadline against hanging, in seconds. The first process waits for the heavy imports of its server."""


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Return processes that run a line of Python instead of a command of Covey."""
    (tmp_path / "line.py").write_text("import sys\nexec(sys.argv[-1])\n")
    monkeypatch.syspath_prepend(tmp_path)

    class Lines(Processes):
        def start(self, name, code, *, command="play"):
            return super().start(name, command, code, module="line")

    made = Lines(tmp_path / "logs", environment=build_environment(tmp_path / "logs" / "tmp"))
    yield made
    monkeypatch.setattr(module, "STOP_SECONDS", (0.1,) * 4)
    made.stop()


def await_text(running, text):
    deadline = time.monotonic() + HANG_S
    while text not in running.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def test_start__output_to_a_log__and_no_secret_in_the_environment(play, monkeypatch):
    monkeypatch.setenv("COVEY_SECRET", "x")
    running = play.start("a", "import os, tempfile; print(sorted(os.environ), tempfile.gettempdir())")
    assert running.wait(HANG_S) == 0
    printed = running.log.read_text()
    assert "OMP_NUM_THREADS" in printed
    assert "COVEY_SECRET" not in printed
    assert str(running.log.parent / "tmp") in printed
    assert play.has_ended("a")
    assert play.get("a") is running


def test_start__session_and_name__are_its_own(play):
    code = "import os, pathlib; print(os.getpid() == os.getsid(0), pathlib.Path('/proc/self/cmdline').read_text())"
    running = play.start("a", code)
    assert running.wait(HANG_S) == 0
    own, name = running.log.read_text().split(maxsplit=1)
    assert own == "True"
    assert name.startswith("line play import os")


def test_start__heavy_imports__are_there(play):
    running = play.start("a", "import sys; print('torch' in sys.modules, 'transformers' in sys.modules)")
    assert running.wait(HANG_S) == 0
    assert running.log.read_text() == "True True\n"


def test_start__the_server_it_is_forked_from__has_one_thread(play):
    """A fork copies only one thread, so locks that others hold would never be released."""
    running = play.start("a", "import os; print(len(os.listdir(f'/proc/{os.getppid()}/task')))")
    assert running.wait(HANG_S) == 0
    assert running.log.read_text() == "1\n"


def test_start__same_name_again__replaces_and_adds_to_its_log(play):
    for word in ("first", "second"):
        play.start("a", f"print('{word}')").wait(HANG_S)
    assert len(play.running) == 1
    assert play.get("a").log.read_text() == "first\nsecond\n"


def test_start__the_folder_of_logs_was_deleted__makes_it_again(play):
    first = play.start("a", "print('first')")
    assert first.wait(HANG_S) == 0
    shutil.rmtree(first.log.parent)
    again = play.start("a", "print('second')")
    assert again.wait(HANG_S) == 0
    assert again.log.read_text() == "second\n"


def test_rotate_logs__one_cannot_be_moved__is_named_and_the_next_is_moved(play, monkeypatch):
    running = [play.start(name, f"print('{name} is over the limit')") for name in "ab"]
    for each in running:
        assert each.wait(HANG_S) == 0
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 5)
    (running[0].log.parent / "a.log.1").mkdir()  # in the way, as a full disk would be
    assert play.rotate_logs() == f"the log {running[0].log} cannot be rotated: Is a directory"
    assert [each.log.stat().st_size > 0 for each in running] == [True, False]
    running[0].log.unlink()
    assert play.rotate_logs() is None


def test_require_alive__dead_one__named_with_its_last_words(play):
    play.start("good", SLEEP)
    play.start("bad", "import sys; print('covey: no_key: none'); sys.exit(3)").wait(HANG_S)
    with pytest.raises(
        OperatorError, match=r"process_died: bad ended with exit code 3; its log ends with:\ncovey: no_key: none"
    ):
        play.require_alive()
    with pytest.raises(OperatorError):
        play.require_alive(ended=("bad",))


def test_require_alive__one_that_may_have_ended__only_with_0(play):
    play.start("done", "pass").wait(HANG_S)
    play.require_alive(ended=("done",))
    with pytest.raises(OperatorError, match="done ended with exit code 0"):
        play.require_alive()


def test_wait__still_running__is_a_timeout(play):
    with pytest.raises(TimeoutError, match="sleeper is still running"):
        play.start("sleeper", SLEEP).wait(0.1)


def test_stop__all_end__also_the_deaf_and_their_children(play, monkeypatch):
    monkeypatch.setattr(module, "STOP_SECONDS", (HANG_S, 0.1, 0.1, 0.1))
    child = (
        f"import subprocess; other = subprocess.Popen([{sys.executable!r}, '-c', "
        f"{SLEEP!r}], stdout=subprocess.DEVNULL); print(other.pid, flush=True); {SLEEP}"
    )
    parent, deaf = play.start("parent", child), play.start("deaf", DEAF, command="trainer")
    await_text(parent, "up")
    await_text(deaf, "up")
    pid = int(parent.log.read_text().split()[0])
    play.stop()
    assert parent.exit_code == -15
    assert deaf.exit_code == -9
    deadline = time.monotonic() + HANG_S
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_stop__right_after_the_start__ends_all(play):
    """Before a process leads its session, there is no group with its id to signal."""
    for n in range(5):
        play.start(f"p{n}", SLEEP)
    play.stop()
    assert {running.exit_code for running in play.running} == {-15}, "none had to be killed"


LATE = (
    "import pathlib, signal, sys, time\n"
    "def end(*_):\n"
    "    time.sleep(0.3)\n"
    "    pathlib.Path({ended!r}).open('a').write(sys.argv[1] + '\\n')\n"
    "    sys.exit()\n"
    "signal.signal(15, end); print('up', flush=True); time.sleep(600)"
)
"""Program that writes its command to a file, some time after the stop signal."""


def test_stop__what_others_depend_on__ends_after_them(play, tmp_path):
    """The order of starting does not matter: a worker submits to a coordinator, which sends to a chain."""
    ended = tmp_path / "ended"
    for command in ("worker", "devnet", "trainer", "coordinator", "validator"):
        await_text(play.start(command, LATE.format(ended=str(ended)), command=command), "up")
    play.stop()
    first, second, *others = ended.read_text().split()
    assert {first, second} == {"worker", "validator"}
    assert others == ["trainer", "coordinator", "devnet"]
    assert {running.exit_code for running in play.running} == {0}


def test_stop__one_that_is_deaf__is_named_and_killed_and_the_next_phase_has_its_own_time(play, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STOP_SECONDS", (0.5, HANG_S, HANG_S, HANG_S))
    monkeypatch.setattr(module, "SAY_SECONDS", 0.1)
    deaf, said = play.start("w", DEAF, command="worker"), []
    trainer = play.start("t", LATE.format(ended=str(tmp_path / "ended")), command="trainer")
    await_text(deaf, "up")
    await_text(trainer, "up")
    play.stop(said.append)
    assert (deaf.exit_code, trainer.exit_code) == (-9, 0)
    assert said[:2] == ["waiting at most 0 s more for w to stop", "killing w, which did not stop within 0 s"]


def test_kill__at_once__no_handler_runs(play):
    deaf = play.start("deaf", DEAF)
    await_text(deaf, "up")
    play.kill("deaf")
    assert deaf.exit_code == -9


def test_start__the_starter_is_killed__the_process_and_its_children_end(tmp_path):
    """This is what `kill -9` of the demo does. A network must not continue without a process that can stop it."""
    child = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    started = (
        "import os, pathlib, sys, time; from covey.local import processes\n"
        "processes.PRELOAD = 'covey.errors'  # a server that costs nothing\n"
        "running = processes.Processes(pathlib.Path(sys.argv[1]), environment=os.environ)\n"
        "running = running.start('a', sys.argv[2], module='line')\n"
        "print(running.pid, flush=True); time.sleep(600)"
    )
    (tmp_path / "line.py").write_text("import sys\nexec(sys.argv[-1])\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    starter = subprocess.Popen(
        [sys.executable, "-c", started, str(tmp_path / "logs"), child],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    log = tmp_path / "logs" / "a.log"
    deadline = time.monotonic() + HANG_S
    while not log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = [pid, int(log.read_text())]
    starter.kill()
    starter.communicate()
    deadline = time.monotonic() + HANG_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


ORPHANED = """
import os, pathlib, signal, sys, time
from covey.local import processes
processes.PRELOAD = "covey.errors"  # a server that costs nothing
if __name__ == "__main__":
    started = processes.Processes(pathlib.Path(sys.argv[1]), environment=os.environ)
    ends = started.start("ends", "import os, time; print(os.getppid(), flush=True); time.sleep(600)", module="line")
    lives = started.start("lives", "import time; print('up', flush=True); time.sleep(600)", module="line")
    deadline = time.monotonic() + 60
    while not (ends.log.read_text() and lives.log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(int(ends.log.read_text()), signal.SIGKILL)
    lives.process.join(60)  # the server's pipe is closed by now
    print(lives.process.exitcode, ends.exit_code, lives.exit_code)
    ends.signal(signal.SIGKILL)
    print(ends.wait(60), lives.exit_code)
    try:
        lives.wait(0.1)
    except TimeoutError:
        print("is still running")
    print(started.start("next", "print('up')", module="line").wait(60))
    started.stop()
    print(lives.exit_code)
"""


def test_exit_code__the_server_is_killed__what_runs_is_seen_alive(tmp_path):
    """Otherwise a keeper would start a second instance alongside the live one."""
    (tmp_path / "line.py").write_text("import sys\nexec(sys.argv[-1])\n")
    (tmp_path / "orphaned.py").write_text(ORPHANED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "orphaned.py"), str(tmp_path / "logs")],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=5 * HANG_S,
        check=False,
    )
    assert done.stdout.splitlines() == ["255 None None", "255 None", "is still running", "0", "255"], done.stderr


def is_alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # It ended just now.
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
