"""The file of an epoch: what it proves, and what no false one gets past."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic_core import from_json

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.epoch_file import EpochFile, require_rewards, sum_units
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import ZERO_HASH, Address
from covey.protocol.merkle import MerkleTree
from covey.protocol.prices import compute_reward
from covey.protocol.verdict_fees import VerdictFees
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit
Counts = dict[Address, int]
Forged = tuple[list[WorkLeaf], dict[Address, int], Counts]
LEDGER, CHAIN, PRICE = make_address("ledger"), 31337, 2_500_000
VALIDATORS = tuple(make_address(f"validator {number}") for number in range(3))
FEES = VerdictFees(fee=11, limit=50)


def draw_leaf(draw: random.Random, number: int, **changes: object) -> WorkLeaf:
    leaf = WorkLeaf(
        receipt_hash=make_hash(f"receipt {number}"),
        work_key=make_hash(f"work {number}"),
        node=make_address(f"node {draw.randrange(5)}"),
        contributor=make_address(f"contributor {draw.randrange(3)}"),
        task=number,
        policy_version=draw.randrange(4),
        signed_at=1000 + number,
        outcome=1,
        reason=0,
        units=draw.randrange(1, 5000),
        evidence_hash=ZERO_HASH,
    )
    return replace(leaf, **changes)


def build(
    leaves: list[WorkLeaf], rewards: dict[Address, int], counts: Counts | None = None, **changes: object
) -> tuple[EpochFile, EpochHeader]:
    """Return a file and a header that fit each other, whatever the leaves, the rewards and the verdicts say."""
    previous_hash, verdicts = make_hash("before"), counts or {}
    file = EpochFile(pool=1, epoch=4, previous_hash=previous_hash, leaves=leaves, rewards=rewards, verdicts=verdicts)
    header = EpochHeader(
        pool=1,
        epoch=4,
        work_root=MerkleTree([leaf.compute_hash() for leaf in leaves]).root,
        reward_root=file.build_reward_tree(chain=CHAIN, ledger=LEDGER).root,
        leaf_count=len(leaves),
        units=sum(leaf.units for leaf in leaves),
        verdicts=sum(verdicts.values()),
        data_hash=canonical.sha256(file.to_bytes()),
        previous_hash=previous_hash,
    )
    return file, replace(header, **changes)


def draw_counts(draw: random.Random, leaves: list[WorkLeaf]) -> Counts:
    """Draw how many verdicts of each validator are paid, at least one."""
    counts = {validator: draw.randrange(len(leaves) + 1) for validator in VALIDATORS[1:]}
    return {VALIDATORS[0]: 1} | {validator: count for validator, count in counts.items() if count}


def earn(leaves: list[WorkLeaf], before: dict[Address, int], verdicts: Counts | None = None) -> dict[Address, int]:
    total = Counter(before)
    for validator, count in (verdicts or {}).items():
        total[validator] += 11 * count
    for account, units in sum_units(leaves).items():
        total[account] += compute_reward(units, PRICE)
    return {account: amount for account, amount in total.items() if amount}


def check(file: EpochFile, header: EpochHeader, before: dict[Address, int]) -> None:
    found = EpochFile.from_bytes(file.to_bytes(), header)
    require_rewards(
        found,
        header,
        before=before,
        reward_per_million=PRICE,
        fees=FEES,
        validators=VALIDATORS,
        chain=CHAIN,
        ledger=LEDGER,
    )


BEFORE = {make_address("contributor 0"): 70, make_address("left long ago"): 5, VALIDATORS[0]: 22}


@pytest.mark.parametrize("seed", range(20))
def test_from_bytes__honest_epoch__passes(seed: int):
    draw = random.Random(seed)
    leaves = [draw_leaf(draw, number) for number in range(draw.randrange(1, 20))]
    for counts in ({}, draw_counts(draw, leaves)):
        file, header = build(leaves, earn(leaves, BEFORE, counts), counts)
        assert EpochFile.from_bytes(file.to_bytes(), header) == file
        check(file, header, BEFORE)


def test_to_bytes__no_verdicts__is_the_file_of_a_pool_without_fees():
    file, _ = build([], {})
    assert b"verdicts" not in file.to_bytes()


def raise_one(draw: random.Random, leaves: list[WorkLeaf], counts: Counts) -> Forged:
    rewards = earn(leaves, BEFORE, counts)
    rewards[draw.choice(sorted(rewards))] += draw.randrange(1, 100)
    return leaves, rewards, counts


def drop_one(draw: random.Random, leaves: list[WorkLeaf], counts: Counts) -> Forged:
    rewards = earn(leaves, BEFORE, counts)
    del rewards[draw.choice(sorted(rewards))]
    return leaves, rewards, counts


def double_one(draw: random.Random, leaves: list[WorkLeaf], counts: Counts) -> Forged:
    doubled = [*leaves, draw.choice(leaves)]
    return doubled, earn(doubled, BEFORE, counts), counts


def add_stranger(draw: random.Random, leaves: list[WorkLeaf], counts: Counts) -> Forged:
    return leaves, earn(leaves, BEFORE, counts) | {make_address(f"stranger {draw.random()}"): 1}, counts


def count_one_more(draw: random.Random, leaves: list[WorkLeaf], counts: Counts) -> Forged:
    """A verdict is counted, and nobody gets its fee."""
    validator = draw.choice(sorted(counts))
    return leaves, earn(leaves, BEFORE, counts), counts | {validator: counts[validator] + 1}


def pay_more_than_work(draw: random.Random, leaves: list[WorkLeaf], counts: Counts) -> Forged:
    more = counts | {draw.choice(VALIDATORS): len(leaves) + 1}
    return leaves, earn(leaves, BEFORE, more), more


def pay_more_than_the_limit(draw: random.Random, leaves: list[WorkLeaf], counts: Counts) -> Forged:
    leaves = leaves + [draw_leaf(draw, 100 + number) for number in range(20)]
    more = dict.fromkeys(VALIDATORS, 17)
    return leaves, earn(leaves, BEFORE, more), more


def pay_a_stranger_a_fee(draw: random.Random, leaves: list[WorkLeaf], counts: Counts) -> Forged:
    more = counts | {make_address(f"stranger {draw.random()}"): 1}
    return leaves, earn(leaves, BEFORE, more), more


def move_a_fee(draw: random.Random, leaves: list[WorkLeaf], counts: Counts) -> Forged:
    """The sum stays true."""
    rewards = earn(leaves, BEFORE, counts)
    rewards[VALIDATORS[0]] -= 11
    rewards[leaves[0].contributor] = rewards.get(leaves[0].contributor, 0) + 11
    return leaves, rewards, counts


FORGERIES = (raise_one, drop_one, double_one, add_stranger)
FALSE_FEES = (count_one_more, pay_more_than_work, pay_more_than_the_limit, pay_a_stranger_a_fee, move_a_fee)


@pytest.mark.parametrize("forge", FORGERIES + FALSE_FEES)
@pytest.mark.parametrize("seed", range(25))
def test_check__false_root__is_found(forge: Callable[[random.Random, list[WorkLeaf], Counts], Forged], seed: int):
    """The operator signs whatever it likes, so file and header always fit each other."""
    draw = random.Random(seed)
    leaves = [draw_leaf(draw, number) for number in range(draw.randrange(1, 16))]
    file, header = build(*forge(draw, leaves, draw_counts(draw, leaves)))
    with pytest.raises(ProtocolError) as found:
        check(file, header, BEFORE)
    assert found.value.code in ("bad_epoch", "false_rewards")


@pytest.mark.parametrize(
    "changes",
    [
        {"work_root": ZERO_HASH},
        {"reward_root": ZERO_HASH},
        {"leaf_count": 2},
        {"units": 1},
        {"verdicts": 1},
        {"previous_hash": ZERO_HASH},
        {"pool": 2},
        {"epoch": 5},
    ],
)
def test_check__header_that_says_otherwise__is_refused(changes: dict[str, object]):
    leaves = [draw_leaf(random.Random(1), number) for number in range(3)]
    file, header = build(leaves, earn(leaves, BEFORE), **changes)
    with pytest.raises(ProtocolError, match=r"bad_epoch|false_rewards"):
        check(file, header, BEFORE)


@pytest.mark.parametrize(
    "rewards",
    [
        {make_address("c").lower(): "5"},
        {make_address("c"): "0"},
        {make_address("c"): "-5"},
        {make_address("c"): str(1 << 256)},
        {make_address("c"): 5.5},
        {"0x": "5"},
        [],
        None,
    ],
)
def test_from_bytes__malformed_rewards__are_refused(rewards: object):
    file, header = build([], {})
    data = canonical.to_bytes(from_json(file.to_bytes()) | {"rewards": rewards})
    with pytest.raises(ProtocolError, match="bad_epoch"):
        EpochFile.from_bytes(data, replace(header, data_hash=canonical.sha256(data)))


@pytest.mark.parametrize(
    "verdicts",
    [
        {make_address("v").lower(): 5},
        {make_address("v"): 0},
        {make_address("v"): -5},
        {make_address("v"): 1 << 32},
        {make_address("v"): True},
        {make_address("v"): "5"},
        {"0x": 5},
        [],
        None,
    ],
)
def test_from_bytes__malformed_verdicts__are_refused(verdicts: object):
    file, header = build([], {})
    data = canonical.to_bytes(from_json(file.to_bytes()) | {"verdicts": verdicts})
    with pytest.raises(ProtocolError, match="malformed"):
        EpochFile.from_bytes(data, replace(header, data_hash=canonical.sha256(data)))


@pytest.mark.parametrize("seed", range(5))
def test_from_unposted__honest_file__has_the_header_that_proves_it(seed: int):
    draw = random.Random(seed)
    leaves = [draw_leaf(draw, number) for number in range(draw.randrange(1, 16))]
    counts = draw_counts(draw, leaves)
    file, header = build(leaves, earn(leaves, BEFORE, counts), counts)
    assert EpochFile.from_unposted(file.to_bytes(), chain=CHAIN, ledger=LEDGER) == (file, header)


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": -1},
        {"epoch": True},
        {"epoch": 1 << 64},
        {"pool": "1"},
        {"previous_hash": "0x12"},
        {"leaves": [{}]},
        {"leaves": None},
        {"rewards": {"0x": "5"}},
        {"more": 1},
        {"verdicts": {}},
    ],
)
def test_from_unposted__malformed_or_not_canonical__is_refused(changes: dict[str, object]):
    file, _ = build([], {})
    data = canonical.to_bytes(from_json(file.to_bytes()) | changes)
    with pytest.raises(ProtocolError, match="bad_epoch"):
        EpochFile.from_unposted(data, chain=CHAIN, ledger=LEDGER)


def test_from_unposted__spaces_or_a_receipt_twice__is_refused():
    leaf = draw_leaf(random.Random(1), 1)
    for data in (build([leaf], {})[0].to_bytes() + b" ", build([leaf, leaf], {})[0].to_bytes(), b"", b"[" * 100_000):
        with pytest.raises(ProtocolError, match="bad_epoch"):
            EpochFile.from_unposted(data, chain=CHAIN, ledger=LEDGER)
