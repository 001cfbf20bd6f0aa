"""Accepted work becomes a batch, an epoch and tokens. The API's data of an epoch equal the chain's."""

import json

import pytest

from coordinator.db.models import NodeRow, SubmissionRow, TaskRow
from coordinator.domain.omissions import SLICE
from coordinator.domain.submissions import to_receipt
from covey.chain.history import History
from covey.chain.outbox import IntentState
from covey.chain.structs import BondKind, ChallengeState, EpochRecord
from covey.protocol import eip712
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import ZERO_HASH, Hash, PoolId
from covey.protocol.messages import Countersignature, Receipt
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Decision
from tests.fakes.network import PRICE, CoordinatorHarness
from tests.fakes.pool import make_address, make_hash
from tests.integration.coordinator.handing import FILE, decide, hand_in, refuse, settle

pytestmark = pytest.mark.integration


def find_record(harness: CoordinatorHarness, epoch: int) -> EpochRecord:
    """Find the epoch's record on the chain, as a claimer does."""
    history = History(client=harness.chain.client, contracts=harness.chain.contracts)
    posted = history.find_epoch(PoolId(harness.ctx.config.pool), epoch)
    assert posted is not None
    return posted.record


async def test_walk__two_submissions__become_a_batch_an_epoch_and_tokens(harness: CoordinatorHarness):
    for i in range(2):
        async with harness.client("node") as node:
            await hand_in(harness, node, FILE + bytes([i]))
        await decide(harness)
    async with harness.client("trainer") as trainer:
        batch = await trainer.claim_batch(0, wait_seconds=0)
        assert await trainer.claim_batch(1, wait_seconds=0) is None
        status = await trainer.get_status()
        files = [await trainer.get_object(item.url, max_bytes=4096) for item in batch.items]
    assert files == [FILE + b"\x00", FILE + b"\x01"], "ordered by task"
    steps = [(row.step, row.state, row.record_hash) for row in status.steps]
    assert steps == [(0, "READY", make_hash("policy 0")), (1, "OPEN", None)], "it asks before its policy is on chain"
    assert status.step == 0
    assert all(item.replayed and item.record_hash == make_hash("policy 0") for item in batch.items)
    assert {item.node for item in batch.items} == {harness.chain.address("node")} <= set(status.nodes)
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    with harness.ctx.database.read() as rows:
        assert {row.state for row in rows.list_submissions(*SubmissionState)} == {SubmissionState.SETTLED}
    owner, pool = harness.chain.address("contributor"), PoolId(harness.ctx.config.pool)
    async with harness.client("stranger") as anybody:
        view = await anybody.get_reward(owner, 0)
        assert view.cumulative == 40 * PRICE
        assert await refuse(anybody.get_reward(owner, 1)) == ("unknown_epoch", 404)
        assert await refuse(anybody.get_reward(make_address("x"), 0)) == ("no_reward", 404)
    harness.chain.advance(25)
    before = harness.chain.contracts.token.balance_of(owner)
    record = find_record(harness, 0)
    harness.chain.send(
        "node", harness.chain.contracts.ledger.claim(pool, record, owner, view.cumulative, list(view.proof))
    )
    assert harness.chain.contracts.token.balance_of(owner) - before == 120


async def test_walk__epoch_disabled_by_the_arbiter__is_paid_from_the_next(harness: CoordinatorHarness):
    """The contract takes the units back. What was earned must be claimable once, from the next epoch."""
    ledger, pool = harness.chain.contracts.ledger, PoolId(harness.ctx.config.pool)
    owner = harness.chain.address("contributor")
    await settle(harness)
    harness.chain.send("arbiter", ledger.disable_epoch(pool, find_record(harness, 0), is_false=True))
    harness.chain.advance(1)  # minimum time between two epochs
    await harness.follow()
    async with harness.client("node") as client:
        assert await refuse(client.get_reward(owner, 0)) == ("epoch_disabled", 409)
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    async with harness.client("node") as client:
        view = await client.get_reward(owner, 1)
    assert view.cumulative == 40 * PRICE
    harness.chain.advance(25)
    before = harness.chain.contracts.token.balance_of(owner)
    record = find_record(harness, 1)
    harness.chain.send("node", ledger.claim(pool, record, owner, view.cumulative, list(view.proof)))
    assert harness.chain.contracts.token.balance_of(owner) - before == 120


