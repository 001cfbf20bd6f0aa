"""One policy from an origin over three relays to eight clients, with a link of 50 MB/s between each pair of hosts.

The clients know the relays only, and the relays have nothing at the start, so the ideal is the time of one link.  In
the second run a fourth relay stalls and a fifth drips 1 kB/s.  `simulated` is computed: 1,000 workers behind 20 relays
download a delta of the paper's model, where each machine sends 1.25 GB/s in all and 50 MB/s to each other one, with the
efficiency of the first run.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.network.broadcast import (
    TrainerFolder,
    build_weights,
    end_fetch,
    open_folder,
    serve,
    start_fetch,
    to_bfloat16,
)
from benchmarks.network.links import Links
from covey.protocol.pieces import PIECE_BYTES

RELAYS, CLIENTS, BYTES_PER_S = 3, 8, 50e6
SIZE = 200_000_000
WORKERS, WORKER_RELAYS, UPLINK, DELTA_BYTES = 1000, 20, 1.25e9, 62e9 / 159
"""The simulated network: bytes/s that a machine sends in all, and the size of a delta by `make bench NAME=delta`."""
BARS = {"last_over_ideal.clean": Bar(most=1.25), "last_over_ideal.two_bad_relays": Bar(most=1.6)}
BAD = {"stalling": "60", "dripping": "0.001"}
"""Seconds that a bad relay waits before each kilobyte, by name: the first never sends one in time."""
_BAD_RELAY = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        import urllib.request, urllib.error
        if not self.path.startswith("/pieces/"):
            try:
                body = urllib.request.urlopen(sys.argv[2] + self.path, timeout=5).read()
            except urllib.error.URLError:
                self.send_error(404)
                return
        else:
            body = bytes(4 << 20)
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if not self.path.startswith("/pieces/"):
            self.wfile.write(body)
            return
        for start in range(0, len(body), 1000):
            time.sleep(float(sys.argv[3]))
            self.wfile.write(body[start : start + 1000])
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer((sys.argv[1], 9001), Handler).serve_forever()
"""


def measure(name: str, size: int, bad: Sequence[str]) -> list[Measurement]:
    """Fetch a policy with all clients at once, and return the time of the last one over the ideal."""
    with open_folder() as folder, Links() as links, ExitStack() as stack:
        trainer = TrainerFolder(folder)
        record = trainer.offer(trainer.export({key: to_bfloat16(v) for key, v in build_weights(size).items()}))
        relays = [f"relay{number}" for number in range(RELAYS)]
        servers = ["origin", *relays, *bad]
        clients = [f"client{number}" for number in range(CLIENTS)]
        addresses = {host: links.add_host(host) for host in (*servers, *clients)}
        for sender in servers:
            for receiver in (*servers, *clients):
                if sender != receiver:
                    links.limit(sender, receiver, bytes_per_s=BYTES_PER_S)
        origin = f"http://{addresses['origin']}:9000"
        run = partial(serve, "origin", "run", "--root", str(trainer.origin), "--port", "9000")
        host = addresses["origin"]
        stack.enter_context(run("--host", host, url=f"{origin}/health", wrap=partial(links.build_command, "origin")))
        urls = []
        for relay in relays:
            url = f"http://{addresses[relay]}:9001"
            arguments = (
                "relay",
                "run",
                "--root",
                str(folder / relay),
                "--upstream",
                origin,
                "--host",
                addresses[relay],
            )
            wrap = partial(links.build_command, relay)
            stack.enter_context(
                serve(*arguments, "--host", addresses[relay], "--port", "9001", url=f"{url}/health", wrap=wrap)
            )
            urls.append(url)
        for relay in bad:
            command = links.build_command(
                relay, sys.executable, "-c", _BAD_RELAY, addresses[relay], urls[0], BAD[relay]
            )
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(process.wait, 10)
            stack.callback(process.kill)
            urls.append(f"http://{addresses[relay]}:9001")
        time.sleep(1)
        waiting = [
            start_fetch(folder / client, urls, record, step=0, wrap=partial(links.build_command, client))
            for client in clients
        ]
        seconds = [end_fetch(process)["seconds"] for process in waiting]
    ideal = size / BYTES_PER_S
    return [
        Measurement(name=f"last_over_ideal.{name}", value=max(seconds) / ideal, unit="ratio", n=CLIENTS),
        Measurement(name=f"last_seconds.{name}", value=max(seconds), unit="s", n=CLIENTS),
        Measurement(name=f"first_seconds.{name}", value=min(seconds), unit="s", n=CLIENTS),
    ]


def simulate(size: float, *, workers: int, relays: int, uplink: float, link: float) -> float:
    """Return the seconds until the last worker has `size` bytes, without any loss.

    The origin sends to all relays at once, and each relay passes every piece on as soon as it has it.  A machine shares
    its uplink among its receivers, and no pair of machines exceeds the rate of a link.
    """
    to_relays = min(link, uplink / relays)
    to_workers = min(link, uplink / -(-workers // relays))
    return PIECE_BYTES / to_relays + size / min(to_relays, to_workers)


def build_simulation(last_over_ideal: float) -> Measurement:
    """Return the time of the simulated network, longer by what the measured one takes beyond its ideal."""
    ideal = simulate(DELTA_BYTES, workers=WORKERS, relays=WORKER_RELAYS, uplink=UPLINK, link=BYTES_PER_S)
    return Measurement(name="simulated_seconds.1000_workers", value=ideal * last_over_ideal, unit="s", n=WORKERS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=fanout", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of the policy; default: 200 MB")
    options = parser.parse_args([each for each in arguments if each != "--save"])
    measurements = measure("clean", options.size, ()) + measure("two_bad_relays", options.size, tuple(BAD))
    measurements = set_bars([*measurements, build_simulation(measurements[0].value)], BARS)
    return finish("fanout", measurements, find_misses(measurements), arguments)
