"""Policies at an origin's folder as a trainer offers them, and as a client without a network would read them."""

import shutil
from pathlib import Path

import numpy as np

from covey.chain.wallet import wallet_from_key
from covey.protocol.eip712 import Domain
from covey.protocol.ids import ZERO_HASH, Address, Hash, PoolId
from covey.protocol.policy_record import RECORD_FILE, WEIGHTS_FILE, PolicyRecord
from covey.protocol.transport import DELTA, WEIGHTS
from covey.shardcast.offering import ANCHOR_EVERY, Offering
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.policy_export import OpenPreview, build_row, write_weights
from covey.shardcast.policy_folder import map_weights, write_child
from covey.shardcast.reachability import PolicyRetention, find_route

TRAINER = wallet_from_key(b"\x07" * 32)
DOMAIN = Domain(chain_id=31337, contract=Address(wallet_from_key(b"\x08" * 32).address))
"""EIP-712 domain of the manifests that `build_offering` signs."""


def build_offering(root: Path, *, pool: PoolId, keep: int = 5, anchor_every: int = ANCHOR_EVERY) -> Offering:
    """Return an offering whose manifests TRAINER signs for DOMAIN."""
    retention = PolicyRetention(keep=keep)
    return Offering(
        OriginStore(root), pool=pool, domain=DOMAIN, signer=TRAINER, retention=retention, anchor_every=anchor_every
    )


def write_export(
    folder: Path,
    tensors: dict[str, np.ndarray],
    *,
    config: str = "{}",
    dtype: str = "BF16",
    open_preview: OpenPreview = lambda _: None,
) -> Path:
    """Write tensors, given as uint16[n] bits for BF16, as a trainer exports them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    rows = [build_row(name, dtype, values.shape) for name, values in tensors.items()]
    write_weights(
        folder,
        rows,
        lambda row: tensors[row.name].reshape(-1).view(np.uint8).data,
        threads=2,
        open_preview=open_preview,
    )
    return folder


def read_policy(store: OriginStore, pool: int, record_hash: Hash, folder: Path) -> Path:
    """Build the folder of a policy from an origin's own files, over the cheapest route."""
    head = store.read_head(pool)
    ways = find_route(head, record_hash) if head is not None else None
    assert ways, f"the origin knows no route to {record_hash}"
    found = store.find_record(record_hash)
    assert found is not None, f"the origin has no record {record_hash}"
    record = PolicyRecord.from_bytes(found, record_hash)
    folder.mkdir(parents=True, exist_ok=True)
    objects = [path for way in ways if (path := store.find_objects(way.manifest)) is not None]
    assert len(objects) == len(ways), "the origin lacks objects of the route"
    assert ways[0].base == ZERO_HASH
    base = map_weights(objects[0] / WEIGHTS, record.tensors)
    deltas = [path / DELTA for path in objects[1:]]
    if deltas:
        write_child(base, deltas, folder / WEIGHTS_FILE, record=record, threads=2)
    else:
        shutil.copyfile(objects[0] / WEIGHTS, folder / WEIGHTS_FILE)
    for row in record.files:
        newest = next(path for each in reversed(objects) if (path := each / row.name).exists())
        shutil.copyfile(newest, folder / row.name)
    (folder / RECORD_FILE).write_bytes(record.to_bytes())
    return folder
