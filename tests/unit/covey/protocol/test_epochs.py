import dataclasses

import pytest
from eth_utils.crypto import keccak

from covey.protocol.epochs import EpochHeader, WorkLeaf

pytestmark = pytest.mark.unit

ALICE, BOB = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
LEAF = WorkLeaf(
    receipt_hash="0x" + "01" * 32,
    work_key="0x" + "02" * 32,
    node=ALICE,
    contributor=BOB,
    task=2**200,
    policy_version=3,
    signed_at=2**40,
    outcome=1,
    reason=40,
    units=64,
    evidence_hash="0x" + "03" * 32,
)
HEADER = EpochHeader(
    pool=1,
    epoch=4,
    work_root="0x" + "01" * 32,
    reward_root="0x" + "02" * 32,
    leaf_count=5,
    units=6,
    verdicts=7,
    data_hash="0x" + "03" * 32,
    previous_hash="0x" + "04" * 32,
)


def words(value):
    """Encode static members as abi.encode does: one word each, in the order of the struct."""
    return b"".join(
        bytes.fromhex(v[2:]).rjust(32, b"\0") if isinstance(v, str) else v.to_bytes(32, "big")
        for v in dataclasses.astuple(value)
    )


def test_work_leaf__by_hand__is_hashed_twice():
    assert LEAF.compute_hash() == keccak(keccak(words(LEAF)))


def test_header__by_hand__is_hashed_with_its_type():
    kind = (
        b"EpochHeader(uint256 pool,uint64 epoch,bytes32 workRoot,bytes32 rewardRoot,uint64 leafCount,uint64 units,"
        b"uint32 verdicts,bytes32 dataHash,bytes32 previousHash)"
    )
    assert HEADER.compute_hash() == "0x" + keccak(keccak(kind) + words(HEADER)).hex()


@pytest.mark.parametrize("value", [LEAF, HEADER])
def test_hash__any_member_altered__differs(value):
    for field in dataclasses.fields(value):
        before = getattr(value, field.name)
        other = before + 1 if isinstance(before, int) else ("0x" + "0a" * 32 if len(before) == 66 else "0x" + "11" * 20)
        assert dataclasses.replace(value, **{field.name: other}).compute_hash() != value.compute_hash()
