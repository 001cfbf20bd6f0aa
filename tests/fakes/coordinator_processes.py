"""The processes of a coordinator, as its operator starts them, which a test may kill."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from covey.chain.wallet import save_key
from covey.devnet import deploy
from covey.protocol.ids import PoolId
from covey.runtime.http import find_free_ports
from tests.fakes.moved_clock import MovedClock

ROOT = Path(__file__).parents[2]
STOP_S = 120.0
"""Deadline against hanging, in seconds, of a process that is to finish."""


class CoordinatorProcesses:
    """`covey coordinator serve` and `jobs`. Example: `processes.start("serve"); processes.kill("serve")`.

    A second process of a verb has a name that ends with the verb: "more jobs".
    """

    def __init__(self, chain: Any, pool: PoolId, folder: Path, **settings: object) -> None:
        """`settings` are further ones of `CoordinatorConfig`."""
        self.home = folder / "home"
        self.code = ROOT
        """Folder of the version of Covey that is started."""
        self._clocks: dict[str, MovedClock] = {}
        (port,) = find_free_ports(1)
        self.authority = f"127.0.0.1:{port}"
        self.url = f"http://{self.authority}"
        self._folder, self._running = folder, dict[str, subprocess.Popen[bytes]]()
        chain.deployment.save(folder / "deployment.json")
        save_key(folder / "operator.key", deploy.derive_key("test", "operator"))
        self.database_url = str(settings.get("database_url", f"sqlite:///{self.home / 'coordinator.sqlite3'}"))
        values = {
            "home": self.home,
            "deployment": folder / "deployment.json",
            "key_file": folder / "operator.key",
            "pool": pool,
            "port": port,
            **settings,
        }
        lines = [
            f"{name} = {value}" if isinstance(value, int) else f'{name} = "{value}"' for name, value in values.items()
        ]
        self.settings = folder / "coordinator.toml"
        self.settings.write_text("\n".join(lines))

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a process with further options of its command."""
        clock = self.get_clock(name)
        command = [
            sys.executable,
            "-m",
            "tests.fakes.moved_clock",
            "coordinator",
            name.rsplit(maxsplit=1)[-1],
            "--config",
            str(self.settings),
            *options,
        ]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.code, env=os.environ | clock.environment
            )
        return self._running[name]

    def get_clock(self, name: str) -> MovedClock:
        """Return the clock of a process, which outlives it."""
        if name not in self._clocks:
            self._clocks[name] = MovedClock(self._folder / f"{name}.clock")
        return self._clocks[name]

    def list_ended(self) -> dict[str, int]:
        """Return the exit codes of processes that have ended by themselves, by name."""
        codes = {name: process.poll() for name, process in self._running.items()}
        return {name: code for name, code in codes.items() if code is not None and code >= 0}

    def kill(self, name: str) -> None:
        """Kill a process, without a chance to finish anything."""
        self._running[name].kill()
        self._running[name].wait()

    def stop(self, name: str) -> int:
        """Let a process finish, and return its exit code."""
        process = self._running.pop(name)
        process.terminate()
        try:
            return process.wait(STOP_S)
        finally:
            process.kill()

    def list_servers(self, name: str = "serve") -> list[psutil.Process]:
        """Return the processes that serve the API, without the one that Python starts to count shared resources."""
        try:
            children = psutil.Process(self._running[name].pid).children()
        except psutil.NoSuchProcess:
            return []
        return [child for child in children if _is_server(child)]

    def end(self) -> None:
        """Kill all processes."""
        for name in self._running:
            self.kill(name)

    def read_log(self, name: str, *, lines: int = 12) -> list[str]:
        """Return the last lines that a process has logged."""
        return (self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:]


def _is_server(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "spawn_main" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
