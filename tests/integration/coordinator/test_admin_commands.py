"""Commands of operator, contributor and arbiter, run as typed with a real chain and a coordinator."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.api.routes import views
from coordinator.domain.nodes import add_strike
from covey import cli
from covey.chain.structs import BondKind, PoolState
from covey.chain.wallet import save_key
from covey.devnet import deploy
from covey.errors import OperatorError, ProtocolError
from covey.network.kept_rewards import KeptRewards
from covey.protocol import eip712
from covey.protocol.ids import Step
from covey.protocol.messages import Receipt
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Reason
from covey.runtime.cycle import CycleResult
from tests.fakes.contracts import read_contract
from tests.fakes.network import MIN_STAKE, CoordinatorHarness
from tests.integration.coordinator.handing import FILE, decide, hand_in, settle
from worker.reward_keeping import keep_rewards

pytestmark = pytest.mark.integration


class Terminal:
    """Runs `covey ...` with the key of one account, and returns the command's JSON."""

    def __init__(self, harness: CoordinatorHarness, folder: Path) -> None:
        self._harness, self._folder = harness, folder
        harness.chain.deployment.save(folder / "deployment.json")

    def __call__(self, *arguments: str, key: str = "") -> Any:
        options = ["--deployment", str(self._folder / "deployment.json"), "--pool", str(self._harness.ctx.ledger.pool)]
        if key:
            file = self._folder / f"{key}.key"
            if not file.exists():
                save_key(file, deploy.derive_key("test", key))
            options += ["--key-file", str(file)]
        result = CliRunner().invoke(cli.app, [*arguments, *options, "--json"])
        if result.exception is not None:
            raise result.exception
        return json.loads(result.stdout)


@pytest.fixture
def covey(harness: CoordinatorHarness, tmp_path: Path) -> Terminal:
    return Terminal(harness, tmp_path)


async def test_rewards_claim__newest_epoch_that_stands_and_is_final__pays_once(
    harness: CoordinatorHarness, covey: Terminal
):
    url = ("--coordinator-url", harness.url)
    with pytest.raises(OperatorError, match="posted the next epoch, which becomes final 20 s later"):
        await asyncio.to_thread(covey, "rewards", "claim", *url, key="contributor")
    await settle(harness)
    final_at = harness.chain.now() + 20
    with pytest.raises(OperatorError, match=r"not_final: .* Claim when epoch 0 is final: .*, in 20 s"):
        await asyncio.to_thread(covey, "rewards", "claim", *url, key="contributor")
    async with harness.client("node") as node:
        await hand_in(harness, node, b"not judged yet")
    shown = await asyncio.to_thread(covey, "rewards", "show", *url, key="contributor")
    waiting = {"pending": 1, "accepted": 120, "next_final_at": final_at, "epoch": None}
    assert {name: shown[name] for name in waiting} == waiting
    assert (shown["earned"], shown["claimed"], shown["claimable"]) == (0, 0, 0)
    harness.chain.advance(20)
    named = ("--contributor", harness.chain.address("contributor"))
    shown = await asyncio.to_thread(covey, "rewards", "show", *url, *named)
    assert (shown["epoch"], shown["earned"], shown["claimable"]) == (0, 120, 120)
    assert (shown["pending"], shown["accepted"], shown["next_final_at"]) == (1, 0, None)
    stranger = ("--contributor", harness.chain.address("operator"))
    shown = await asyncio.to_thread(covey, "rewards", "show", *url, *stranger)
    assert (shown["pending"], shown["earned"], shown["claimable"]) == (0, 0, 0)
    claimed = await asyncio.to_thread(covey, "rewards", "claim", *url, key="contributor")
    assert claimed["claimed"] == 120
    with pytest.raises(ProtocolError, match="NothingToClaim"):
        await asyncio.to_thread(covey, "rewards", "claim", *url, key="contributor")
    assert (await asyncio.to_thread(covey, "pool", "show"))["owed"] == 0


