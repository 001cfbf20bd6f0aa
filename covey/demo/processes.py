"""The demo's processes: started in sessions of their own, watched, and ended whatever happens."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from covey.errors import OperatorError

STOP_SECONDS = 10.0
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One process of the network.  Example: name="worker-1"."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Processes:
    """Starts `covey ...` commands and ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._scratch = folder, folder / "tmp"
        self._scratch.mkdir(parents=True, exist_ok=True)
        self.running: list[Running] = []

    def start(self, name: str, *arguments: str, module: str = "covey") -> Running:
        """Run `covey <arguments>`, or another module with them; its output goes to a log file."""
        log = self._folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_build_environment(self._scratch),
                start_new_session=True,  # Ctrl-C is for the demo; it ends the others in order
            )
        running = Running(name=name, process=process, log=log)
        self.running = [*(each for each in self.running if each.name != name), running]
        return running

    def get(self, name: str) -> Running:
        return next(each for each in self.running if each.name == name)

    def has_ended(self, name: str) -> bool:
        return self.get(name).process.poll() is not None

    def kill(self, name: str) -> None:
        """End a process at once, as a crash would: no signal handler runs."""
        process = self.get(name).process
        _signal(process, signal.SIGKILL)
        process.wait()

    def require_alive(self, *, ended: tuple[str, ...] = ()) -> None:
        """Raise OperatorError when a process has died; those in `ended` may have ended with 0."""
        for running in self.running:
            code = running.process.poll()
            if code is None or (code == 0 and running.name in ended):
                continue
            tail = running.log.read_text(errors="replace").strip().splitlines()[-5:]
            raise OperatorError(
                "process_died", f"{running.name} ended with {code}:\n" + "\n".join(tail), fix=f"Read {running.log}"
            )

    def stop(self) -> None:
        """Ask all to end, those who depend on others first, then insist."""
        for running in reversed(self.running):
            _signal(running.process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for running in self.running:
            try:
                running.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(running.process, signal.SIGKILL)
                running.process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the process's whole session, so that its children end too."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def _build_environment(scratch: Path) -> dict[str, str]:
    """One thread for each process: several busy processes with more collapse on a small machine.  Temporary files of
    libraries go where the demo's own files go, and vanish with them."""
    fixed = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": str(scratch),
    }
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | fixed
