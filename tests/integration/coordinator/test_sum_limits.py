"""Running sums through the API: from the evidence of validators to the status of a node, and hostile statements."""

import asyncio
import json
import math
from typing import Any

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.protocol import canonical
from covey.protocol.api.public import NodeDetail
from covey.protocol.api.validator import JudgeOrder, RevealRequest
from tests.fakes.network import CoordinatorHarness
from tests.integration.coordinator.handing import (
    FILE,
    SUMS,
    build_bundle,
    build_reveal,
    claim_order,
    commit,
    hand_in,
    refuse,
)

pytestmark = pytest.mark.integration
SILENT = object()
STATED = {name: each.model_dump() for name, each in SUMS.items()}


def build_request(harness: CoordinatorHarness, validator: int, order: JudgeOrder, sums: Any) -> RevealRequest:
    bundle = json.loads(build_bundle(harness, validator, order).to_bytes())
    del bundle["sums"]
    if sums is not SILENT:
        bundle["sums"] = sums
    evidence = json.dumps(bundle, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    request = build_reveal(harness, validator, order, evidence_hash=canonical.sha256(evidence.encode()))
    return request.model_copy(update={"evidence": evidence})


async def collect(harness: CoordinatorHarness, *stated: Any, number: int = 0) -> list[RevealRequest]:
    """Submit work, and have validators 0 and 1 commit to accepting it with these sums."""
    async with harness.client("node") as node:
        await hand_in(harness, node, FILE + bytes([number]))
    harness.run_job("dispatch_validation")
    requests = []
    for i, sums in enumerate(stated):
        async with harness.client(f"validator-{i}") as client:
            order = await claim_order(client, wait_seconds=0)
            assert isinstance(order, JudgeOrder)
            requests.append(build_request(harness, i, order, sums))
            await commit(harness, client, requests[-1])
    return requests


async def work(harness: CoordinatorHarness, *stated: Any, number: int = 0) -> None:
    """Have validators 0 and 1 accept a submission with these sums."""
    for i, request in enumerate(await collect(harness, *stated, number=number)):
        async with harness.client(f"validator-{i}") as client:
            await claim_order(client, wait_seconds=0)
            await client.reveal_verdict(request)
    harness.run_job("dispatch_validation")


async def see(harness: CoordinatorHarness) -> NodeDetail:
    async with harness.client("stranger") as anybody:
        return await anybody.get_node(harness.wallet("node").address)


async def test_worker_status__accepted_work__shows_the_sums_with_their_limits(harness: CoordinatorHarness):
    await work(harness, STATED, STATED | {"logprob": {"items": 20, "total": 4e-5}})
    view = await see(harness)
    (logprob,) = view.sums.values()
    assert (list(view.sums), view.summed_submissions, view.sum_above_limit) == (["logprob"], 1, "")
    assert (logprob.total, logprob.items) == (1e-5, 20), "of two validators the lower one"
    # 20 items of 2e-5 with an allowance of 5 and 20 percent, and Bernstein's bound for a largest value of 1e-5
    bound = 2e-5 / 3 * math.log(2 * 1000 * 5 * 2 / 1e-6)
    assert logprob.limit == pytest.approx(20 * 2e-5 * 1.05 + bound)
    assert logprob.suspension_limit == pytest.approx(20 * 2e-5 * 1.2 + bound)
    arguments = ["worker", "status", view.node, "--coordinator-url", harness.url]
    printed = await asyncio.to_thread(CliRunner().invoke, cli.app, arguments)
    assert f"logprob 1e-05 of {logprob.limit:.4g}, suspended above {logprob.suspension_limit:.4g}" in printed.stdout
    assert " ".join(printed.stdout.split()).find("summed submissions 1") > 0


@pytest.mark.parametrize(
    "sums",
    [
        SILENT,
        None,
        {},
        7,
        [STATED],
        {"logprob": STATED["logprob"]},
        STATED | {"logprob": {"items": 20, "total": -1e-5}},
        STATED | {"logprob": {"items": 20, "total": 1e300}},
        STATED | {"logprob": {"items": 20, "total": 10**400}},
        STATED | {"logprob": {"items": 1 << 80, "total": 1e-5}},
        {name: {"items": 10**9, "total": 1.0} for name in STATED},
        STATED | {"lost": {"items": 20, "total": "NaN"}},
    ],
    ids=lambda sums: str(sums)[:20],
)
async def test_reveal__hostile_sums__count_nothing_and_work_is_paid(harness: CoordinatorHarness, sums: Any):
    await work(harness, sums, STATED)
    with harness.ctx.database.read() as rows:
        (row,) = rows.list_recent_submissions(10)
        assert (row.state, row.units, [turn.sums is None for turn in row.judgements]) == ("ACCEPTED", 20, [True, False])
    view = await see(harness)
    assert (view.summed_submissions, view.sums) == (1, {}), "one validator of a quorum of two states sums"


@pytest.mark.parametrize("total", [math.nan, math.inf])
async def test_reveal__evidence_with_nan_or_inf__is_refused(harness: CoordinatorHarness, total: float):
    request, _ = await collect(harness, STATED | {"lost": {"items": 20, "total": total}}, STATED)
    async with harness.client("validator-0") as client:
        assert (await refuse(client.reveal_verdict(request)))[0] == "bad_evidence"
