"""Epochs hold every decided submission once; roots are recomputed here by another way; pay is cumulative."""

import json
from dataclasses import replace

import pytest
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain import epoch_closing, settlement
from covey.chain.structs import EpochRecord
from covey.protocol import canonical, merkle
from covey.protocol.ids import ZERO_HASH
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.epochs import Closed, close_epoch, mark_settled
from tests.fakes.pool import FakePool, make_address, make_hash, make_ledger, make_params

pytestmark = pytest.mark.unit
LEDGER = make_ledger(chain_id=31337, epoch_units=100, epoch_length=15)


# -- another implementation: ABI words by hand, the tree from its definition


def word(value: int | str) -> bytes:
    return bytes.fromhex(value[2:]).rjust(32, b"\0") if isinstance(value, str) else value.to_bytes(32, "big")


def hash_leaf(*values: int | str) -> bytes:
    return keccak(keccak(b"".join(map(word, values))))


def compute_root(leaves: list[bytes]) -> str:
    """OpenZeppelin's layout: a complete binary tree whose 2n - 1 places end with the leaves, largest first."""
    ranked = sorted(leaves, reverse=True)

    def node(i: int) -> bytes:
        if i >= len(ranked) - 1:
            return ranked[i - (len(ranked) - 1)]
        return keccak(b"".join(sorted((node(2 * i + 1), node(2 * i + 2)))))

    return "0x" + (node(0).hex() if ranked else "00" * 32)


def climb(leaf: bytes, proof: list[str]) -> str:
    for sibling in proof:
        leaf = keccak(b"".join(sorted((leaf, bytes.fromhex(sibling[2:])))))
    return "0x" + leaf.hex()


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=20, unique=True))
def test_merkle_tree__any_leaves__has_the_root_of_the_definition_and_proofs_that_lead_to_it(leaves: list[bytes]):
    tree = merkle.MerkleTree(leaves)
    assert tree.root == compute_root(leaves)
    for leaf in leaves:
        proof = tree.get_proof(leaf)
        assert climb(leaf, proof) == tree.root
        assert merkle.is_in_tree(tree.root, leaf, proof)


def reward_leaf(who: str, amount: int) -> bytes:
    return hash_leaf(31337, LEDGER.address, 1, make_address(who), amount)


# -- rows


def is_due(pool: FakePool, *, chain_time: float = 10**6) -> bool:
    with pool.database.read() as rows:
        return settlement.is_due(rows, pool.params, LEDGER, now=pool.now, chain_time=chain_time)


def close(pool: FakePool) -> Closed:
    return close_epoch(pool, LEDGER)


def post(pool: FakePool, number: int, *, at: int = 500) -> EpochRecord:
    """The chain takes the epoch at second `at`."""
    with pool.database.write() as rows:
        header = settlement.build_header(rows.get_epoch(number), LEDGER.pool)
        record = make_record(number, header.compute_hash(), final_at=at + 20, units=header.units)
        assert settlement.record_posted(rows, header, record, block=100 + number)
    mark_settled(pool)
    return record


def make_record(number: int, header_hash: str, *, final_at: int = 520, units: int = 0) -> EpochRecord:
    return EpochRecord(
        header_hash=header_hash, reward_root=make_hash("r"), epoch=number, final_at=final_at, reward=3 * units,
        cumulative=7 * units,
    )  # fmt: skip


def reward(pool: FakePool, who: str, epoch: int) -> tuple[int, list[str]]:
    with pool.database.read() as rows:
        rewards = rows.list_rewards(epoch)
    amount = rewards[make_address(who)]
    leaf = epoch_closing.compute_reward_leaf(LEDGER, make_address(who), amount)
    return amount, epoch_closing.build_reward_tree(LEDGER, rewards).get_proof(leaf)


def test_build_work_leaf__accepted__is_hashed_as_the_contract_hashes_it(earning: FakePool):
    receipt_hash = earning.work("a", units=17)
    earning.decide(receipt_hash)
    row = earning.submission(receipt_hash)
    leaf = settlement.build_work_leaf(row)
    assert leaf.compute_hash() == hash_leaf(
        receipt_hash, row.work_key, make_address("a"), make_address("a's owner"), row.task, 0,
        row.signed_at, 1, 0, 17, row.evidence_hash,
    )  # fmt: skip


def test_close_epoch__accepted_rejected_and_void__all_have_a_leaf_and_only_one_is_paid(earning: FakePool):
    accepted, rejected, void = earning.work("a", units=17), earning.work("cheat"), earning.work("b")
    pending = earning.work("a")
    earning.decide(accepted)
    earning.decide(rejected, Decision.REJECT)
    earning.decide(void, Decision.REJECT, reason=Reason.REWARD)
    closed = close(earning)
    epoch, leaves = closed.epoch, json.loads(closed.data)["leaves"]
    assert [leaf["receipt_hash"] for leaf in leaves] == [accepted, rejected, void]
    assert [(leaf["outcome"], leaf["reason"], leaf["units"]) for leaf in leaves] == [(1, 0, 17), (2, 5, 0), (2, 39, 0)]
    assert (epoch.number, epoch.leaf_count, epoch.units) == (0, 3, 17)
    assert epoch.data_hash == canonical.sha256(closed.data)
    hashes = [hash_leaf(*leaf_values(leaf)) for leaf in leaves]
    assert epoch.work_root == compute_root(hashes)
    assert epoch.reward_root == compute_root([reward_leaf("a's owner", 51)])
    assert earning.submission(pending).epoch is None