async def test_rewards_claim__coordinator_is_gone__claims_with_the_proofs_that_the_worker_has_kept(
    harness: CoordinatorHarness, covey: Terminal, tmp_path: Path
):
    kept = KeptRewards(tmp_path / "rewards")
    gone = ("--coordinator-url", "http://127.0.0.1:9", "--proofs", str(tmp_path / "rewards"))
    with pytest.raises(OperatorError, match="not_final"):
        await asyncio.to_thread(covey, "rewards", "claim", *gone, key="contributor")
    await settle(harness)
    async with harness.client("node") as node:
        network = SimpleNamespace(
            pool=harness.ctx.ledger.pool,
            contracts=harness.chain.contracts,
            chain=harness.chain.client,
            coordinator=node,
        )
        ctx = SimpleNamespace(network=network, rewards=kept, contributor=harness.chain.address("contributor"))
        assert await keep_rewards(ctx) is CycleResult.IDLE
        assert (kept.list_epochs(), kept.list_missing(range(1))) == ([0], [])
        assert await keep_rewards(ctx) is CycleResult.IDLE
    harness.chain.advance(20)
    with pytest.raises(OperatorError, match="no_proof"):
        await asyncio.to_thread(covey, "rewards", "claim", *gone[:2], "--proofs", str(tmp_path), key="contributor")
    claimed = await asyncio.to_thread(covey, "rewards", "claim", *gone, key="contributor")
    assert claimed["claimed"] == 120
    assert harness.chain.contracts.ledger.claimed_of(network.pool, ctx.contributor) == 120


async def test_submissions__hidden_until_decided__then_shown_with_what_the_chain_says(
    harness: CoordinatorHarness, covey: Terminal
):
    url = ("--coordinator-url", harness.url)

    async def show(receipt_hash: str) -> Any:
        return await asyncio.to_thread(covey, "submissions", "show", receipt_hash, *url)

    async with harness.client("node") as node:
        receipt_hash = eip712.compute_struct_hash(await hand_in(harness, node))
    shown = await show(receipt_hash[:10])
    assert (shown["receipt_hash"], shown["state"], shown["work_key"]) == (receipt_hash, "SUBMITTED", None)
    assert (shown["verdicts"], shown["epoch_transaction"]) == ([], None)
    await decide(harness)
    shown = await show(receipt_hash[2:12])
    assert [(v["validator"], v["outcome"], v["reason"]) for v in shown["verdicts"]] == [
        (harness.chain.address(f"validator-{i}"), "accept", "none") for i in (0, 1)
    ]
    async with harness.client("stranger") as anybody:
        for verdict in shown["verdicts"]:
            key = f"evidence/{harness.ctx.ledger.pool}/{verdict['evidence_hash']}.json"
            assert await anybody.get_public(key, max_bytes=1 << 16)
        (view,) = await anybody.list_submissions(limit=5)
        assert list(view.evidence_hashes) == [verdict["evidence_hash"] for verdict in shown["verdicts"]]
        assert await anybody.list_submissions(limit=5, node=harness.wallet("node").address) == [view]
        assert await anybody.list_submissions(limit=5, contributor=harness.chain.address("operator")) == []
        assert await anybody.list_submissions(limit=5, state=SubmissionState.SUBMITTED) == []
        assert await anybody.list_submissions(limit=5, state=SubmissionState.ACCEPTED) == [view]
    async with harness.client("node") as node:
        await hand_in(harness, node, b"fills the epoch")
    await decide(harness)
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    shown = await show(receipt_hash)
    assert (shown["state"], shown["epoch"]) == ("SETTLED", 0)
    mined = harness.chain.client.find_mined(shown["epoch_transaction"])
    assert mined is not None
    assert mined.is_success
    with pytest.raises(ProtocolError, match="unknown_submission"):
        await show("00000000" if receipt_hash[2:10] != "00000000" else "11111111")


async def test_get_submission__prefix_of_two__is_ambiguous(harness: CoordinatorHarness):
    for i in range(2):
        async with harness.client("node") as node:
            await hand_in(harness, node, FILE + bytes([i]))
        await decide(harness)
    with harness.ctx.database.read() as rows:
        first, second = rows.list_recent_submissions(2)
        assert rows.list_submissions_like("0x") in ([first, second], [second, first])
        assert rows.list_submissions_like(first.receipt_hash) == [first]
    with pytest.raises(ProtocolError, match="ambiguous_hash"):
        views.get_submission(harness.ctx, "0x")


