"""Messages, epochs and cases on a real chain, for tests of the contract classes."""

from dataclasses import astuple, fields

from covey.chain import events
from covey.chain.follower import Follower
from covey.chain.history import History
from covey.chain.structs import (
    Accusation,
)
from covey.protocol.eip712 import compute_struct_hash, sign
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import ZERO_HASH
from covey.protocol.merkle import compute_leaf
from covey.protocol.messages import Receipt, Verdict

LEAF_TYPES = (
    *["bytes32"] * 2,
    *["address"] * 2,
    "uint256",
    *["uint64"] * 2,
    *["uint8"] * 2,
    "uint64",
    "bytes32",
)


def word(number: int) -> str:
    return f"0x{number:064x}"


def make_receipt(chain, pool: int, *, task: int = 1, work_key: str = word(5)) -> Receipt:
    return Receipt(
        pool=pool,
        task=task,
        lease=9,
        node=chain.address("node"),
        contributor=chain.address("contributor"),
        policy_version=4,
        work_key=work_key,
        groups=2,
        units=50,
        deadline=chain.now() + 100,
    )


def make_leaf(receipt: Receipt) -> WorkLeaf:
    return WorkLeaf(
        receipt_hash=compute_struct_hash(receipt),
        work_key=receipt.work_key,
        node=receipt.node,
        contributor=receipt.contributor,
        task=receipt.task,
        policy_version=receipt.policy_version,
        signed_at=3,
        outcome=1,
        reason=0,
        units=50,
        evidence_hash=ZERO_HASH,
    )


def hash_leaf(leaf: WorkLeaf) -> bytes:
    values = [bytes.fromhex(v[2:]) if k == "bytes32" else v for k, v in zip(LEAF_TYPES, astuple(leaf), strict=True)]
    return compute_leaf(LEAF_TYPES, values)


def propose(chain, pool: int, receipt: Receipt) -> Accusation:
    domain = chain.domain("slashing_court")
    verdicts = [make_verdict(chain, pool, receipt, i) for i in (2, 0)]
    signatures = [
        sign(verdict, domain, chain.wallets[f"validator-{i}"]) for verdict, i in zip(verdicts, (2, 0), strict=True)
    ]
    signature = sign(receipt, domain, chain.wallets["node"])
    chain.send("validator-1", chain.contracts.court.propose(receipt, signature, verdicts, signatures))
    return Accusation(
        receipt_hash=compute_struct_hash(receipt), pool=pool, node=receipt.node, contributor=receipt.contributor
    )


def make_verdict(chain, pool: int, receipt: Receipt, i: int) -> Verdict:
    return Verdict(
        pool=pool,
        receipt_hash=compute_struct_hash(receipt),
        work_key=receipt.work_key,
        validator=chain.address(f"validator-{i}"),
        outcome=2,
        reason=7,
        severity=2,
        units=0,
        evidence_hash=word(6),
        deadline=receipt.deadline,
    )


def make_header(chain, pool: int, *, work_root: str, reward_root: str, units: int) -> EpochHeader:
    """Return the header that can be posted next."""
    ledger = chain.contracts.ledger
    return EpochHeader(
        pool=pool,
        epoch=ledger.epochs_of(pool),
        work_root=work_root,
        reward_root=reward_root,
        leaf_count=2,
        units=units,
        data_hash=word(2),
        previous_hash=ledger.head_of(pool),
    )


def post(chain, pool: int, header: EpochHeader, *, signer: str = "operator") -> events.EpochPosted:
    chain.advance(1)
    chain.send(signer, chain.contracts.ledger.post(header, {}))
    found = History(client=chain.client, contracts=chain.contracts).find_epoch(pool, header.epoch)
    assert found is not None
    return found


def read_events(chain) -> list[events.Event]:
    return list(Follower(chain.client, chain.deployment).poll(()).events)


def without_place(event: events.Event) -> tuple[object, ...]:
    place = {f.name for f in fields(events.Event)}
    return type(event), *(getattr(event, f.name) for f in fields(event) if f.name not in place)
