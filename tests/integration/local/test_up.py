"""`covey up` and `covey down` as a user runs them, in a folder with a single lightweight process.

The fork server imports nothing heavy here, because that would take seconds of CPU time.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.local.folder import create_pool_folder, write_processes
from covey.local.keeper import LOCK_FILE, stop_keeper
from covey.local.plan import PoolPlan
from covey.runtime.http import find_free_ports, listen

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]
LIGHT = "import covey.local.processes\ncovey.local.processes.PRELOAD = 'covey.errors'\n"
HANG_S = 180.0
"""Deadline against hanging, in seconds. A command starts two interpreters, one after the other."""


@pytest.fixture
def port() -> int:
    return find_free_ports(1)[0]


@pytest.fixture
def folder(tmp_path: Path, port: int) -> Iterator[Path]:
    (tmp_path / "sitecustomize.py").write_text(LIGHT)
    made = tmp_path / "mine"
    made.mkdir()
    write_processes(made / "processes.toml", {"origin": f"origin run --root origin --port {port}"})
    yield made
    stop_keeper(made)


def build_command(folder: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    environment = os.environ | {"PYTHONPATH": f"{folder.parent}:{ROOT}", "COLUMNS": "200"}
    return [sys.executable, "-m", "covey", *arguments], environment


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return exit status and output of a `covey` command."""
    command, environment = build_command(folder, *arguments)
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout


def is_free(port: int) -> bool:
    try:
        listen("127.0.0.1", port).close()
    except OperatorError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up__a_stop_signal__ends_its_processes_and_then_itself(folder: Path, port: int, number: signal.Signals):
    command, environment = build_command(folder, "up", str(folder))
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: origin")
        assert (folder / LOCK_FILE).read_text() == f"{process.pid}\n"
        process.send_signal(number)
        assert process.communicate(timeout=HANG_S)[0].endswith("ending\n")
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
    assert is_free(port)
    assert (folder / LOCK_FILE).read_text() == ""


def test_up__detached__runs_until_down(folder: Path, port: int):
    assert run(folder, "down", str(folder)) == (0, f"{folder}: nothing was running\n")
    code, printed = run(folder, "up", str(folder), "--detach")
    assert (code, printed.splitlines()[-1]) == (0, f"stop them with covey down {folder}")
    assert "\nrunning: origin; logs are in" in f"\n{printed}"  # A slow machine says first what it waits for.
    code, printed = run(folder, "up", str(folder))
    pid = (folder / LOCK_FILE).read_text().strip()
    assert code == 1
    assert re.match(rf"covey: already_up: .* managed by process {pid}\.", printed)
    assert run(folder, "down", str(folder)) == (0, f"{folder}: ended\n")
    assert is_free(port)
    assert (folder / LOCK_FILE).read_text() == ""


def test_up__killed__down_says_that_nothing_runs_and_its_processes_have_ended(folder: Path, port: int):
    assert run(folder, "up", str(folder), "--detach")[0] == 0
    os.kill(int((folder / LOCK_FILE).read_text()), signal.SIGKILL)
    deadline = time.monotonic() + HANG_S
    while not is_free(port):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert run(folder, "down", str(folder)) == (0, f"{folder}: nothing was running\n")


def test_up__detached_and_the_coordinators_port_is_taken__is_an_error_with_the_port(folder: Path, port: int):
    pool = folder.parent / "pool"
    create_pool_folder(pool, PoolPlan(port=port))
    with listen("127.0.0.1", port):
        code, printed = run(folder, "up", str(pool), "--detach")
    assert code == 1
    last = printed.splitlines()[-1]
    assert last.startswith(f"covey: address_in_use: cannot listen on 127.0.0.1:{port}")
    assert f"or move the pool to free ports with covey up {pool} --port " in last


def test_up__detached_and_it_ends_with_a_traceback__is_an_error_with_its_last_line(folder: Path):
    (folder / LOCK_FILE).mkdir()
    code, printed = run(folder, "up", str(folder), "--detach")
    assert code == 1
    last = printed.splitlines()[-1]
    assert last.startswith(
        "covey: process_died: covey up ended with exit code 1; the last line of its log is: IsADirectoryError: "
    )
    assert last.endswith(f"Read {folder / 'logs' / 'up.log'}")


def test_up__a_trainer_cannot_start__does_not_say_that_it_is_ready_and_names_it(folder: Path, port: int):
    origin = f"origin run --root origin --port {port}"
    write_processes(folder / "processes.toml", {"origin": origin, "trainer": "trainer run --config none.toml"})
    said_often = "import covey.local.keeper\ncovey.local.keeper.REPEAT_SECONDS = 0.5\n"
    (folder.parent / "sitecustomize.py").write_text(LIGHT + said_often)
    command, environment = build_command(folder, "up", str(folder))
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        lines = []
        while not lines or lines[-1] != "waiting for trainer\n":
            lines.append(process.stdout.readline())
            assert lines[-1], "it has ended"
            assert not lines[-1].startswith("ready: ")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG_S)


IMPATIENT = "import covey.local.keeper\ncovey.local.keeper.MAX_RESTARTS = 1\n"


def test_up__a_trainer_keeps_failing__says_why_gives_up_and_stops_the_others(folder: Path, port: int):
    origin = f"origin run --root origin --port {port}"
    write_processes(folder / "processes.toml", {"origin": origin, "trainer": "trainer run --config none.toml"})
    (folder.parent / "sitecustomize.py").write_text(LIGHT + IMPATIENT)
    code, printed = run(folder, "up", str(folder))
    assert code == 1
    why = "no_settings_file: the settings file none.toml does not exist"
    assert f"restarts in 1 s; its last error is: {why}" in printed
    last = printed.splitlines()[-1]
    assert last.startswith("covey: keeps_failing: trainer failed 2 times, so all processes are stopped")
    assert why in last
    assert is_free(port)
    assert (folder / LOCK_FILE).read_text() == ""


def test_up__a_validator_keeps_failing__the_others_go_on_and_the_end_is_an_error(folder: Path, port: int):
    origin = f"origin run --root origin --port {port}"
    write_processes(folder / "processes.toml", {"origin": origin, "validator": "validator run --config none.toml"})
    (folder.parent / "sitecustomize.py").write_text(LIGHT + IMPATIENT)
    command, environment = build_command(folder, "up", str(folder))
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    lines = []
    try:
        assert process.stdout is not None
        while not lines or not lines[-1].startswith("ready: "):
            lines.append(process.stdout.readline())
            assert lines[-1], "it has ended"
        assert lines[-1].startswith("ready: origin; ")
        assert f"start it again with: cd {folder} && covey validator run --config none.toml\n" in "".join(lines)
        assert not is_free(port)
    finally:
        process.send_signal(signal.SIGTERM)
        printed = process.communicate(timeout=HANG_S)[0]
    assert process.returncode == 1
    assert printed.splitlines()[-1].startswith("covey: keeps_failing: validator failed 2 times, so it was given up; ")
