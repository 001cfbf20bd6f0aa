from dataclasses import fields
from typing import get_args

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from covey.chain import abi_codec, events
from covey.chain.node_answers import Log
from covey.chain.structs import EpochRecord
from covey.protocol.epochs import EpochHeader

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
PLACE = {f.name for f in fields(events.Event)}
INHERITED = {
    "Approval",
    "Transfer",
    "EIP712DomainChanged",
    "RoleAdminChanged",
    "RoleGranted",
    "RoleRevoked",
    "DefaultAdminDelayChangeCanceled",
    "DefaultAdminDelayChangeScheduled",
    "DefaultAdminTransferCanceled",
    "DefaultAdminTransferScheduled",
    "Paused",
    "Unpaused",
}


def word(value: int) -> str:
    return f"0x{value:064x}"


def make_log(signature: str, indexed: list[str], data: bytes) -> Log:
    return Log(
        address=ALICE,
        topics=("0x" + keccak(text=signature).hex(), *indexed),
        data=data,
        block_number=7,
        block_hash=word(70),
        transaction_hash=word(71),
        log_index=2,
    )


def test_decode__string_that_is_not_utf8__replaces_its_bytes():
    """Anyone can create a pool with such a text. An error would stop every reader of the deployment's events."""
    data = encode(["bytes32", "bytes"], [bytes(32), b"a\xff\xc3("])
    created = events.decode(make_log("PoolCreated(uint256,address,bytes32,string)", [word(1), word(2)], data))
    assert isinstance(created, events.PoolCreated)
    assert created.params == "a\ufffd\ufffd("


def test_decode__policy_published__gives_its_fields_and_position():
    log = make_log("PolicyPublished(uint256,uint64,bytes32)", [word(1), word(5)], bytes([9]) * 32)
    assert events.decode(log) == events.PolicyPublished(
        block_number=7,
        block_hash=word(70),
        transaction_hash=word(71),
        log_index=2,
        pool=1,
        step=5,
        record_hash="0x" + "09" * 32,
    )


def test_decode__pool_created__reads_text_and_checksums_the_address():
    data = encode(["bytes32", "string"], [bytes(32), '{"name":"é"}'])
    log = make_log("PoolCreated(uint256,address,bytes32,string)", [word(3), "0x" + ALICE[2:].lower().zfill(64)], data)
    event = events.decode(log)
    assert isinstance(event, events.PoolCreated)
    assert (event.pool, event.operator, event.params) == (3, ALICE, '{"name":"é"}')


def test_decode__case_opened__distinguishes_indexed_and_plain_fields():
    data = encode(["address", "uint8", "uint256", "uint256"], [ALICE, 6, 60, 1000])
    indexed = [word(4), word(1), "0x" + "22".zfill(64)]
    log = make_log("CaseOpened(bytes32,uint256,address,address,uint8,uint256,uint256)", indexed, data)
    event = events.decode(log)
    assert isinstance(event, events.CaseOpened)
    assert (event.receipt_hash, event.pool, int(event.node, 16)) == (word(4), 1, 0x22)
    assert (event.contributor, event.reason, event.amount, event.veto_until) == (ALICE, 6, 60, 1000)


def test_decode__epoch_posted__reads_header_and_record():
    header = "(uint256,uint64,bytes32,bytes32,uint64,uint64,uint32,bytes32,bytes32)"
    rest = ["uint64", "uint96", "uint96"]
    raw = [n.to_bytes(32) for n in range(10)]
    data = encode([header, *rest], [(1, 5, raw[1], raw[2], 3, 40, 6, raw[4], raw[5]), 99, 120, 360])
    event = events.decode(make_log(f"EpochPosted(uint256,uint64,{header},{','.join(rest)})", [word(1), word(5)], data))
    assert isinstance(event, events.EpochPosted)
    assert (event.pool, event.epoch) == (1, 5)
    assert event.header == EpochHeader(
        pool=1,
        epoch=5,
        work_root=word(1),
        reward_root=word(2),
        leaf_count=3,
        units=40,
        verdicts=6,
        data_hash=word(4),
        previous_hash=word(5),
    )
    assert event.record == EpochRecord(
        header_hash=event.header.compute_hash(), reward_root=word(2), epoch=5, final_at=99, reward=120, cumulative=360
    )


def test_decode__foreign_or_anonymous_log__is_none():
    assert events.decode(make_log("RoleGranted(bytes32,address,address)", [word(1)] * 3, b"")) is None
    anonymous = make_log("x()", [], b"")
    assert events.decode(Log(**{f.name: getattr(anonymous, f.name) for f in fields(Log)} | {"topics": ()})) is None


def test_classes__every_event_of_the_contracts__has_a_class_with_the_same_fields():
    kinds = {kind.__name__: kind for kind in get_args(events.AnyEvent)}
    names = set()
    for name in abi_codec.CONTRACT_NAMES:
        for item in abi_codec.load_artifact(name).events:
            if item.name in INHERITED:
                continue
            names.add(item.name)
            own = [f.name for f in fields(kinds[item.name]) if f.name not in PLACE]
            assert own == [abi_codec.to_snake(param.name) for param in item.inputs], item.name
    assert names == set(kinds)
