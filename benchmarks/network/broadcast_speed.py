"""A policy of 1 GiB over loopback: Covey beside the original SHARDCAST, and beside a bare socket.

End to end is from weights in memory (Covey) or from a file (the original, package `shardcast` 0.3.2) to a verified file
at the client. With pipelining the client fetches what the trainer has exported so far, and learns the record when the
policy is offered. The socket sends the file with `sendfile` to one receiver, which writes it or only reads it. Its
two ends are threads of one process, and once more two processes. All files lie in memory, and whatever is sent was
read once before. Each round measures everything once, Covey and the original in alternating order, and the medians
are compared.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.network.broadcast import (
    Bits,
    TrainerFolder,
    build_weights,
    end_fetch,
    name_policy,
    open_folder,
    serve,
    start_fetch,
    start_prefetch,
    to_bfloat16,
)
from covey.runtime.http import find_free_ports

SIZE = 1 << 30
PEERS = Path("build/peers")
BARS = {
    "speedup_vs_shardcast": Bar(least=3.5),
    "speedup_pipelined": Bar(least=5),
    "server_cpu_ms_per_mb": Bar(most=0.25),
    "fraction_of_socket_to_file": Bar(least=0.85),
    "fraction_of_socket_to_memory": Bar(least=0.5),
    "relay_over_direct": Bar(most=1.3),
    "client_extra_mb": Bar(most=100),
}
_CHUNK = 1 << 22


def measure_covey(folder: Path, size: int) -> dict[str, float]:
    """Export and offer a policy, and fetch it directly and through a relay that has nothing yet."""
    tensors = {name: to_bfloat16(values) for name, values in build_weights(size).items()}
    trainer, found = TrainerFolder(folder), dict[str, float]()
    origin, relay = (f"http://127.0.0.1:{port}" for port in find_free_ports(2))
    for bits in tensors.values():
        bits.sum()  # Pages that nobody has touched would be counted as export.
    arguments = ("--root", str(trainer.origin), "--port", origin[-5:])
    with serve("origin", "run", *arguments, url=f"{origin}/health") as server:
        started = time.monotonic()
        export = trainer.export(tensors)
        found["export"] = time.monotonic() - started
        record = trainer.offer(export)
        found["prepare"] = time.monotonic() - started
        used = read_cpu(server)
        direct = end_fetch(start_fetch(folder / "client", [origin], record, step=0))
        found["server_cpu"] = read_cpu(server) - used
        options = ("--root", str(folder / "relay"), "--upstream", origin, "--port", relay[-5:])
        with serve("relay", "run", *options, url=f"{relay}/health") as hop:
            used = read_cpu(hop)
            through = end_fetch(start_fetch(folder / "client", [relay], record, step=0))
            found["relay_cpu"] = read_cpu(hop) - used
    found["pipelined"] = _measure_pipelined(folder / "pipelined", tensors)
    extra = direct["peak"] / 1e6
    return found | {"direct": direct["seconds"], "relay": through["seconds"], "extra_mb": extra}


def _measure_pipelined(folder: Path, tensors: Mapping[str, Bits]) -> float:
    """Return the seconds from the weights to the client's files if it fetches pieces while they are exported."""
    trainer, (port,) = TrainerFolder(folder), find_free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with serve("origin", "run", "--root", str(trainer.origin), "--port", str(port), url=f"{url}/health"):
        client = start_prefetch(folder / "client", [url])
        started = time.monotonic()
        name_policy(client, trainer.offer(trainer.export(tensors, is_previewed=True)))
        return end_fetch(client)["at"] - started  # The monotonic clock is that of the machine.