def test_policy_list__published__with_block_and_time(harness: CoordinatorHarness, covey: Terminal):
    policies = harness.chain.contracts.policies
    pool = harness.ctx.ledger.pool
    (row,) = covey("policy", "list")["policies"]
    assert (row["step"], row["record_hash"], row["relays"]) == (0, policies.policy_of(pool, Step(0)), {})
    assert harness.chain.client.get_block(row["block"]).timestamp == row["published_at"]


async def test_epoch_disable__by_the_arbiter__nothing_can_be_claimed(harness: CoordinatorHarness, covey: Terminal):
    await settle(harness)
    assert covey("pool", "show")["owed"] == 120
    with pytest.raises(ProtocolError, match="NotArbiter"):
        covey("epoch", "disable", "0", key="operator")
    assert covey("epoch", "disable", "0", key="arbiter")["epoch"] == 0
    assert covey("pool", "show")["owed"] == 0
    harness.chain.advance(20)
    with pytest.raises(OperatorError, match="not_final"):
        covey("rewards", "claim", "--coordinator-url", harness.url, key="contributor")


async def open_case(harness: CoordinatorHarness) -> Receipt:
    """Hand in work that a quorum rejects for its proofs, and open the case about it."""
    async with harness.client("node") as node:
        receipt = await hand_in(harness, node)
    await decide(harness, outcome=2, reason=int(Reason.PROOF), severity=2, units=0)
    async with harness.client("validator-2") as client:
        (hard,) = await client.list_hard_cases()
    verdicts = [body.to_message() for body in hard.verdicts]
    propose = harness.chain.contracts.court.propose(receipt, hard.signature, verdicts, hard.signatures)
    harness.chain.send("validator-2", propose)
    return receipt


async def test_case_execute__by_anybody_after_the_veto_window__slashes(harness: CoordinatorHarness, covey: Terminal):
    receipt_hash = eip712.compute_struct_hash(await open_case(harness))
    owner, pool, stakes = harness.chain.address("contributor"), harness.ctx.ledger.pool, harness.chain.contracts.stakes
    with pytest.raises(OperatorError, match="too_early"):
        covey("case", "execute", receipt_hash, key="contributor")
    staked = stakes.stake_of(pool, BondKind.CONTRIBUTOR, owner)
    harness.chain.advance(10)
    assert covey("case", "execute", receipt_hash, key="contributor")["state"] == "slashed"
    assert staked - stakes.stake_of(pool, BondKind.CONTRIBUTOR, owner) == 60
    with pytest.raises(OperatorError, match=r"case_closed: .* is slashed"):
        covey("case", "execute", receipt_hash, key="contributor")


async def test_case_veto__by_the_arbiter__frees_the_stake(harness: CoordinatorHarness, covey: Terminal):
    assert covey("case", "show") == {"cases": []}
    receipt, stakes = await open_case(harness), harness.chain.contracts.stakes
    (shown,) = covey("case", "show")["cases"]
    receipt_hash = eip712.compute_struct_hash(receipt)
    assert (shown["receipt_hash"], shown["state"], shown["reason"], shown["amount"]) == (
        receipt_hash,
        "locked",
        "proof",
        60,
    )
    owner, pool = harness.chain.address("contributor"), harness.ctx.ledger.pool
    assert stakes.locked_of(pool, owner) == 60
    assert covey("case", "veto", receipt_hash, key="arbiter")["node"] == receipt.node
    seen = await asyncio.to_thread(covey, "submissions", "show", receipt_hash, "--coordinator-url", harness.url)
    assert [step["event"] for step in seen["case"]] == ["CaseOpened", "CaseVetoed"]
    assert {verdict["reason"] for verdict in seen["verdicts"]} == {"proof"}
    assert covey("case", "show")["cases"][0]["state"] == "vetoed"
    assert stakes.locked_of(pool, owner) == 0
    await harness.follow()
    with harness.ctx.database.read() as rows:
        assert rows.get_node(receipt.node).suspended == ""


