"""A PostgreSQL and a Redis of a test's own, which it may stop, resume, kill and start again."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from covey.runtime.http import find_free_ports

START_S = 300.0
USER = "postgres"
"""Who runs PostgreSQL where the tests run as root, which it refuses."""


class PrivateServer:
    """Example: `server.stop(); server.resume(); server.restart()`."""

    def __init__(self, command: list[str], log: Path, *, url: str, is_up: Callable[[], bool]) -> None:
        self._command, self._log, self._is_up = command, log, is_up
        self.url = url
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and return once it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._is_up():
            assert time.monotonic() < deadline, f"the server did not start: see {self._log}"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop all its processes where they are. Connections stay open, and nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let all its processes go on."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """Kill all its processes."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(60)

    def recover(self) -> None:
        """Return once it answers. It is started again if it has ended, as PostgreSQL does without room for its log."""
        deadline = time.monotonic() + START_S
        while not self._is_up():
            assert time.monotonic() < deadline, f"the server did not recover: see {self._log}"
            if self._process is None or self._process.poll() is not None:
                self.start()
            time.sleep(0.05)

    def _signal(self, number: int) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        parent = psutil.Process(self._process.pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@contextmanager
def open_private_redis(folder: Path) -> Iterator[PrivateServer | None]:
    """Run a Redis that keeps nothing. None where Redis is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    (port,) = find_free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"

    def is_up() -> bool:
        try:
            return bool(Redis.from_url(url, socket_timeout=10, socket_connect_timeout=10).ping())
        except RedisError:
            return False

    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with _run(PrivateServer(command, folder / "redis.log", url=url, is_up=is_up)) as server:
        yield server


@contextmanager
def open_private_postgres(folder: Path, *, data: Path | None = None) -> Iterator[PrivateServer | None]:
    """Run a PostgreSQL with an empty database. None where it is not installed, or no user may run it.

    Its files are in a folder of its own, or in `data`, which is empty and which other users can reach.
    """
    programs = _find_postgres()
    if programs is None:
        yield None
        return
    # Not below `folder`: another user has to pass the folders above, and every start of pytest closes its own.
    with nullcontext(str(data)) if data else TemporaryDirectory(prefix="covey-postgres-") as place:
        as_user: list[str] = []
        if os.geteuid() == 0:
            as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
            shutil.chown(place, USER, USER)
        create = [*as_user, str(programs / "initdb"), "-D", place, "-A", "trust", "-U", "covey", "--no-sync"]
        subprocess.run(create, check=True, capture_output=True, timeout=300, cwd="/")
        (port,) = find_free_ports(1)
        url = f"postgresql+psycopg://covey@127.0.0.1:{port}/postgres"
        command = [*as_user, str(programs / "postgres"), "-D", place, "-p", str(port), "-h", "127.0.0.1", "-k", ""]
        is_up = partial(_is_postgres_up, url)
        with _run(PrivateServer(command, folder / "postgres.log", url=url, is_up=is_up)) as server:
            yield server


def _is_postgres_up(url: str) -> bool:
    engine = create_engine(url, connect_args={"connect_timeout": 10})
    try:
        with engine.connect() as connection:
            return bool(connection.scalar(text("SELECT 1")) == 1)
    except OperationalError:
        return False
    finally:
        engine.dispose()


@contextmanager
def _run(server: PrivateServer) -> Iterator[PrivateServer]:
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _find_postgres() -> Path | None:
    """The newest folder of PostgreSQL's programs that this user can run."""
    if os.geteuid() == 0:
        try:
            pwd.getpwnam(USER)
        except KeyError:
            return None
        if shutil.which("setpriv") is None:
            return None
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders else None
