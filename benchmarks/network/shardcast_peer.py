"""Origin and client of the package `shardcast` 0.3.2, each in a process with its folder on PYTHONPATH."""

import importlib
import sys
import time
from pathlib import Path


def serve(path: str, folder: str, port: str) -> None:
    """Broadcast a file, print the seconds that it took, and serve it until standard input ends."""
    shardcast = importlib.import_module("shardcast")

    Path(folder).mkdir()
    (Path(folder) / "data1.bin").write_bytes(bytes(1 << 20))  # Its clients measure the bandwidth with this file.
    started = time.monotonic()
    shardcast.initialize(folder, port=int(port))
    shardcast.broadcast(path)
    print(time.monotonic() - started, flush=True)
    sys.stdin.read()


def fetch(url: str, path: str) -> None:
    """Download version 1 and print the seconds that it took."""
    client_node = importlib.import_module("shardcast.client_node")
    started = time.monotonic()
    node = client_node.ClientNode([url], output_dir=path + ".parts")
    (version,) = node.list_available_versions()
    if node.download_version(version, path) is None:
        raise SystemExit("the original client failed")
    print(time.monotonic() - started)


if __name__ == "__main__":
    if sys.argv[1] == "origin":
        serve(*sys.argv[2:])
    else:
        fetch(*sys.argv[2:])