def test_admin_commands__invitation_and_replacement__stand_on_chain(harness: CoordinatorHarness, covey: Terminal):
    contracts, pool = harness.chain.contracts, harness.ctx.ledger.pool
    stranger, old = harness.wallet("stranger").address, harness.chain.address("validator-1")
    assert covey("pool", "invite", stranger, old, key="operator")["invited"] == [stranger, old]
    assert contracts.nodes.is_invited(pool, stranger)
    shown = covey("pool", "replace-validator", old, stranger, key="operator")
    assert shown["validators"] == [harness.chain.address("validator-0"), stranger, harness.chain.address("validator-2")]
    assert not contracts.pools.is_validator(pool, old)
    assert not contracts.pools.is_validator(pool, stranger), "after two unbonding windows of 20 s"
    harness.chain.advance(39)
    assert not contracts.pools.is_validator(pool, stranger)
    harness.chain.advance(1)
    assert contracts.pools.is_validator(pool, stranger)


def test_worker_remove__by_its_contributor__is_vouched_for_no_more(harness: CoordinatorHarness, covey: Terminal):
    nodes, pool = harness.chain.contracts.nodes, harness.ctx.ledger.pool
    node = harness.wallet("node").address
    with pytest.raises(ProtocolError, match="NotContributor"):
        covey("worker", "remove", node, key="operator")
    assert covey("worker", "remove", node, key="contributor")["node"] == node
    assert nodes.contributor_of(pool, node) is None
    assert read_contract(nodes, "isLiable", pool, node, harness.chain.address("contributor"))


def test_pool_end_and_refund__after_the_last_window__returns_the_escrow(harness: CoordinatorHarness, covey: Terminal):
    token, operator = harness.chain.contracts.token, harness.chain.address("operator")
    covey("stake", "add", str(MIN_STAKE), "--raw", "--kind", "operator", key="operator")
    covey("pool", "end", "--yes", key="operator")
    assert harness.chain.contracts.pools.state_of(harness.ctx.ledger.pool) is PoolState.ENDED
    harness.chain.advance(95)  # 20 + 4 x (10 + 10) = 100 s after the end
    with pytest.raises(OperatorError, match=r"pool_not_closed: .*can be refunded from .*, in 5 s"):
        covey("pool", "refund", key="operator")
    harness.chain.advance(5)
    before = token.balance_of(operator)
    assert covey("pool", "refund", key="operator")["escrow"] == 0
    assert token.balance_of(operator) - before == 1_000_000
    stakes, pool = harness.chain.contracts.stakes, harness.ctx.ledger.pool
    covey("stake", "unbond", str(MIN_STAKE), "--raw", "--kind", "operator", key="operator")
    harness.chain.advance(20)
    covey("stake", "withdraw", "--kind", "operator", key="operator")
    assert stakes.stake_of(pool, BondKind.OPERATOR, operator) == 0
    assert token.balance_of(operator) - before == 1_000_000 + MIN_STAKE


async def test_worker_pardon__by_the_operator__serves_the_node_again(harness: CoordinatorHarness, covey: Terminal):
    url, node = ("--coordinator-url", harness.url), harness.wallet("node").address
    async with harness.client("node") as client:
        await client.register()
    with harness.ctx.database.write() as rows:
        for _ in range(harness.ctx.params.strikes_to_suspend):
            add_strike(rows, harness.ctx.params, harness.chain.address("contributor"))
    async with harness.client("node") as client:
        with pytest.raises(ProtocolError, match="suspended"):
            await client.claim_task(instance="0" * 32, free_slots=1, holding=(), cached_version=None, wait_seconds=0)
    for other in ("contributor", "arbiter"):
        with pytest.raises(ProtocolError, match="not_the_operator"):
            await asyncio.to_thread(covey, "worker", "pardon", node, *url, key=other)
    answer = await asyncio.to_thread(covey, "worker", "pardon", node, *url, key="operator")
    assert answer == {"contributor": harness.chain.address("contributor"), "strikes": 8, "nodes": [node]}
    async with harness.client("node") as client:
        detail = await client.get_node(node)
        assert (detail.suspended, detail.strikes, detail.pardons) == ("", 0, 1)
        await client.claim_task(instance="0" * 32, free_slots=1, holding=(), cached_version=None, wait_seconds=0)
    with pytest.raises(ProtocolError, match="no_contributor"):
        await asyncio.to_thread(covey, "worker", "pardon", harness.chain.address("arbiter"), *url, key="operator")
