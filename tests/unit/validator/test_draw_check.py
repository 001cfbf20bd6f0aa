"""The draw of a submission is recomputed from the chain and the epoch's file, which is not trusted."""

import asyncio
import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.eip712 import compute_struct_hash
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import ZERO_HASH, Hash
from covey.protocol.merkle import MerkleTree
from covey.protocol.messages import Receipt
from covey.protocol.params import VerificationParams
from covey.protocol.seeding import is_audited
from tests.fakes.pool import make_address, make_hash
from validator.draw_check import MAX_EPOCHS, Draw, find_draw, read_time

pytestmark = pytest.mark.unit
PUBLISHED_AT, HEAD = 40, 70
"""Blocks of the policy's publication and of the chain's head. Block n has the time 1000 + n."""
DRAW_SECONDS = 24


def make_receipt(task: int) -> Receipt:
    return Receipt(
        pool=1, task=task, lease=9, node=make_address("n"), contributor=make_address("c"), policy_version=3,
        work_key=make_hash(f"w{task}"), groups=2, units=9, deadline=2**62,
    )  # fmt: skip


def make_leaf(task: int, **changes: object) -> dict[str, object]:
    """Return the leaf of a task as in the epoch's file, countersigned at 1000 + task."""
    receipt = make_receipt(task)
    values = {
        "receipt_hash": compute_struct_hash(receipt), "work_key": receipt.work_key, "node": receipt.node,
        "contributor": receipt.contributor, "task": task, "policy_version": 3, "outcome": 1, "reason": 0, "units": 9,
        "evidence_hash": ZERO_HASH, "signed_at": 1000 + task,
    }  # fmt: skip
    return values | changes


def compute_root(leaves: list[dict[str, object]]) -> Hash:
    names = WorkLeaf.__dataclass_fields__
    return MerkleTree([WorkLeaf(**{n: leaf[n] for n in names}).compute_hash() for leaf in leaves]).root


def make_epoch(number: int, leaves: list[dict[str, object]], **changes: object) -> tuple[EpochHeader, bytes]:
    """Return the header of an epoch and its file."""
    data = canonical.to_bytes({"pool": 1, "epoch": number, "previous_hash": ZERO_HASH, "leaves": leaves, "rewards": {}})
    header = EpochHeader(
        pool=1, epoch=number, work_root=compute_root(leaves), reward_root=ZERO_HASH, leaf_count=len(leaves),
        units=sum(leaf["units"] for leaf in leaves), data_hash=canonical.sha256(data), previous_hash=ZERO_HASH,
    )  # fmt: skip
    return replace(header, **changes), data


class Store:
    """A pool's epochs on chain, posted every 10 blocks from block 30, and their files."""

    def __init__(self, *epochs: tuple[EpochHeader, bytes]) -> None:
        self.files = {f"epochs/1/{header.data_hash}.json": data for header, data in epochs}
        self.posted = [
            SimpleNamespace(header=header, block_number=30 + 10 * i) for i, (header, _) in enumerate(epochs)
        ]  # fmt: skip
        self.asked: list[str] = []

    async def read(self, key: str, max_bytes: int) -> bytes:
        self.asked.append(key)
        if key not in self.files:
            raise ProtocolError("not_public", key, status=404)
        return self.files[key]

    def find(self, task: int, audit_rate: float = 0.5) -> Draw | None:
        def get_block(tag: int | str) -> SimpleNamespace:
            number = HEAD if tag == "latest" else int(tag)
            return SimpleNamespace(number=number, hash=make_hash(f"b{number}"), timestamp=1000 + number)

        history = SimpleNamespace(
            client=SimpleNamespace(get_block=get_block),
            contracts=SimpleNamespace(deployment=SimpleNamespace(start_block=1)),
            list_epochs=lambda pool: self.posted,
            list_policies=lambda pool: [SimpleNamespace(step=3, block_number=PUBLISHED_AT)],
        )
        rules = VerificationParams(audit_rate=audit_rate, draw_seconds=DRAW_SECONDS)
        return asyncio.run(find_draw(history, make_receipt(task), rules=rules, read=self.read))


