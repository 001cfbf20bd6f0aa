"""Canaries through the API: what the public sees of them, and validators that did not check the work."""

from collections.abc import Iterator

import pytest

from covey.chain.structs import BondKind
from covey.protocol.api.public import StatusView, SubmissionView
from covey.protocol.api.validator import JudgeOrder, RevealOrder, RevealRequest
from covey.protocol.canaries import CanaryKind, compute_canary_commitment
from covey.protocol.eip712 import sign
from covey.protocol.messages import CanaryConsent
from tests.fakes.network import CoordinatorHarness, create_pool, open_harness
from tests.fakes.pool import make_params
from tests.integration.chain.conftest import Chain
from tests.integration.coordinator.handing import FILE, REJECT, build_reveal, claim_order, commit, hand_in

pytestmark = pytest.mark.integration
LAZY = "validator-1"


@pytest.fixture(scope="module")
def standing(running: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorHarness]:
    """Node "node" submits known-bad work, and "node-2" submits ordinary work."""
    pool = create_pool(running, make_params(groups_per_step=8, epoch_leaves=4, max_submission_bytes=24_576))
    node = running.wallets["node"].address
    consent = CanaryConsent(pool=pool, node=node, kind=CanaryKind.REJECT)
    signature = sign(consent, running.domain("slashing_court"), running.wallets["contributor"])
    canaries = {node: {"verdict": "reject", "consent": signature}}
    with open_harness(running, pool, tmp_path_factory.mktemp("coordinator"), canaries=canaries) as harness:
        yield harness


async def judge(harness: CoordinatorHarness, *, is_bad: bool) -> list[str]:
    """Reveal verdicts of the requested validators until the submission is decided, and return who was requested.

    The lazy validator accepts without checking.
    """
    asked: list[str] = []
    harness.run_job("dispatch_validation")
    # The lazy validator's turn comes last, after the others contradicted it.
    harness.clock.offset += 4 * harness.ctx.params.turn_seconds
    for _ in range(2):
        requests: dict[str, RevealRequest] = {}
        for i in range(3):
            name = f"validator-{i}"
            async with harness.client(name) as client:
                order = await claim_order(client, wait_seconds=0)
                if order is None:
                    continue
                assert isinstance(order, JudgeOrder)
                assert order.full
                changes = REJECT if is_bad and name != LAZY else {}
                requests[name] = build_reveal(harness, i, order, **changes)
                await commit(harness, client, requests[name])
        for name, request in requests.items():
            async with harness.client(name) as client:
                assert await claim_order(client, wait_seconds=0) == RevealOrder(judgement=request.judgement)
                await client.reveal_verdict(request)
        asked += requests
        harness.run_job("dispatch_validation")
    return asked


async def see(harness: CoordinatorHarness) -> tuple[StatusView, list[SubmissionView]]:
    async with harness.client("stranger") as anybody:
        return await anybody.get_status(), await anybody.list_submissions(limit=10)


async def test_canaries__lazy_validator_among_honest_ones__is_found_and_nobody_pays(harness: CoordinatorHarness):
    commitments = {}
    for i, node in enumerate(("node", "node-2", "node")):
        async with harness.client(node) as client:
            await hand_in(harness, client, FILE + bytes([i]), node=node)
        status, (view, *_) = await see(harness)
        commitments[view.receipt_hash] = view.commitment
        assert (view.state, view.salt, view.kind) == ("SUBMITTED", None, None), "the three look alike"
        asked = await judge(harness, is_bad=node == "node")
        assert asked == ["validator-0", LAZY] + (["validator-2"] if node == "node" else [])

    status, views = await see(harness)
    assert [view.commitment for view in views] == [commitments[view.receipt_hash] for view in views]
    for view in views:
        assert compute_canary_commitment(view.receipt_hash, view.salt, CanaryKind(view.kind)) == view.commitment
    assert [(v.state, v.reason, v.units, v.kind) for v in reversed(views)] == [
        ("VOID", "canary", 0, 1), ("ACCEPTED", "none", 20, 0), ("VOID", "canary", 0, 1),
    ]  # fmt: skip
    scores = {address: (v.judged, v.canaries, v.missed) for address, v in status.validators.items()}
    address = harness.chain.address
    assert scores == {
        address("validator-0"): (3, 2, 0), address(LAZY): (3, 2, 2), address("validator-2"): (2, 2, 0),
    }  # fmt: skip

    canary = harness.wallet("node").address
    assert (status.nodes[canary].suspended, status.nodes[canary].accepted) == ("", 0)
    async with harness.client("validator-0") as client:
        assert list(await client.list_hard_cases()) == []
    pool, owner = harness.ctx.ledger.pool, harness.chain.address("contributor")
    assert harness.chain.contracts.stakes.locked_of(pool, owner) == 0
    assert harness.chain.contracts.stakes.stake_of(pool, BondKind.CONTRIBUTOR, owner) == 300


async def test_canaries__epoch__pays_the_ordinary_work_alone_and_holds_a_leaf_for_each(harness: CoordinatorHarness):
    for i, node in enumerate(("node", "node-2", "node", "node-2")):
        async with harness.client(node) as client:
            await hand_in(harness, client, FILE + bytes([i]), node=node)
        await judge(harness, is_bad=node == "node")
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    status, views = await see(harness)
    (epoch,) = status.epochs
    assert (epoch.leaf_count, epoch.units, epoch.posted, epoch.reward) == (4, 40, True, 120)
    assert {view.epoch for view in views} == {0}
    assert [view.reason for view in views] == ["none", "canary", "none", "canary"]