async def test_public_views__posted_epochs__give_header_and_record_as_the_chain_has_them(harness: CoordinatorHarness):
    """The second epoch follows the disabled first one and contains its work again."""
    ledger, pool = harness.chain.contracts.ledger, PoolId(harness.ctx.config.pool)
    for i in range(2):
        async with harness.client("node") as node:
            await hand_in(harness, node, FILE + bytes([i]))
        await decide(harness)
    harness.run_job("settle")
    async with harness.client("stranger") as anybody:
        (unposted,) = (await anybody.get_status()).epochs
    assert (unposted.posted, unposted.header_hash, unposted.final_at) == (False, None, None)
    await harness.follow()
    await harness.follow()
    harness.chain.send("arbiter", ledger.disable_epoch(pool, find_record(harness, 0), is_false=True))
    harness.chain.advance(1)  # minimum time between two epochs
    await harness.follow()
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    async with harness.client("stranger") as anybody:
        epochs = (await anybody.get_status()).epochs
    assert [(e.posted, e.disabled, e.reward, e.cumulative) for e in epochs] == [
        (True, True, 120, 120),
        (True, False, 120, 120),
    ]
    for view in epochs:
        fields = view.model_dump()
        header = EpochHeader(**({k: fields[k] for k in EpochHeader.__slots__ if k != "pool"} | {"pool": pool}))
        assert header.compute_hash() == view.header_hash
        assert EpochRecord(**{k: fields[k] for k in EpochRecord.__slots__}) == find_record(harness, view.epoch)
    assert ledger.head_of(pool) == epochs[1].header_hash
    key = f"epochs/{pool}/{epochs[1].data_hash}.json"
    data = json.loads(harness.ctx.store.get(key, max_bytes=100_000))
    assert data["previous_hash"] == ZERO_HASH, "the chain of headers begins again after a disabled epoch"
    assert data["rewards"] == {harness.chain.address("contributor"): "120"}


async def challenge(harness: CoordinatorHarness, row: SubmissionRow) -> Hash:
    """Post the countersigned receipt with a bond."""
    ledger = harness.chain.contracts.ledger
    receipt = to_receipt(row, harness.ctx.config.pool)
    promise = Countersignature(receipt_hash=Hash(row.receipt_hash), signed_at=row.signed_at, due_by=row.due_by)
    call = ledger.challenge_omission(
        receipt, node_signature=row.signature, promise=promise, promise_signature=row.countersignature
    )
    harness.chain.send("node", call)
    return promise.receipt_hash


async def test_challenge__receipt_of_a_posted_epoch__is_answered_at_once(harness: CoordinatorHarness):
    """Once the promise is due, the ledger accepts a challenge, even of a receipt in an epoch."""
    for i in range(2):
        async with harness.client("node") as node:
            await hand_in(harness, node, FILE + bytes([i]))
        await decide(harness)
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    with harness.ctx.database.read() as rows:
        row = rows.list_submissions(SubmissionState.SETTLED)[1]
    harness.chain.advance(int(row.due_by - harness.chain.now() + 1))
    receipt_hash = await challenge(harness, row)
    await harness.follow()
    await harness.follow()
    ledger = harness.chain.contracts.ledger
    assert ledger.get_challenge(receipt_hash).state is ChallengeState.ANSWERED
    assert harness.chain.client.get_balance(ledger.address) == 0
    with harness.ctx.database.read() as rows:
        known = rows.get_challenge(receipt_hash)
    assert known is not None
    assert known.decided_block is not None


async def test_challenge__receipt_that_no_epoch_holds_yet__is_answered_when_its_epoch_is_posted(
    harness: CoordinatorHarness,
):
    async with harness.client("node") as node:
        await hand_in(harness, node, FILE)
    await decide(harness)
    with harness.ctx.database.read() as rows:
        (row,) = rows.list_submissions(SubmissionState.ACCEPTED)
    harness.chain.advance(int(row.due_by - harness.chain.now() + 1))
    receipt_hash = await challenge(harness, row)
    await harness.follow()
    ledger = harness.chain.contracts.ledger
    assert ledger.get_challenge(receipt_hash).state is ChallengeState.OPEN
    harness.clock.offset += 100
    harness.run_job("settle")
    for _ in range(3):
        await harness.follow()
    assert ledger.get_challenge(receipt_hash).state is ChallengeState.ANSWERED


async def test_challenge__upheld_before_any_epoch_holds_it__no_epoch_pays_again(harness: CoordinatorHarness):
    harness.chain.bond("operator", harness.ctx.ledger.pool, BondKind.OPERATOR, 10_000)
    async with harness.client("node") as node:
        await hand_in(harness, node, FILE)
    await decide(harness)
    with harness.ctx.database.read() as rows:
        (row,) = rows.list_submissions(SubmissionState.ACCEPTED)
    harness.chain.advance(int(row.due_by - harness.chain.now() + 1))
    await challenge(harness, row)
    harness.chain.advance(10)
    ledger = harness.chain.contracts.ledger
    harness.chain.send("deployer", ledger.resolve_omission(to_receipt(row, harness.ctx.config.pool)))
    await harness.follow()
    harness.clock.offset += 100
    harness.run_job("settle")
    await harness.follow()
    assert ledger.epochs_of(harness.ctx.ledger.pool) == 0


