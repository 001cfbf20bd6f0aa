import os
import sys
import time
from pathlib import Path

import pytest

from covey.demo import processes as module
from covey.demo.processes import Processes
from covey.errors import OperatorError

pytestmark = pytest.mark.integration


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Processes that run a line of Python instead of a command of ours."""

    made = Processes(tmp_path / "logs")
    popen = module.subprocess.Popen
    monkeypatch.setattr(
        module.subprocess, "Popen", lambda command, **options: popen([sys.executable, "-c", command[3]], **options)
    )
    yield made
    for running in made.running:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


def await_text(running, text):
    deadline = time.monotonic() + 10
    while text not in running.log.read_text():
        assert time.monotonic() < deadline
        os.sched_yield()


SLEEP = "import time; print('up', flush=True); time.sleep(60)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def test_start__output_to_a_log__and_no_secret_in_the_environment(play, monkeypatch):
    monkeypatch.setenv("COVEY_SECRET", "x")
    running = play.start("a", "import os; print(sorted(os.environ))")
    assert running.process.wait(10) == 0
    names = running.log.read_text()
    assert "OMP_NUM_THREADS" in names
    assert "COVEY_SECRET" not in names
    assert play.has_ended("a")
    assert play.get("a") is running


def test_start__same_name_again__replaces_and_adds_to_its_log(play):
    for word in ("first", "second"):
        play.start("a", f"print('{word}')").process.wait(10)
    assert len(play.running) == 1
    assert play.get("a").log.read_text() == "first\nsecond\n"


def test_require_alive__dead_one__named_with_its_last_words(play):
    play.start("good", SLEEP)
    play.start("bad", "import sys; print('covey: no_key: none'); sys.exit(3)").process.wait(10)
    with pytest.raises(OperatorError, match=r"process_died: bad ended with 3:\ncovey: no_key: none"):
        play.require_alive()
    with pytest.raises(OperatorError):
        play.require_alive(ended=("bad",))


def test_require_alive__one_that_may_have_ended__only_with_0(play):
    play.start("done", "pass").process.wait(10)
    play.require_alive(ended=("done",))
    with pytest.raises(OperatorError, match="done ended with 0"):
        play.require_alive()


def test_stop__all_end__also_the_deaf_and_their_children(play, monkeypatch):
    monkeypatch.setattr(module, "STOP_SECONDS", 0.3)
    child = (
        "import subprocess, sys; other = subprocess.Popen([sys.executable, '-c', "
        f"{SLEEP!r}], stdout=subprocess.DEVNULL); print(other.pid, flush=True); {SLEEP}"
    )
    parent, deaf = play.start("parent", child), play.start("deaf", DEAF)
    await_text(parent, "up")
    await_text(deaf, "up")
    pid = int(parent.log.read_text().split()[0])
    play.stop()
    assert parent.process.returncode == -15
    assert deaf.process.returncode == -9
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        os.sched_yield()


def test_kill__at_once__no_handler_runs(play):
    deaf = play.start("deaf", DEAF)
    await_text(deaf, "up")
    play.kill("deaf")
    assert deaf.process.returncode == -9