def test_find_draw__tasks_of_an_epoch__are_due_by_the_hash_of_a_later_block():
    store = Store(make_epoch(0, []), make_epoch(1, [make_leaf(task) for task in range(20)]))
    draws = [store.find(task) for task in range(20)]
    hashes = [make_hash(f"b{DRAW_SECONDS + task}") for task in range(20)]
    due = [is_audited(compute_struct_hash(make_receipt(task)), hashes[task], 0.5) for task in range(20)]
    assert draws == [
        Draw(block_number=DRAW_SECONDS + task, block_hash=hashes[task], is_due=is_due)
        for task, is_due in enumerate(due)
    ]
    assert set(due) == {True, False}
    assert [{store.find(task, rate).is_due for task in range(20)} for rate in (0.0, 1.0)] == [{False}, {True}]


def test_find_draw__epochs_before_the_policy__are_not_read():
    store = Store(make_epoch(0, [make_leaf(8)]), make_epoch(1, [make_leaf(1)]), make_epoch(2, [make_leaf(2)]))
    assert store.find(2) is not None
    assert [key in store.asked for key in store.files] == [False, True, True]
    assert store.find(8) is None  # its epoch was posted before its policy


def test_find_draw__file_that_is_not_public__is_skipped():
    store = Store(*(make_epoch(i, [make_leaf(i)]) for i in range(3)))
    del store.files[f"epochs/1/{store.posted[1].header.data_hash}.json"]
    assert store.find(1) is None
    assert store.find(2).block_number == DRAW_SECONDS + 2


def test_find_draw__drawing_block_does_not_exist_yet__is_unknown():
    last = HEAD - DRAW_SECONDS
    store = Store(make_epoch(0, []), make_epoch(1, [make_leaf(last), make_leaf(last + 1)]))
    assert store.find(last) is not None
    assert store.find(last + 1) is None


def test_find_draw__many_epochs__reads_at_most_max_epochs():
    store = Store(*(make_epoch(i, [make_leaf(0, units=i)]) for i in range(MAX_EPOCHS + 9)))
    assert store.find(5) is None
    assert len(store.asked) == MAX_EPOCHS


LEAVES = [make_leaf(1), make_leaf(2)]
TARGET = compute_struct_hash(make_receipt(1))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (canonical.to_bytes({"leaves": [make_leaf(1, units=8), make_leaf(2)]}), "bad_epoch"),
        (canonical.to_bytes({"leaves": LEAVES[:1]}), "bad_epoch"),
        (b"{", "bad_epoch"),
        (b"[]", "bad_epoch"),
        (b'{"leaves": 7}', "bad_epoch"),
        (b'{"leaves": [7]}', "bad_epoch"),
        (b"[" * 100_000, "bad_epoch"),
        (json.dumps({"leaves": [make_leaf(1, units=-1)]}).encode(), "bad_epoch"),
        (json.dumps({"leaves": [make_leaf(1, units="9")]}).encode(), "bad_epoch"),
        (json.dumps({"leaves": [make_leaf(1, receipt_hash="0xzz")]}).encode(), "bad_epoch"),
    ],
    ids=range(10),
)
def test_read_time__forged_file__is_refused(data: bytes, code: str):
    """Even if the file has the hash on chain, its leaves must have the root on chain."""
    header, _ = make_epoch(0, LEAVES, data_hash=canonical.sha256(data))
    with pytest.raises(ProtocolError) as caught:
        read_time(data, header, TARGET)
    assert caught.value.code == code


def test_read_time__another_file__is_refused():
    header, data = make_epoch(0, LEAVES)
    assert read_time(data, header, TARGET) == 1001
    assert read_time(data, header, make_hash("another")) is None
    with pytest.raises(ProtocolError, match="digest_mismatch"):
        read_time(data + b" ", header, TARGET)


def test_leaf__of_this_test__has_the_fields_of_the_protocol():
    leaf = WorkLeaf(**{name: make_leaf(1)[name] for name in WorkLeaf.__dataclass_fields__})
    assert asdict(leaf).items() <= make_leaf(1).items()
