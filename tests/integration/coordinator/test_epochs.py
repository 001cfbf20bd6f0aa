"""Accepted work becomes a batch, an epoch and tokens; what the API says of an epoch is what the chain says."""

import json

import pytest

from coordinator.db.models import NodeRow, SubmissionRow, TaskRow
from coordinator.domain.omissions import SLICE
from coordinator.domain.submissions import to_receipt
from covey.chain.history import History
from covey.chain.outbox import IntentState
from covey.chain.structs import ChallengeState, EpochRecord
from covey.protocol import eip712
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Hash, PoolId
from covey.protocol.messages import Countersignature, Receipt
from covey.protocol.status import SubmissionState, TaskState
from tests.fakes.network import PRICE, Office
from tests.fakes.pool import make_address, make_hash
from tests.integration.coordinator.handing import FILE, decide, hand_in, refuse

pytestmark = pytest.mark.integration


def find_record(office: Office, epoch: int) -> EpochRecord:
    """As whoever claims finds it: on the chain."""
    history = History(client=office.chain.client, contracts=office.chain.contracts)
    posted = history.find_epoch(PoolId(office.ctx.config.pool), epoch)
    assert posted is not None
    return posted.record


async def test_walk__two_submissions__become_a_batch_an_epoch_and_tokens(office: Office):
    for i in range(2):
        async with office.client("node") as node:
            await hand_in(office, node, FILE + bytes([i]))
        await decide(office)
    async with office.client("trainer") as trainer:
        batch = await trainer.claim_batch(0, wait_seconds=0)
        assert await trainer.claim_batch(1, wait_seconds=0) is None
        status = await trainer.get_status()
        files = [await trainer.get_object(item.url, max_bytes=4096) for item in batch.items]
    assert files == [FILE + b"\x00", FILE + b"\x01"], "ordered by task"
    steps = [(row.step, row.state, row.manifest_hash) for row in status.steps]
    assert steps == [(0, "READY", make_hash("policy 0")), (1, "OPEN", None)], "it asks before its policy is on chain"
    assert status.step == 0
    assert all(item.replayed and item.manifest_hash == make_hash("policy 0") for item in batch.items)
    assert {item.node for item in batch.items} == {office.chain.address("node")} <= set(status.nodes)
    office.run_job("settle_epoch")
    await office.follow()
    await office.follow()
    with office.ctx.database.read() as rows:
        assert {row.state for row in rows.list_submissions(*SubmissionState)} == {SubmissionState.SETTLED}
    owner, pool = office.chain.address("contributor"), PoolId(office.ctx.config.pool)
    async with office.client("stranger") as anybody:
        view = await anybody.get_reward(owner, 0)
        assert view.cumulative == 40 * PRICE
        assert await refuse(anybody.get_reward(owner, 1)) == ("unknown_epoch", 404)
        assert await refuse(anybody.get_reward(make_address("x"), 0)) == ("no_reward", 404)
    office.chain.advance(25)
    before = office.chain.contracts.token.balance_of(owner)
    record = find_record(office, 0)
    office.chain.send(
        "node", office.chain.contracts.ledger.claim(pool, record, owner, view.cumulative, list(view.proof))
    )
    assert office.chain.contracts.token.balance_of(owner) - before == 120


