"""What the demo does at a stop signal, with one light process instead of a network."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[4]
HANG_S = 300
"""Deadline against hanging, in seconds. A whole demo starts and ends within it."""
LIGHT = """
import asyncio, sys
from covey.local import processes
processes.PRELOAD = "covey.errors"  # a server that costs nothing
from covey.demo import scenario
from covey.demo.participants import DemoOptions

class Light(scenario.Demo):
    def set_up(self):
        running = self.network.processes.start("trainer", "trainer", SLOW, module="line")
        while not running.log.read_text():
            running.process.join(0.02)
        print("pid", running.pid, flush=True)

    async def look(self):
        self.network.processes.require_alive()

SLOW = (
    "import signal, sys, time; signal.signal(15, lambda *_: (open(FILE + '.asked', 'w'), time.sleep(0.5), "
    "open(FILE, 'w'), sys.exit())); print('up', flush=True); time.sleep(600)"
)
if __name__ == "__main__":
    scenario.Demo = Light
    scenario.run_demo(DemoOptions(steps=1, workers=0, cheats=0), print, on_summary=print)
"""


def await_file(path: Path) -> None:
    deadline = time.monotonic() + HANG_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def files() -> Iterator[Path]:
    """Yield the folder of the demo's temporary files, with a short path, because it also holds sockets."""
    with tempfile.TemporaryDirectory(prefix="covey-test-") as name:
        yield Path(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_demo__a_stop_signal__ends_its_processes_and_removes_its_files(
    tmp_path: Path, files: Path, number: signal.Signals
):
    """A second signal does not interrupt the shutdown."""
    ended = tmp_path / "ended"
    (tmp_path / "line.py").write_text("import sys\nexec(sys.argv[-1])\n")
    (tmp_path / "light.py").write_text(LIGHT.replace("FILE", repr(str(ended))))
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "light.py")],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "TMPDIR": str(files)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline().split()[1])
        process.send_signal(number)
        await_file(tmp_path / "ended.asked")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode not in (0, -signal.SIGKILL)
    assert ended.exists(), "it was asked to end, and could"
    assert not Path(f"/proc/{pid}").exists()
    assert list(files.iterdir()) == []
