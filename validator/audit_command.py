"""`covey validator audit`: judge a submission again and show both verdicts with the distances."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.console.options import Datasets, DeploymentFile, FolderSource, Json, open_account, prefer_folder
from covey.console.terminal import quote
from covey.runtime.urls import is_plain_url

if TYPE_CHECKING:
    from covey.protocol.running_sums import ItemSum
    from covey.protocol.thresholds import Thresholds
    from validator.audit import ComparisonRow, Report

WORST = 10
"""Number of rollouts that are shown without --all."""
STATISTICS = ("exponent", "mantissa_rest", "margin", "logprob")
"""Fields of a `ComparisonRow`, in the same order as their limits in `find_worst`."""


def validator_audit(
    bundle: Annotated[str, typer.Argument(help="Evidence bundle to audit: a file, or the evidence hash of a verdict.")],
    deployment: DeploymentFile,
    storage: Annotated[
        str,
        typer.Option(
            help="Base URL of the coordinator or of its object store, for example file:///data or s3://bucket. "
            "With FOLDER, its coordinator."
        ),
    ],
    relay: Annotated[
        list[str] | None,
        typer.Option(
            help="Base URL of a relay to download the policy from; may be repeated. With FOLDER, by default those that "
            "the coordinator lists."
        ),
    ] = None,
    policies: Annotated[
        Path | None,
        typer.Option(
            help="Folder with downloaded policies. Without it, the policy is downloaded to a temporary folder."
        ),
    ] = None,
    dataset: Datasets = None,
    pool: Annotated[
        int | None,
        typer.Option(
            envvar="COVEY_POOL",
            min=1,
            callback=prefer_folder,
            help="On-chain number of the pool. Required if the bundle is given as a hash.",
        ),
    ] = None,
    rpc: Annotated[
        str | None,
        typer.Option(
            envvar="COVEY_RPC_URL",
            callback=prefer_folder,
            help="URL of the chain's JSON-RPC node. By default the node in the deployment file.",
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Inference engine for the replay: hf or vllm. By default the pool's.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Data type for the replay: float32 or bfloat16. By default the pool's.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="Device for the replay, as torch calls it, for example cuda:0. Different hardware "
            "changes the last bits of the results."
        ),
    ] = "cpu",
    full: Annotated[
        bool, typer.Option("--full", help="Replay all of the work even if it was not drawn for a whole replay.")
    ] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every rollout instead of only the worst ones.")] = False,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Audit a verdict: judge its submission again, using only the chain and the stored files.

    Shows whether the work was drawn for a whole replay, and checks the draw once the submission's epoch is posted. The
    exit code is 1 if decision, reason, work units, live groups or sums differ, if the draw requires a whole replay that
    was not done, or if another block drew the replayed rows.

    Example: `covey validator audit EVIDENCE_HASH mypool`
    """
    from covey.runtime.log import configure
    from validator import audit
    from validator.config import AuditConfig

    configure("audit", level="warning")
    if folder is not None and not relay:
        listed = open_account(deployment, None, folder=folder).list_relays(storage)
        relay = [url for url in listed if is_plain_url(url)]
    values = {
        "deployment": deployment,
        "storage": storage,
        "relays": tuple(relay or ()),
        "policies": policies,
        "datasets": tuple(dataset or ()),
        "pool": pool,
        "rpc_url": rpc,
        "full": full,
        "engine": engine,
        "dtype": dtype,
        "device": device,
    }
    report = audit.run(AuditConfig.load(None, values, {}), bundle)
    if as_json:
        typer.echo(json.dumps(describe(report), sort_keys=True, allow_nan=False))
    else:
        show(report, show_all=show_all)
    if not report.agrees or report.differing_sums or report.is_draw_ignored or report.is_draw_false:
        raise typer.Exit(1)


def describe(report: "Report") -> dict[str, Any]:
    """Return the report as JSON values. NaN and Inf become None."""
    bundle, found = report.bundle, report.found
    return {
        "evidence_hash": report.evidence_hash,
        "agrees": report.agrees,
        "bundle": _describe_verdict(bundle) | {"engine": bundle.engine.model_dump(mode="json")},
        "found": _describe_verdict(found) | {"engine": report.engine.model_dump(mode="json")},
        "full": bundle.full,
        "rows": list(bundle.rows),
        "draw": None
        if report.draw is None
        else asdict(report.draw) | {"is_ignored": report.is_draw_ignored, "is_false": report.is_draw_false},
        "sums": {
            "bundle": {name: each.model_dump() for name, each in bundle.sums.items()},
            "found": {name: each.model_dump() for name, each in report.sums.items()},
            "differing": report.differing_sums,
        },
        "rollouts": [
            {"group": row.group, "sibling": row.sibling, "tokens": row.tokens}
            | {name: value if math.isfinite(value := getattr(row, name)) else None for name in STATISTICS}
            for row in report.rows
        ],
    }