async def test_walk__epoch_disabled_by_the_arbiter__is_paid_from_the_next(office: Office):
    """The contract takes the units back; what was earned must be claimable once, against the epoch that follows."""
    ledger, pool = office.chain.contracts.ledger, PoolId(office.ctx.config.pool)
    owner = office.chain.address("contributor")
    for i in range(2):
        async with office.client("node") as node:
            await hand_in(office, node, FILE + bytes([i]))
        await decide(office)
    office.run_job("settle_epoch")
    await office.follow()
    await office.follow()
    office.chain.send("arbiter", ledger.disable_epoch(pool, find_record(office, 0)))
    office.chain.advance(1)  # so far apart the pool's terms want epochs
    await office.follow()
    async with office.client("node") as client:
        assert await refuse(client.get_reward(owner, 0)) == ("epoch_disabled", 409)
    office.run_job("settle_epoch")
    await office.follow()
    await office.follow()
    async with office.client("node") as client:
        view = await client.get_reward(owner, 1)
    assert view.cumulative == 40 * PRICE
    office.chain.advance(25)
    before = office.chain.contracts.token.balance_of(owner)
    record = find_record(office, 1)
    office.chain.send("node", ledger.claim(pool, record, owner, view.cumulative, list(view.proof)))
    assert office.chain.contracts.token.balance_of(owner) - before == 120


async def test_public_views__posted_epochs__give_header_and_record_as_the_chain_has_them(office: Office):
    """The second follows the first, and holds its work again, for that one was disabled."""
    ledger, pool = office.chain.contracts.ledger, PoolId(office.ctx.config.pool)
    for i in range(2):
        async with office.client("node") as node:
            await hand_in(office, node, FILE + bytes([i]))
        await decide(office)
    office.run_job("settle_epoch")
    async with office.client("stranger") as anybody:
        (unposted,) = (await anybody.get_status()).epochs
    assert (unposted.posted, unposted.header_hash, unposted.final_at) == (False, None, None)
    await office.follow()
    await office.follow()
    office.chain.send("arbiter", ledger.disable_epoch(pool, find_record(office, 0)))
    office.chain.advance(1)  # so far apart the pool's terms want epochs
    await office.follow()
    office.run_job("settle_epoch")
    await office.follow()
    await office.follow()
    async with office.client("stranger") as anybody:
        epochs = (await anybody.get_status()).epochs
    assert [(e.posted, e.disabled, e.reward, e.cumulative) for e in epochs] == [
        (True, True, 120, 120),
        (True, False, 120, 120),
    ]
    for view in epochs:
        fields = view.model_dump()
        header = EpochHeader(**({k: fields[k] for k in EpochHeader.__slots__ if k != "pool"} | {"pool": pool}))
        assert header.compute_hash() == view.header_hash
        assert EpochRecord(**{k: fields[k] for k in EpochRecord.__slots__}) == find_record(office, view.epoch)
    assert ledger.head_of(pool) == epochs[1].header_hash
    key = f"epochs/{pool}/{epochs[1].data_hash}.json"
    data = json.loads(office.ctx.store.get(key, max_bytes=100_000))
    assert data["previous_hash"] == epochs[0].header_hash
    assert data["rewards"] == {office.chain.address("contributor"): "120"}


async def challenge(office: Office, row: SubmissionRow) -> Hash:
    """Somebody posts the countersigned receipt with a bond."""
    ledger = office.chain.contracts.ledger
    receipt = to_receipt(row, office.ctx.config.pool)
    promise = Countersignature(
        receipt_hash=Hash(row.receipt_hash), signed_at=row.signed_at, latest_epoch=row.latest_epoch
    )
    call = ledger.challenge_omission(
        receipt, node_signature=row.signature, promise=promise, promise_signature=row.countersignature
    )
    office.chain.send("node", call)
    return promise.receipt_hash


async def test_challenge__receipt_of_a_posted_epoch__is_answered_at_once(office: Office):
    """After the receipt's deadline and both windows the ledger hears a challenge, whatever was posted."""
    for i in range(2):
        async with office.client("node") as node:
            await hand_in(office, node, FILE + bytes([i]))
        await decide(office)
    office.run_job("settle_epoch")
    await office.follow()
    await office.follow()
    with office.ctx.database.read() as rows:
        row = rows.list_submissions(SubmissionState.SETTLED)[1]
    office.chain.advance(int(row.deadline - office.chain.now() + 21))
    receipt_hash = await challenge(office, row)
    await office.follow()
    await office.follow()
    ledger = office.chain.contracts.ledger
    assert ledger.get_challenge(receipt_hash).state is ChallengeState.ANSWERED
    assert office.chain.client.get_balance(ledger.address) == 0
    with office.ctx.database.read() as rows:
        known = rows.get_challenge(receipt_hash)
    assert known is not None
    assert known.decided_block is not None


