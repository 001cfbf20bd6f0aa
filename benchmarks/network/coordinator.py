"""Signed requests and submissions per second of one coordinator, on SQLite and on PostgreSQL with Redis.

Heartbeats are measured in CPU seconds of the API process, beside an unsigned `async def` route with the same body on
the same server. A submission is a claim and a receipt with its file, with 1,500 tasks pending, and the CPU seconds of
API and jobs include those in which three validators judge all submissions, each of which two of them replay. Generator
and validators run on the same cores.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop
from fastapi import FastAPI

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.network.broadcast import await_answer
from benchmarks.network.coordinator_pool import (
    REDIS,
    VALIDATORS,
    BenchmarkPool,
    Service,
    count_cpu_seconds,
    open_pool,
    run_coordinator,
)
from covey.protocol.api.worker import Heartbeat
from covey.runtime.http import find_free_ports, serve_http

BARS = {
    "heartbeats_over_plain": Bar(least=0.5),
    "submissions_over_plain": Bar(least=0.025),
    "idle_core_share": Bar(most=0.02),
}
"""Ratios to the plain route of the same run, because machines differ fourfold."""
NODES, SUBMITTING = 64, 48
_HEARTBEATS = 250
"""Number of heartbeats of each node."""
_ONE_ADDRESS = 1000.0
"""Requests per second that are allowed to the address from which all nodes of the benchmark upload."""
_SETTLE_S = 3.0
"""Seconds after the start in which the follower reads the chain. An idle process is measured after them."""
_WARM_S = 3.0
"""Seconds at the start of a run of submissions that are not counted: nodes are newcomers then."""


def run_load(
    kind: str, measured: Sequence[subprocess.Popen[bytes]], **asked: object
) -> tuple[dict[str, object], float, float]:
    """Run clients in a process of their own.

    Returns what they saw, the seconds that it took, and the CPU seconds of the measured processes meanwhile.
    """
    command = [sys.executable, "-m", "benchmarks.network.coordinator_load", json.dumps({"kind": kind} | asked)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError("the clients failed: see their output above")
    cpu, started = count_cpu_seconds(measured), time.monotonic()
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    seconds, cpu = time.monotonic() - started, count_cpu_seconds(measured) - cpu
    process.communicate(timeout=60)
    found: dict[str, object] = json.loads(line)
    return found, seconds, cpu


def measure_plain(nodes: int) -> float:
    """Return the answers per CPU second of a route that checks the body and nothing else."""
    (port,) = find_free_ports(1)
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.network.coordinator", "plain", str(port)])
    try:
        await_answer(f"http://127.0.0.1:{port}/health", process)
        asked = {
            "port": port,
            "path": "/plain",
            "nodes": nodes,
            "requests": _HEARTBEATS,
            "seconds": 60,
            "signed": False,
        }
        found, _, cpu = run_load("heartbeats", [process], **asked)
        return _count_ok(found) / cpu
    finally:
        process.terminate()
        process.wait(10)


def measure_heartbeats(service: Service, nodes: int) -> dict[str, float]:
    """Return the signed heartbeats per CPU second of the API process, and their percentiles."""
    asked = {"port": service.port, "path": "/v1/heartbeat", "nodes": nodes, "requests": _HEARTBEATS, "seconds": 20}
    found, seconds, cpu = run_load("heartbeats", [service.api], signed=True, **asked)
    _warn(found)
    count, times = _count_ok(found), found["seconds"]["heartbeat"]  # type: ignore[index]
    return {"per_core": count / cpu, "per_second": count / seconds, "n": count, "p99_ms": 1000 * times["p99"]}


def measure_submissions(service: Service, pool: BenchmarkPool, *, seconds: float) -> dict[str, float]:
    """Return the submissions per second, and those per CPU second of API and jobs."""
    processes = [service.api, *service.jobs]
    asked = {
        "port": service.port,
        "nodes": SUBMITTING,
        "validators": VALIDATORS,
        "seconds": seconds + _WARM_S,
        "pool": pool.pool,
        "court": pool.receipt_domain.contract,
        "contributor": pool.contributor,
    }
    found, _, cpu = run_load("submissions", processes, **asked)
    _warn(found)
    first = min(found["submitted"], default=0.0)  # type: ignore[call-overload]
    end = first + _WARM_S + seconds
    times = [each for each in found["submitted"] if first + _WARM_S < each <= end]  # type: ignore[attr-defined]
    rate = len(times) / seconds
    claims = found["seconds"]["/v1/tasks/claim"]  # type: ignore[index]
    total = len(found["submitted"])  # type: ignore[arg-type]
    return {
        "per_second": rate,
        "per_core": total / cpu,
        "n": len(times),
        "total": total,
        "judged": float(found["judged"]),  # type: ignore[arg-type]
        "claim_p99_ms": 1000 * claims["p99"],
    }


def measure_idle(service: Service, *, seconds: float) -> tuple[float, float]:
    """Return the shares of a core that the API process and the jobs take while nobody asks for anything."""
    api, jobs = count_cpu_seconds([service.api]), count_cpu_seconds(service.jobs)
    time.sleep(seconds)
    return (count_cpu_seconds([service.api]) - api) / seconds, (count_cpu_seconds(service.jobs) - jobs) / seconds


def measure(pool: BenchmarkPool, name: str, *, postgres: bool, seconds: float, plain: float) -> list[Measurement]:
    """Measure a coordinator on one database."""
    with run_coordinator(pool, postgres=postgres) as service:
        time.sleep(_SETTLE_S)
        idle, idle_jobs = measure_idle(service, seconds=seconds)
        beats = measure_heartbeats(service, NODES)
    with run_coordinator(pool, postgres=postgres, requests_per_s=_ONE_ADDRESS) as service:
        work = measure_submissions(service, pool, seconds=seconds)
    values = [
        ("heartbeats_per_core_s", beats["per_core"], "1/s", beats["n"]),
        ("heartbeats_over_plain", beats["per_core"] / plain, "ratio", beats["n"]),
        ("heartbeats_per_s", beats["per_second"], "1/s", beats["n"]),
        ("heartbeat_p99_ms", beats["p99_ms"], "ms", beats["n"]),
        ("idle_core_share", idle, "ratio", 1),
        ("idle_core_share_of_jobs", idle_jobs, "ratio", 1),
        ("submissions_per_s", work["per_second"], "1/s", work["n"]),
        ("submissions_per_core_s", work["per_core"], "1/s", work["total"]),
        ("submissions_over_plain", work["per_core"] / plain, "ratio", work["total"]),
        ("verdicts_per_submission", work["judged"] / work["total"], "ratio", work["total"]),
        ("claim_p99_ms", work["claim_p99_ms"], "ms", work["n"]),
    ]
    if postgres:
        with run_coordinator(pool, postgres=True, processes=2, nonces_url=REDIS) as service:
            time.sleep(_SETTLE_S)
            beats = measure_heartbeats(service, NODES)
        values += [
            ("heartbeats_per_core_s.two_processes", beats["per_core"], "1/s", beats["n"]),
            ("heartbeats_per_s.two_processes", beats["per_second"], "1/s", beats["n"]),
        ]
    return [
        Measurement(
            name=f"{key}.{name}", value=value, unit=unit, n=int(n), peer="async route" if "plain" in key else ""
        )
        for key, value, unit, n in values
    ]


def _count_ok(found: dict[str, object]) -> int:
    statuses: dict[str, int] = found["statuses"]  # type: ignore[assignment]
    return sum(count for status, count in statuses.items() if int(status) < 300)


def _warn(found: dict[str, object]) -> None:
    for problem, count in found["problems"].items():  # type: ignore[attr-defined]
        print(f"refused {count} times: {problem}", file=sys.stderr)


def serve_plain(port: int) -> None:
    """Serve the route that the signed one is compared with."""
    app = FastAPI()

    @app.post("/plain", status_code=204)
    async def plain(body: Heartbeat) -> None: ...

    @app.get("/health")
    async def health() -> str:
        return "ok"

    async def run() -> None:
        await serve_http(app, host="127.0.0.1", port=port, stop=asyncio.Event())

    uvloop.run(run())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=coordinator", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement; default: 15")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="measure one database")
    options = parser.parse_args(list(arguments))
    plain = measure_plain(NODES)
    measurements = [Measurement(name="plain_per_core_s", value=plain, unit="1/s", n=NODES * _HEARTBEATS)]
    with tempfile.TemporaryDirectory(prefix="covey-bench-") as folder, open_pool(Path(folder), nodes=NODES) as pool:
        for name, postgres in (("sqlite", False), ("postgres", True)):
            if options.only in (None, name):
                measurements += measure(pool, name, postgres=postgres, seconds=options.seconds, plain=plain)
    measurements = set_bars(measurements, BARS)
    return finish("coordinator", measurements, find_misses(measurements), arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == ["plain"]:
        serve_plain(int(sys.argv[2]))
