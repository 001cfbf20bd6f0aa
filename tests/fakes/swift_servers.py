"""The servers of a single-node OpenStack Swift, run by the Python that Swift is installed for.

Example: `python3 -I -B tests/fakes/swift_servers.py FOLDER`. The folder holds `swift.conf` and the settings of each
server. The program makes the rings and runs each server in a process of its own, until it is killed.
"""

import os
import signal
import sys
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from typing import Any

from swift.common import utils, wsgi
from swift.common.ring import RingBuilder

STORAGE = ("account", "container", "object")
PARTITIONS = 2
"""Power of two that is the number of partitions in each ring."""


class AlwaysMissingCache:
    """Takes the place of memcached, which tempauth requires: it keeps nothing, so every lookup is a miss."""

    def get(self, *_: Any, **__: Any) -> None:
        """Return None, as memcached does for a key that was evicted."""

    def set(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""

    def delete(self, *_: Any, **__: Any) -> None:
        """Delete nothing."""


def make_cache(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """Make the filter that hands the cache to the filters after it. The proxy's configuration names this function."""

    def wrap(app: Any) -> Any:
        def answer(environ: dict[str, Any], start_response: Any) -> Any:
            return app(environ | {"swift.cache": AlwaysMissingCache()}, start_response)

        return answer

    return wrap


def main() -> None:
    """Run the servers of a folder. End all of them as soon as one has ended."""
    folder = Path(sys.argv[1])
    utils.set_swift_dir(str(folder))
    for server in STORAGE:
        make_ring(folder, server)
    children = [start(folder, server) for server in (*STORAGE, "proxy")]
    os.wait()
    for child in children:
        os.kill(child, signal.SIGKILL)
    sys.exit("a server of Swift has ended")


def start(folder: Path, server: str) -> int:
    """Run a server in a child process, which shares the imported modules. Return the child's id."""
    child = os.fork()
    if child == 0:
        os._exit(wsgi.run_wsgi(str(folder / f"{server}.conf"), f"{server}-server", verbose=True))
    return child


def make_ring(folder: Path, server: str) -> None:
    """Write the ring of one kind of server: one replica of everything, on one device."""
    settings = ConfigParser()
    settings.read(folder / f"{server}.conf")
    builder = RingBuilder(PARTITIONS, 1, 0)
    place = {"ip": "127.0.0.1", "port": settings.getint("DEFAULT", "bind_port"), "device": "disk"}
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1.0} | place)
    builder.rebalance(seed=1)
    builder.get_ring().save(str(folder / f"{server}.ring.gz"))


if __name__ == "__main__":
    main()