def _describe_verdict(source: Any) -> dict[str, Any]:
    return {
        "decision": source.decision.name.lower(),
        "reason": source.reason.name.lower(),
        "units": source.units,
        "details": dict(source.details),
    }


def find_worst(rows: "tuple[ComparisonRow, ...]", limits: "Thresholds", count: int) -> "list[ComparisonRow]":
    """Return the `count` rollouts that are closest to a limit or farthest beyond one, worst first."""
    bounds = (limits.exponent_max, limits.mantissa_mean_max, limits.margin_max, limits.logprob_max)

    def rate(row: "ComparisonRow") -> float:
        values = [getattr(row, name) for name in STATISTICS]
        return max(_divide(value, bound) for value, bound in zip(values, bounds, strict=True))

    return sorted(rows, key=rate, reverse=True)[:count]


def _divide(value: float, bound: float) -> float:
    """Return value / bound. Infinite if the value is NaN or Inf, or if only the bound is 0."""
    if not math.isfinite(value):
        return math.inf
    if bound == 0:
        return math.inf if value else 0.0
    return value / bound


def show(report: "Report", *, show_all: bool) -> None:
    """Print both verdicts, the distances of the rollouts, and the draw."""
    from rich.console import Console
    from rich.table import Table

    limits = report.limits
    console = Console(highlight=False, markup=False)
    isolated = {"bundle": f", isolated by {report.bundle.isolation}"}
    for name, source, engine in (
        ("bundle", report.bundle, report.bundle.engine),
        ("found here", report.found, report.engine),
    ):
        details = " ".join(f"{key}={value}" for key, value in source.details.items())
        versions = (f"{key} {value}" for key, value in engine.versions.items())
        facts = ", ".join([engine.name, engine.dtype, f"on {engine.hardware}", *versions])
        verdict = f"{source.decision.name.lower()} {source.reason.name.lower()}, {source.units} units"
        console.print(
            f"{name:>10}  {verdict}  {quote(details)}\n{'':>10}  {quote(facts + isolated.get(name, ''))}",
            soft_wrap=True,
        )
    if report.rows:
        shown = list(report.rows) if show_all else find_worst(report.rows, limits, WORST)
        table = Table("group", "sibling", "tokens", "exponent", "mantissa", "margin", "logprob")
        for row in shown:
            floats = (f"{value:.3g}" for value in (row.mantissa_rest, row.margin, row.logprob))
            table.add_row(str(row.group), str(row.sibling), str(row.tokens), str(row.exponent), *floats)
        bounds = (f"{value:.3g}" for value in (limits.mantissa_mean_max, limits.margin_max, limits.logprob_max))
        table.add_section()
        table.add_row("limit", "", "", str(limits.exponent_max), *bounds)
        console.print(table)
        if len(shown) < len(report.rows):
            console.print(f"the worst {len(shown)} of {len(report.rows)} rollouts; --all shows all")
    for line in [*describe_sums(report), *describe_draw(report)]:
        console.print(line, soft_wrap=True)
    console.print(
        "the verdict is the same as in the bundle" if report.agrees else "THE VERDICT DIFFERS from the bundle"
    )


def describe_sums(report: "Report") -> list[str]:
    """Return a line on each sum that the bundle's validator stated for the node, and how it differs here."""
    lines = [
        f"{name} is {each.total:.6g} over {each.items} items, and {_describe_sum(report.sums.get(name))} here"
        + (": THE SUM DIFFERS" if name in report.differing_sums else "")
        for name, each in report.bundle.sums.items()
    ]
    missing = [name for name in report.differing_sums if name not in report.bundle.sums]
    return lines + [f"{name} has no sum in the bundle: THE SUM DIFFERS" for name in missing]


def _describe_sum(each: "ItemSum | None") -> str:
    return "nothing" if each is None else f"{each.total:.6g} over {each.items}"


def describe_draw(report: "Report") -> list[str]:
    """Return lines that say whether the work was drawn, and whether the draw requires a replay."""
    rows = ", ".join(map(str, report.bundle.rows))
    parts = f"the cheap checks and a replay of the rows {rows}" if rows else "the cheap checks alone"
    lines = [
        "the validator treated the work as drawn: its verdict rests on a replay"
        if report.bundle.full
        else f"the validator treated the work as not drawn: its verdict rests on {parts}"
    ]
    if report.draw is None:
        return [*lines, "the draw was not checked: the submission is in no posted epoch with a readable file"]
    by = f"the draw, by block {report.draw.block_number}, requires"
    if report.is_draw_false:
        lines.append(f"the rows were drawn by another block, {report.bundle.draw}: THE DRAW IS FALSE")
    if report.is_draw_ignored:
        return [*lines, f"{by} a whole replay: THE DRAW WAS IGNORED"]
    if report.draw.is_due:
        return [*lines, f"{by} a whole replay, which was done"]
    return [*lines, f"{by} no whole replay" + (", but it was done for another reason" if report.bundle.full else "")]
