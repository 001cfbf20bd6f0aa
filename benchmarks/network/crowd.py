"""What 10,000 nodes feel: heartbeats, claims, vanished leases and viewers at once, or a storm of registrations.

Each node is heard every 30 s. 50 submissions a second are claimed, uploaded and judged in the first half of the run. In
the second half their rate rises as long as a fifth of the machine is idle. Three nodes of ten take a lease and are
never heard again, one after another, and 200 viewers look at public pages every 5 s. The generator, the validators, the
chain and the coordinator share the cores.

`heartbeat_p99_ms` is from a request to its answer. `claim_p99_ms` is from a node's first question to its lease, if a
task was pending all the time: a long poll that waits for work is not counted, and one that waits although there is work
is. `double_leases` and `stalled_steps` are defined in `crowd_findings`. All are of both halves. The time before, in
which each node registers and is heard once, is not counted.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.network.coordinator_load import compute_percentiles
from benchmarks.network.coordinator_pool import (
    BenchmarkPool,
    build_params,
    open_pool,
    run_coordinator,
)
from benchmarks.network.coordinator_scale import await_first_step
from benchmarks.network.crowd_clients import Schedule
from benchmarks.network.crowd_findings import (
    SeenLease,
    count_double_leases,
    find_stalled,
    read_owners,
    read_progress,
    select_waits,
)
from benchmarks.network.crowd_supervision import (
    SAMPLE_S,
    Watched,
    open_crews,
    publish_policies,
    watch,
)
from benchmarks.network.rate_search import RateSearch
from coordinator.config import CoordinatorConfig
from coordinator.db.database import Database
from covey.runtime.connections import ConnectionLimits, compute_cap

BARS = {
    "heartbeat_p99_ms": Bar(most=50),
    "claim_p99_ms": Bar(most=200),
    "double_leases": Bar(most=0),
    "stalled_steps": Bar(most=0),
    "registrations_refused": Bar(most=0),
}
NODES_PER_CONTRIBUTOR = 10
LEAST_IDLE = 0.2
"""Share of idle time that the rate of the second half must leave."""
BOINC = "BOINC in 2005: 102/s"
_LEASE_S = 20.0
_GRACE_S = 10.0
"""Seconds within which the coordinator must end a lease whose time is over."""
_OTHER_CONNECTIONS = 1200
"""Number of connections that are left for viewers, validators and nodes that work."""


def count_connections(nodes: int) -> int:
    """Return how many connections the nodes keep for heartbeats: one each, or as many as both sides can open."""
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = ConnectionLimits(connections=CoordinatorConfig.model_fields["connections"].default)
    return max(1, min(nodes, compute_cap(limits, descriptors) - _OTHER_CONNECTIONS))


def measure_crowd(pool: BenchmarkPool, options: argparse.Namespace, *, postgres: bool) -> list[Measurement]:
    """Run the crowd against a coordinator on one database. Raises RuntimeError if the clients fail."""
    schedule = Schedule(warm_s=options.beat_seconds, run_s=options.seconds, beat_s=options.beat_seconds)
    connections = count_connections(pool.nodes)
    if connections < pool.nodes:
        print(f"{pool.nodes:,} nodes share {connections:,} connections: more cannot be open", file=sys.stderr)
    asked = {
        "nodes": pool.nodes,
        "contributors": pool.contributors,
        "connections": connections,
        "viewers": options.viewers,
        "validators": options.validators,
        "schedule": {"warm_s": schedule.warm_s, "run_s": schedule.run_s, "beat_s": schedule.beat_s},
        "pool": pool.pool,
        "court": pool.receipt_domain.contract,
    }
    with run_coordinator(pool, postgres=postgres) as service, closing(Database(service.database_url)) as database:
        await_first_step(service)
        begun = time.monotonic()
        with open_crews(asked | {"port": service.port}, "presence", "work", rate=options.rate) as crews:
            prepared_s = time.monotonic() - begun
            search = RateSearch(options.rate, LEAST_IDLE)
            with publish_policies(pool, database):
                for crew in crews:
                    crew.tell("start")
                began, step_s = time.time(), max(5.0, options.seconds / 40)
                watched = watch(service, database, schedule, crews[1], search, step_s=step_s)
                ended, ended_at = time.time(), time.monotonic()
                presence, work = (crew.read_result() for crew in crews)
                time.sleep(_LEASE_S + _GRACE_S)
        with database.read() as rows:
            owners = read_owners(rows)
            batches = read_progress(rows, pool.params, now=time.time(), grace=_GRACE_S)
    for problem, count in {**presence["problems"], **work["problems"]}.items():
        print(f"refused {count} times: {problem}", file=sys.stderr)
    stalled = find_stalled(batches, began=began, ended=ended, patience=2 * _LEASE_S + _GRACE_S)
    for batch in stalled:
        print(f"step {batch.step} stood still: {batch.overdue} leases overdue, {batch.unplanned} tasks not planned")
    waits = select_waits(work["claims"], watched.dry, ended=ended_at, margin=2 * SAMPLE_S)
    doubles = count_double_leases([SeenLease(*each) for each in work["orders"]], owners)
    promises = [
        *_describe_waits(waits, asked=len(work["claims"])),
        Measurement(name="double_leases", value=doubles, unit="count", n=len(work["orders"])),
        Measurement(name="stalled_steps", value=len(stalled), unit="count", n=len(batches)),
    ]
    setup = Measurement(name="prepared_s", value=prepared_s, unit="s", n=pool.nodes)
    return [*_describe_clients(presence, work), *promises, *_describe_rates(watched, schedule, work), setup]


def _describe_waits(waits: Sequence[float], *, asked: int) -> list[Measurement]:
    times = compute_percentiles(waits) if waits else {"p50": float("nan"), "p99": float("nan"), "max": float("nan")}
    named = [
        Measurement(name=f"claim_{name}_ms", value=1000 * times[name], unit="ms", n=len(waits))
        for name in ("p50", "p99", "max")
    ]
    return [*named, Measurement(name="claims_without_work", value=asked - len(waits), unit="count", n=asked)]


def _describe_clients(presence: dict[str, Any], work: dict[str, Any]) -> list[Measurement]:
    beats, views = presence["phases"]["heartbeat"], presence["phases"].get("view", {})
    measurements = [
        Measurement(name=f"heartbeat_{name}_ms", value=1000 * beats["run"][name], unit="ms", n=int(beats["run"]["n"]))
        for name in ("p50", "p99", "max")
    ]
    for name, times in (
        ("heartbeat_p99_ms_first_half", beats["first"]),
        ("heartbeat_p99_ms_second_half", beats["second"]),
        ("view_p99_ms", views.get("run")),
        ("submission_p99_ms", work["phases"].get("/v1/submissions", {}).get("run")),
        ("heartbeat_lag_p99_ms", presence["lag"]),
    ):
        if times:
            measurements.append(Measurement(name=name, value=1000 * times["p99"], unit="ms", n=int(times["n"])))
    refused = {kind: presence["refused"].get(kind, 0) + work["refused"].get(kind, 0) for kind in work["phases"]}
    count = sum(refused.values()) + presence["refused"].get("heartbeat", 0)
    answers = sum(int(phases["run"]["n"]) for phases in (*work["phases"].values(), beats) if "run" in phases)
    lost = presence["lost"] + work["lost"]
    measurements.append(Measurement(name="requests_refused", value=count, unit="count", n=answers))
    measurements.append(Measurement(name="connections_lost", value=lost, unit="count", n=answers))
    return [*measurements, Measurement(name="turns_skipped", value=work["skipped"], unit="count", n=answers)]


def _describe_rates(watched: Watched, schedule: Schedule, work: dict[str, Any]) -> list[Measurement]:
    accepted, best = watched.accepted, watched.search.find_best()
    first = (accepted["first"] - accepted["warm"]) / (schedule.run_s / 2)
    measurements = [
        Measurement(name="submissions_per_s", value=first, unit="1/s", n=accepted["first"] - accepted["warm"]),
        Measurement(
            name="submissions_per_s_fifth_idle",
            value=best.achieved if best else float("nan"),
            unit="1/s",
            n=len(watched.search.steps),
            peer=BOINC,
        ),
        Measurement(name="verdicts", value=work["judged"], unit="count", n=work["judged"]),
    ]
    for phase in ("first", "second"):
        idle, memory = watched.idle[phase], watched.memory[phase]
        measurements.append(Measurement(name=f"idle_share_{phase}_half", value=idle, unit="ratio", n=1))
        measurements.append(Measurement(name=f"api_memory_mb_{phase}_half", value=memory, unit="MB", n=1))
    return measurements


def measure_storm(pool: BenchmarkPool, options: argparse.Namespace, *, postgres: bool) -> list[Measurement]:
    """Register one node after the other. Raises RuntimeError if the clients fail."""
    schedule = {"warm_s": 0.0, "run_s": options.seconds, "beat_s": 1.0}
    with run_coordinator(pool, postgres=postgres) as service:
        await_first_step(service)
        asked = {"nodes": pool.nodes, "schedule": schedule, "port": service.port}
        with open_crews(asked, "storm", rate=options.registrations) as (crew,):
            crew.tell("start")
            found = crew.read_result()
    for problem, count in found["problems"].items():
        print(f"refused {count} times: {problem}", file=sys.stderr)
    times = found["phases"]["/v1/nodes"]["run"]
    refused = sum(found["refused"].values()) + found["lost"]
    return [
        Measurement(name="registrations_refused", value=refused, unit="count", n=pool.nodes),
        *(
            Measurement(name=f"registration_{name}_ms", value=1000 * times[name], unit="ms", n=int(times["n"]))
            for name in ("p50", "p99", "max")
        ),
    ]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="make bench NAME=crowd",
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds of the run")
    parser.add_argument("--nodes", type=int, default=10_000, help="nodes of the crowd")
    parser.add_argument("--viewers", type=int, default=200, help="viewers of the public pages")
    parser.add_argument("--validators", type=int, default=12, help="validators that judge")
    parser.add_argument("--rate", type=float, default=50.0, help="submissions a second in the first half")
    parser.add_argument("--beat-seconds", type=float, default=30.0, help="seconds between two heartbeats of a node")
    parser.add_argument("--step-groups", type=int, default=1500, help="groups of a step, each of one task")
    parser.add_argument("--storm", action="store_true", help="measure registrations instead of the crowd")
    parser.add_argument("--registrations", type=float, default=7.0, help="registrations a second of the storm")
    parser.add_argument("--only", choices=("sqlite", "postgres"), default="sqlite", help="database to measure")
    return parser


def main(arguments: Sequence[str]) -> int:
    options = build_parser().parse_args(list(arguments))
    nodes = round(options.registrations * options.seconds) if options.storm else options.nodes
    params = build_params(groups_per_step=options.step_groups, max_staleness=2, lease_seconds=_LEASE_S)
    contributors = -(-nodes // NODES_PER_CONTRIBUTOR)
    with (
        tempfile.TemporaryDirectory(prefix="covey-bench-") as folder,
        open_pool(
            Path(folder), nodes=nodes, contributors=contributors, validators=options.validators, params=params
        ) as pool,
    ):
        measure = measure_storm if options.storm else measure_crowd
        found = measure(pool, options, postgres=options.only == "postgres")
    named = [replace(each, name=f"{each.name}.{options.only}") for each in found]
    measurements = set_bars(named, BARS)
    return finish("crowd", measurements, find_misses(measurements), arguments)
