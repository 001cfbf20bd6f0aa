"""`covey demo` as a person runs it: its exit code, its JSON, its repeatability, and what Ctrl-C leaves behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
HANG_S = 300
"""Deadline against hanging, in seconds, of the start or the end of a network's processes."""
KEYS = {
    "environment",
    "steps",
    "seconds",
    "reward",
    "live_share",
    "truncated_share",
    "accepted",
    "rejected",
    "slashed",
    "honest_slashed",
    "claimed",
    "cumulative",
    "policies",
    "processes",
}


def start_demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command with its own temporary folder, so that leftovers are found. The cache of torch is elsewhere."""
    places = {"TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    places["TORCHINDUCTOR_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / "torchinductor-of-tests")
    return subprocess.Popen(
        [sys.executable, "-m", "covey", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | places,
        start_new_session=True,
        preexec_fn=_hear_interrupts,  # noqa: PLW1509 (no thread of this process is about to fork)
    )


def _hear_interrupts() -> None:
    """Accept SIGINT as in a terminal, even if these tests run in the background with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def find_processes(word: str) -> list[str]:
    """Return the command lines of all processes with `word` in their command line or environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line, environment = (
                (path / name).read_bytes().replace(b"\0", b" ").decode() for name in ("cmdline", "environ")
            )
        except OSError:
            continue
        if word in line or word in environment:
            found.append(line)
    return found


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="covey-test-") as name:
        yield Path(name)


def run_demo(folder: Path, *arguments: str, seconds: float = 1200) -> tuple[int, str, dict]:
    file = folder / "summary.json"
    process = start_demo(folder, "--json", str(file), *arguments)
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANG_S)
    return process.returncode, output, json.loads(file.read_text()) if file.exists() else {}


def test_demo__two_steps_with_cheats__exit_0_and_the_promised_json(folder):
    code, output, summary = run_demo(folder, "--steps", "2", "--workers", "1", "--cheats", "2")
    assert code == 0, output
    assert set(summary) == KEYS
    assert summary["steps"] == 2
    assert len(summary["reward"]) == 3
    assert summary["reward"][-1] - summary["reward"][0] >= 0.05
    assert len(summary["slashed"]) == 2
    assert set(summary["rejected"]) == {"proof", "token_margin"}
    assert summary["honest_slashed"] == 0
    assert summary["claimed"] == summary["cumulative"] > 0
    assert list(summary["policies"]) == [str(n) for n in range(3)]
    assert all(len(value) == 66 for value in summary["policies"].values())
    assert summary["processes"] == 13
    assert summary["accepted"] >= 8
    assert {path.name for path in folder.iterdir()} - {"cache"} == {"summary.json"}
    assert not (folder / "cache/covey").exists()
    assert "mean reward on held-out prompts at temperature 1" in output
    assert find_processes(str(folder)) == []


@pytest.mark.full
def test_demo__eight_steps_with_cheats__learns_as_much_as_is_promised(folder):
    code, output, summary = run_demo(folder, "--steps", "8", "--workers", "2", "--cheats", "2")
    assert code == 0, output
    assert sum(summary["reward"][-3:]) / 3 - summary["reward"][0] >= 0.25
    assert (len(summary["slashed"]), summary["honest_slashed"]) == (2, 0)


@pytest.mark.parametrize(
    ("environment", "steps"),
    [
        pytest.param(name, steps, marks=pytest.mark.full)
        for name, steps in (("math", 24), ("code", 12), ("reasoning_gym:chain_sum", 24), ("mixture", 12))
    ],
)
def test_demo__environment__learns_its_tasks_and_catches_cheats_that_know_nothing_of_them(folder, environment, steps):
    cheats = 2 if steps > 2 else 1
    arguments = f"--environment {environment} --steps {steps} --workers 1 --cheats {cheats}"
    code, output, summary = run_demo(folder, *arguments.split(), seconds=2500)
    assert code == 0, output
    assert summary["environment"] == environment
    assert sum(summary["reward"][-3:]) / 3 > summary["reward"][0]
    assert (len(summary["slashed"]), summary["honest_slashed"]) == (cheats, 0)
    assert summary["claimed"] == summary["cumulative"] > 0


@pytest.mark.full
def test_demo__keep__goes_on_training_and_is_joined_by_the_printed_commands(folder):
    process = start_demo(folder, "--keep", "--steps", "1", "--workers", "1", "--cheats", "0")
    assert process.stdout is not None
    commands, line = [], ""
    while "Ctrl-C stops the pool" not in line:
        line = process.stdout.readline()
        assert process.poll() is None
        if (place := line.find("  covey ")) >= 0:
            commands.append(line[place:].split())
    join, enroll, run = ([sys.executable, "-m", *command] for command in commands)
    url = join[4]
    for command in (join, enroll):
        subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=HANG_S)
    with subprocess.Popen(run, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}) as worker:
        deadline = time.monotonic() + 2 * HANG_S
        while True:
            status = httpx.get(f"{url}/v1/status", timeout=60).json()
            if status["step"] >= 3 and sum(node["accepted"] > 0 for node in status["nodes"].values()) == 2:
                break
            assert time.monotonic() < deadline, status
            time.sleep(0.5)
        worker.terminate()
        assert worker.wait(HANG_S) == 0
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert find_processes(str(folder)) == []


MOMENTS = {
    "at once": ("chain, contracts", 0.0, signal.SIGINT),
    "while processes start": ("processes start", 0.2, signal.SIGTERM),
    "while processes work": ("processes start", 8.0, signal.SIGINT),
}


@pytest.mark.full
@pytest.mark.parametrize("moment", MOMENTS)
def test_demo__interrupted__leaves_no_process_and_no_file(folder, moment):
    line, seconds, number = MOMENTS[moment]
    process = start_demo(folder, "--steps", "3")
    assert process.stdout is not None
    while line not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(seconds)  # the moment is the point of the test
    process.send_signal(number)
    process.communicate(timeout=HANG_S)
    assert process.returncode != 0
    deadline = time.monotonic() + 60
    while find_processes(str(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert find_processes(str(folder)) == []
    assert list(folder.iterdir()) == []