async def test_challenge__upheld_although_an_epoch_holds_it__the_next_claim_is_less(harness: CoordinatorHarness):
    """The coordinator did not answer in time. The bond has paid 60, and the epoch pays 60 more for the same work."""
    ledger, pool = harness.chain.contracts.ledger, harness.ctx.ledger.pool
    harness.chain.bond("operator", pool, BondKind.OPERATOR, 10_000)
    async with harness.client("node") as node:
        await hand_in(harness, node, FILE)
    await decide(harness)
    harness.clock.offset += 100
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    with harness.ctx.database.read() as rows:
        (row,) = rows.list_submissions(SubmissionState.SETTLED)
    harness.chain.advance(int(row.due_by - harness.chain.now() + 1))
    await challenge(harness, row)
    harness.chain.advance(10)
    harness.chain.send("deployer", ledger.resolve_omission(to_receipt(row, harness.ctx.config.pool)))
    harness.clock.offset += 200
    for _ in range(3):
        await harness.follow()
    contributor = harness.chain.address("contributor")
    paid = ledger.deduction_of(pool, contributor)
    assert paid == 60
    epoch = find_record(harness, 0)
    before = harness.chain.contracts.token.balance_of(contributor)
    harness.chain.send("deployer", ledger.claim(pool, epoch, contributor, paid, []))
    assert harness.chain.contracts.token.balance_of(contributor) == before
    assert (ledger.deduction_of(pool, contributor), ledger.claimed_of(pool, contributor)) == (0, paid)


def record_work(harness: CoordinatorHarness, count: int) -> None:
    """Insert accepted submissions with true promises, as if they had been submitted and judged."""
    wallet, operator, ctx = harness.wallet("node"), harness.ctx.signer, harness.ctx
    now = harness.chain.now()
    deadline = now + 1
    with ctx.database.write() as rows:
        rows.add(NodeRow(address=wallet.address, contributor=harness.chain.address("contributor")))
        rows.session.add_all(
            TaskRow(
                id=1000 + n, policy_version=0, groups=1, state=TaskState.SUBMITTED, node=wallet.address, lease=1000 + n
            )
            for n in range(count)
        )
        rows.session.flush()
        for n in range(count):
            receipt = Receipt(
                pool=ctx.ledger.pool, task=1000 + n, lease=1000 + n, node=wallet.address,
                contributor=harness.chain.address("contributor"), policy_version=0, work_key=make_hash(f"work {n}"),
                groups=1, units=1, deadline=deadline,
            )  # fmt: skip
            receipt_hash = eip712.compute_struct_hash(receipt)
            promise = Countersignature(receipt_hash=receipt_hash, signed_at=now - 5, due_by=now - 1)
            rows.session.add(
                SubmissionRow(
                    receipt_hash=receipt_hash, task=receipt.task, lease=receipt.lease, node=receipt.node,
                    contributor=receipt.contributor, policy_version=0, work_key=receipt.work_key, groups=1, units=1,
                    receipt_units=1, deadline=deadline, signature=eip712.sign(receipt, ctx.receipt_domain, wallet),
                    signed_at=now - 5, due_by=now - 1, state=SubmissionState.ACCEPTED, decided_at=harness.clock(),
                    decision=Decision.ACCEPT,
                    countersignature=eip712.sign(promise, ctx.ledger_domain, operator),
                )
            )  # fmt: skip


async def test_challenges__dozens_of_included_receipts__are_all_answered_in_two_transactions(
    harness: CoordinatorHarness,
):
    """One contributor challenges all its work at once, and the window of a test pool is ten seconds."""
    count, ledger, client = SLICE + 10, harness.chain.contracts.ledger, harness.chain.client
    record_work(harness, count)
    harness.run_job("settle")
    await harness.follow()
    await harness.follow()
    with harness.ctx.database.read() as rows:
        settled = rows.list_submissions(SubmissionState.SETTLED)
    assert len(settled) == count
    harness.chain.advance(30)
    client.request("anvil_setBlockTimestampInterval", 0)  # all are opened at one time, on a machine of any speed
    receipts = [await challenge(harness, row) for row in settled]
    sent, opened_at = client.count_transactions(harness.ctx.signer.address), harness.chain.now()
    client.request("anvil_setBlockTimestampInterval", 1)
    await harness.follow()
    assert {ledger.get_challenge(receipt).state for receipt in receipts} == {ChallengeState.ANSWERED}
    assert client.count_transactions(harness.ctx.signer.address) - sent == 2
    assert harness.chain.now() - opened_at < 10
    assert client.get_balance(ledger.address) == 0
    with harness.ctx.database.read() as rows:
        (largest, _) = [intent for intent in rows.list_intents(IntentState.MINED) if intent.key.startswith("answer/")]
        mined = client.find_mined(Hash(largest.transaction_hash or ""))
    assert mined is not None
    assert mined.gas_used < 5_000_000
    assert len(largest.data) / 2 < 100_000, "nodes take 128 KiB"