def leaf_values(leaf: dict[str, int | str]) -> list[int | str]:
    names = "receipt_hash work_key node contributor task policy_version signed_at outcome reason units evidence_hash"
    return [leaf[name] for name in names.split()]


def test_close_epoch__leaf__names_the_block_that_the_audits_draw_follows(earning: FakePool):
    """With the receipt's hash and the block's number anybody can repeat the draw, and see that no block was chosen."""
    receipt_hash = earning.record(earning.build_receipt(earning.lease("a")), signed_at=41).message.receipt_hash
    earning.decide(receipt_hash)
    (leaf,) = json.loads(close(earning).data)["leaves"]
    assert (leaf["receipt_hash"], leaf["signed_at"]) == (receipt_hash, 41)


def test_close_epoch__no_quorum__is_a_leaf_of_outcome_unknown(earning: FakePool):
    receipt_hash = earning.work("a")
    earning.decide(receipt_hash, Decision.UNKNOWN)
    earning.decide(receipt_hash, Decision.UNKNOWN)
    assert earning.submission(receipt_hash).state is SubmissionState.VOID
    (leaf,) = json.loads(close(earning).data)["leaves"]
    assert (leaf["outcome"], leaf["reason"], leaf["units"]) == (Decision.UNKNOWN, Reason.UNDECIDED, 0)


def test_close_epoch__three_epochs__rewards_are_cumulative_and_provable(earning: FakePool):
    expected = []
    for units in ({"a": 20}, {"a": 8, "b": 12}, {"b": 1}):
        for name, count in units.items():
            earning.decide(earning.work(name, units=count))
        closed = close(earning)
        post(earning, closed.epoch.number)
        expected.append(closed.epoch)
    # a: 20 x 3, then 28 x 3 for good.  b: 12 x 3, then 13 x 3.
    assert reward(earning, "a's owner", 0)[0] == 60
    assert [reward(earning, who, 2)[0] for who in ("a's owner", "b's owner")] == [84, 39]
    for epoch, who, amount in ((0, "a's owner", 60), (1, "a's owner", 84), (1, "b's owner", 36), (2, "b's owner", 39)):
        assert climb(reward_leaf(who, amount), reward(earning, who, epoch)[1]) == expected[epoch].reward_root
    assert expected[2].reward_root == compute_root([reward_leaf("a's owner", 84), reward_leaf("b's owner", 39)])


def test_close_epoch__nobody_earned_anything__has_an_empty_tree(earning: FakePool):
    earning.decide(earning.work("cheat"), Decision.REJECT)
    assert close(earning).epoch.reward_root == "0x" + "00" * 32
    with earning.database.read() as rows:
        assert rows.list_rewards(0) == {}


def test_close_epoch__submission__is_in_one_epoch_only(earning: FakePool):
    first = earning.work("a")
    earning.decide(first)
    close(earning)
    second = earning.work("b")
    earning.decide(second)
    leaves = [leaf["receipt_hash"] for leaf in json.loads(close(earning).data)["leaves"]]
    assert leaves == [second]
    assert [earning.submission(h).epoch for h in (first, second)] == [0, 1]


def test_record_posted__epoch__settles_what_it_holds_and_nothing_else(earning: FakePool):
    inside, outside = earning.work("a"), earning.work("b")
    earning.decide(inside)
    close(earning)
    earning.decide(outside)
    post(earning, 0)
    assert earning.states() == {inside: SubmissionState.SETTLED, outside: SubmissionState.ACCEPTED}
    assert earning.submission(inside).units == 20


def test_record_posted__epoch__keeps_what_the_chain_says_of_it(earning: FakePool):
    earning.decide(earning.work("a", units=20))
    close(earning)
    record = post(earning, 0, at=700)
    with earning.database.read() as rows:
        row = rows.get_epoch(0)
    assert (row.header_hash, row.final_at, row.reward, row.cumulative) == (record.header_hash, 720, "60", "140")
    assert row.posted_block == 100
    assert post(earning, 0, at=701).final_at == 721, "reported again after a reorganization"
    with earning.database.read() as rows:
        assert rows.get_epoch(0).final_at == 721


def test_record_posted__epoch_that_was_not_closed_here__changes_nothing(earning: FakePool):
    inside = earning.work("a")
    earning.decide(inside)
    close(earning)
    with earning.database.write() as rows:
        header = settlement.build_header(rows.get_epoch(0), LEDGER.pool)
        for other in (replace(header, epoch=9), replace(header, units=1)):
            assert not settlement.record_posted(rows, other, make_record(other.epoch, make_hash("h")), block=1)
        assert rows.get_epoch(0).posted_block is None
    assert earning.submission(inside).state is SubmissionState.ACCEPTED