def read_cpu(process: int) -> float:
    """Return the seconds that the threads of a process have run so far, by the scheduler's count."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure_shardcast(folder: Path, size: int) -> dict[str, float]:
    """Broadcast a file with the original package, and download it."""
    path, (port,) = folder / "weights.bin", find_free_ports(1)
    with path.open("wb") as file:
        for _ in range(size >> 22):
            file.write(os.urandom(_CHUNK))
    environment = os.environ | {"PYTHONPATH": str(PEERS.resolve())}
    command = [sys.executable, "benchmarks/network/shardcast_peer.py"]
    origin = subprocess.Popen(
        [*command, "origin", str(path), str(folder / "data"), str(port)],
        env=environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert origin.stdout is not None
        prepare = float(origin.stdout.readline())
        done = subprocess.run(
            [*command, "client", f"http://127.0.0.1:{port}", str(folder / "out.bin")],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, timeout=600,
        )  # fmt: skip
        return {"peer_prepare": prepare, "peer_fetch": float(done.stdout.splitlines()[-1])}
    finally:
        origin.kill()
        origin.wait(10)


def measure_socket(folder: Path, size: int) -> dict[str, float]:
    """Send a file over one connection into memory and into a file, from a thread and from another process."""
    source, target, fork = folder / "weights.bin", folder / "copy.bin", multiprocessing.get_context("fork")
    return {
        "socket_memory": _copy(source, target, size, writes=False, sender=threading.Thread),
        "socket_file": _copy(source, target, size, writes=True, sender=threading.Thread),
        "socket_file_apart": _copy(source, target, size, writes=True, sender=fork.Process),
    }


def _copy(
    source: Path, target: Path, size: int, *, writes: bool, sender: Callable[..., threading.Thread | BaseProcess]
) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server, source.open("rb") as file, target.open("wb") as output:

        def send() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendfile(file)

        sending = sender(target=send)
        sending.start()
        buffer, left, started = memoryview(bytearray(_CHUNK)), size, time.monotonic()
        with socket.create_connection(server.getsockname()) as connection:
            while left:
                count = connection.recv_into(buffer)
                if writes:
                    os.write(output.fileno(), buffer[:count])
                left -= count
        seconds = time.monotonic() - started
        sending.join()
        return seconds


def _measure_others(folder: Path, size: int) -> dict[str, float]:
    return measure_shardcast(folder, size) | measure_socket(folder, size)


def build_measurements(rounds: Sequence[dict[str, float]], size: int) -> list[Measurement]:
    """Compare the medians of all rounds."""
    n = len(rounds)
    median = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    ours, peer = median["prepare"] + median["direct"], median["peer_prepare"] + median["peer_fetch"]
    original, bare = "shardcast 0.3.2", "socket"
    ratios = [
        ("speedup_vs_shardcast", peer / ours, original),
        ("speedup_pipelined", peer / median["pipelined"], original),
        ("speedup_after_export", peer / (ours - median["export"]), original),
        ("fraction_of_socket_to_file", median["socket_file"] / median["direct"], bare),
        ("fraction_of_socket_to_file_apart", median["socket_file_apart"] / median["direct"], "socket, two processes"),
        ("fraction_of_socket_to_memory", median["socket_memory"] / median["direct"], bare),
        ("relay_over_direct", median["relay"] / median["direct"], "direct"),
    ]
    return [
        *(Measurement(name=name, value=value, unit="ratio", n=n, peer=with_) for name, value, with_ in ratios),
        Measurement(name="client_extra_mb", value=max(each["extra_mb"] for each in rounds), unit="MB", n=n),
        *(
            Measurement(name=f"{name}_cpu_ms_per_mb", value=1e9 * median[f"{name}_cpu"] / size, unit="ms/MB", n=n)
            for name in ("server", "relay")
        ),
        *(
            Measurement(name=f"{name}_mb_per_s", value=size / median[name] / 1e6, unit="MB/s", n=n)
            for name in median
            if name not in ("extra_mb", "server_cpu", "relay_cpu")
        ),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=shardcast", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds; default: 3")
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of the policy; default: 1 GiB")
    options = parser.parse_args([each for each in arguments if each != "--save"])
    rounds = []
    for number in range(options.rounds):
        found: dict[str, float] = {}
        for measure in (_measure_others, measure_covey)[:: -1 if number % 2 else 1]:
            with open_folder() as folder:
                found |= measure(folder, options.size)
        rounds.append(found)
    measurements = set_bars(build_measurements(rounds, options.size), BARS)
    return finish("shardcast", measurements, find_misses(measurements), arguments)
