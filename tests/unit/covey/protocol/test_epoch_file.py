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
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit
LEDGER, CHAIN, PRICE = make_address("ledger"), 31337, 2_500_000


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


def build(leaves: list[WorkLeaf], rewards: dict[Address, int], **changes: object) -> tuple[EpochFile, EpochHeader]:
    """Return a file and a header that fit each other, whatever the leaves and the rewards say."""
    file = EpochFile(pool=1, epoch=4, previous_hash=make_hash("before"), leaves=leaves, rewards=rewards)
    header = EpochHeader(
        pool=1,
        epoch=4,
        work_root=MerkleTree([leaf.compute_hash() for leaf in leaves]).root,
        reward_root=file.build_reward_tree(chain=CHAIN, ledger=LEDGER).root,
        leaf_count=len(leaves),
        units=sum(leaf.units for leaf in leaves),
        data_hash=canonical.sha256(file.to_bytes()),
        previous_hash=make_hash("before"),
    )
    return file, replace(header, **changes)


def earn(leaves: list[WorkLeaf], before: dict[Address, int]) -> dict[Address, int]:
    total = Counter(before)
    for account, units in sum_units(leaves).items():
        total[account] += compute_reward(units, PRICE)
    return {account: amount for account, amount in total.items() if amount}


def check(file: EpochFile, header: EpochHeader, before: dict[Address, int]) -> None:
    found = EpochFile.from_bytes(file.to_bytes(), header)
    require_rewards(found, header, before=before, reward_per_million=PRICE, chain=CHAIN, ledger=LEDGER)


BEFORE = {make_address("contributor 0"): 70, make_address("left long ago"): 5}


@pytest.mark.parametrize("seed", range(20))
def test_from_bytes__honest_epoch__passes(seed: int):
    draw = random.Random(seed)
    leaves = [draw_leaf(draw, number) for number in range(draw.randrange(1, 20))]
    file, header = build(leaves, earn(leaves, BEFORE))
    assert EpochFile.from_bytes(file.to_bytes(), header) == file
    check(file, header, BEFORE)


def raise_one(draw: random.Random, leaves: list[WorkLeaf]) -> tuple[list[WorkLeaf], dict[Address, int]]:
    rewards = earn(leaves, BEFORE)
    rewards[draw.choice(sorted(rewards))] += draw.randrange(1, 100)
    return leaves, rewards


def drop_one(draw: random.Random, leaves: list[WorkLeaf]) -> tuple[list[WorkLeaf], dict[Address, int]]:
    rewards = earn(leaves, BEFORE)
    del rewards[draw.choice(sorted(rewards))]
    return leaves, rewards


def double_one(draw: random.Random, leaves: list[WorkLeaf]) -> tuple[list[WorkLeaf], dict[Address, int]]:
    doubled = [*leaves, draw.choice(leaves)]
    return doubled, earn(doubled, BEFORE)


def add_stranger(draw: random.Random, leaves: list[WorkLeaf]) -> tuple[list[WorkLeaf], dict[Address, int]]:
    return leaves, earn(leaves, BEFORE) | {make_address(f"stranger {draw.random()}"): 1}


@pytest.mark.parametrize("forge", [raise_one, drop_one, double_one, add_stranger])
@pytest.mark.parametrize("seed", range(25))
def test_check__false_root__is_found(
    forge: Callable[[random.Random, list[WorkLeaf]], tuple[list[WorkLeaf], dict[Address, int]]], seed: int
):
    """The operator signs whatever it likes, so file and header always fit each other."""
    draw = random.Random(seed)
    leaves = [draw_leaf(draw, number) for number in range(draw.randrange(1, 20))]
    file, header = build(*forge(draw, leaves))
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


@pytest.mark.parametrize("seed", range(5))
def test_from_unposted__honest_file__has_the_header_that_proves_it(seed: int):
    draw = random.Random(seed)
    leaves = [draw_leaf(draw, number) for number in range(draw.randrange(1, 20))]
    file, header = build(leaves, earn(leaves, BEFORE))
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