# -- headers


def test_close_epoch__header__follows_from_the_file_and_the_epoch_before(earning: FakePool):
    for number in range(2):
        earning.decide(earning.work("a", units=20 + number))
        closed = close(earning)
        post(earning, number)
        if number == 0:
            first = closed.epoch
    epoch, data = closed.epoch, json.loads(closed.data)
    kind = (
        b"EpochHeader(uint256 pool,uint64 epoch,bytes32 workRoot,bytes32 rewardRoot,uint64 leafCount,uint64 units,"
        b"uint32 verdicts,bytes32 dataHash,bytes32 previousHash)"
    )
    fields = (1, 0, first.work_root, first.reward_root, 1, 20, 0, first.data_hash, 0)
    head = keccak(keccak(kind) + b"".join(map(word, fields)))
    assert epoch.previous_hash == data["previous_hash"] == "0x" + head.hex()
    assert compute_root([hash_leaf(*leaf_values(leaf)) for leaf in data["leaves"]]) == epoch.work_root
    rewards = [hash_leaf(31337, LEDGER.address, 1, who, int(sum_)) for who, sum_ in data["rewards"].items()]
    assert compute_root(rewards) == epoch.reward_root
    assert data["rewards"] == {make_address("a's owner"): str(41 * 3)}
    assert canonical.sha256(closed.data) == epoch.data_hash


def test_close_epoch__more_units_than_one_epoch_may_have__leaves_the_rest_for_the_next(earning: FakePool):
    earning.params = make_params(max_staleness=3, epoch_seconds=20, epoch_leaves=4)
    ledger = replace(LEDGER, epoch_units=40)
    hashes = [earning.work("a", units=units) for units in (25, 20, 15, 1)]
    for receipt_hash in hashes:
        earning.decide(receipt_hash)
    first = close_epoch(earning, ledger).epoch
    assert (first.units, first.leaf_count) == (40, 2)
    assert [earning.submission(h).epoch for h in hashes] == [0, None, 0, None]
    post(earning, 0)
    second = close_epoch(earning, ledger).epoch
    assert (second.units, second.leaf_count) == (21, 2)
    assert reward(earning, "a's owner", 1)[0] == 61 * 3


# -- an epoch that the arbiter disables


def test_record_disabled__epochs__are_paid_anew_in_a_later_one(earning: FakePool):
    """The contract takes the units of a disabled epoch back, so a later root may neither keep nor lose them."""
    first, second = earning.work("a"), earning.work("a", units=8)
    earning.decide(first)
    close(earning)
    post(earning, 0)
    earning.decide(second)
    close(earning)
    post(earning, 1)
    with earning.database.write() as rows:
        settlement.record_disabled(rows, number=1)
        settlement.record_disabled(rows, number=1)
    third = earning.work("b", units=5)
    earning.decide(third)
    closed = close(earning)
    assert closed.epoch.units == 13
    assert [leaf["receipt_hash"] for leaf in json.loads(closed.data)["leaves"]] == [second, third]
    assert reward(earning, "a's owner", 2)[0] == 84, "28 units once"
    assert [earning.submission(h).epoch for h in (first, second, third)] == [0, 2, 2]


def test_record_disabled__first_epoch__starts_from_nothing(earning: FakePool):
    earning.decide(earning.work("a", units=20))
    close(earning)
    post(earning, 0)
    with earning.database.write() as rows:
        settlement.record_disabled(rows, number=0)
    earning.now += 20
    assert is_due(earning)
    assert close(earning).epoch.units == 20
    assert reward(earning, "a's owner", 1)[0] == 60


def test_record_disabled__the_next_one_is_closed_and_not_posted__is_closed_again(earning: FakePool):
    """Epoch 1 was built on the rewards of 0. It is built again without them, and epoch 2 holds the work of 0."""
    first, second = earning.work("a"), earning.work("b", units=8)
    earning.decide(first)
    close(earning)
    post(earning, 0)
    earning.decide(second)
    assert close(earning).epoch.previous_hash != ZERO_HASH
    assert reward(earning, "a's owner", 1)[0] == 60
    with earning.database.write() as rows:
        settlement.record_disabled(rows, number=0)
        assert epoch_closing.is_closing(rows.get_epoch(1))
        closed = epoch_closing.build_epoch(rows, LEDGER, 1)
        assert epoch_closing.record_closed(rows, closed)
        assert rows.list_rewards(1) == {make_address("b's owner"): 24}
    assert (closed.header.previous_hash, closed.header.units) == (ZERO_HASH, 8)
    post(earning, 1)
    assert close(earning).epoch.units == 20
    assert [reward(earning, who, 2)[0] for who in ("a's owner", "b's owner")] == [60, 24]