async def test_challenge__receipt_that_no_epoch_holds_yet__is_answered_when_its_epoch_is_posted(office: Office):
    async with office.client("node") as node:
        await hand_in(office, node, FILE)
    await decide(office)
    with office.ctx.database.read() as rows:
        (row,) = rows.list_unsettled()
    office.chain.advance(int(row.deadline - office.chain.now() + 21))
    receipt_hash = await challenge(office, row)
    await office.follow()
    ledger = office.chain.contracts.ledger
    assert ledger.get_challenge(receipt_hash).state is ChallengeState.OPEN
    office.clock.offset += 100
    office.run_job("settle_epoch")
    for _ in range(3):
        await office.follow()
    assert ledger.get_challenge(receipt_hash).state is ChallengeState.ANSWERED


def record_work(office: Office, count: int) -> None:
    """Accepted submissions with true promises, as if they had been handed in and judged."""
    wallet, operator, ctx = office.wallet("node"), office.ctx.operator, office.ctx
    deadline = office.chain.now() + 1
    with ctx.database.write() as rows:
        rows.add(NodeRow(address=wallet.address, contributor=office.chain.address("contributor")))
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
                contributor=office.chain.address("contributor"), policy_version=0, work_key=make_hash(f"work {n}"),
                groups=1, units=1, deadline=deadline,
            )  # fmt: skip
            receipt_hash = eip712.compute_struct_hash(receipt)
            promise = Countersignature(receipt_hash=receipt_hash, signed_at=1, latest_epoch=0)
            rows.session.add(
                SubmissionRow(
                    receipt_hash=receipt_hash, task=receipt.task, lease=receipt.lease, node=receipt.node,
                    contributor=receipt.contributor, policy_version=0, work_key=receipt.work_key, groups=1, units=1,
                    receipt_units=1, deadline=deadline, signature=eip712.sign(receipt, ctx.receipt_domain, wallet),
                    signed_at=1, latest_epoch=0, state=SubmissionState.ACCEPTED, decided_at=office.clock(),
                    countersignature=eip712.sign(promise, ctx.ledger_domain, operator),
                )
            )  # fmt: skip


async def test_challenges__dozens_of_included_receipts__are_all_answered_in_two_transactions(office: Office):
    """One contributor challenges all its work at once; the window of a test pool is ten seconds."""
    count, ledger, client = SLICE + 10, office.chain.contracts.ledger, office.chain.client
    record_work(office, count)
    office.run_job("settle_epoch")
    await office.follow()
    await office.follow()
    with office.ctx.database.read() as rows:
        settled = rows.list_submissions(SubmissionState.SETTLED)
    assert len(settled) == count
    office.chain.advance(30)
    receipts = [await challenge(office, row) for row in settled]
    sent, opened_at = client.count_transactions(office.ctx.operator.address), office.chain.now()
    await office.follow()
    assert {ledger.get_challenge(receipt).state for receipt in receipts} == {ChallengeState.ANSWERED}
    assert client.count_transactions(office.ctx.operator.address) - sent == 2
    assert office.chain.now() - opened_at < 10
    assert client.get_balance(ledger.address) == 0
    with office.ctx.database.read() as rows:
        (largest, _) = [intent for intent in rows.list_intents(IntentState.MINED) if intent.key.startswith("answer/")]
        mined = client.find_mined(Hash(largest.transaction_hash or ""))
    assert mined is not None
    assert mined.gas_used < 5_000_000
    assert len(largest.data) / 2 < 100_000, "nodes take 128 KiB"
