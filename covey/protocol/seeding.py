"""Seeds of slots, which determine prompt, target length and sampling noise.

seed(slot) = keccak(beacon, pool, policy_version, node, task, group, sibling), truncated to 63 bits. A
registered node cannot change it. The beacon is the record hash of the policy version. It is unknown until
the policy is published, and repeating the run gives the same one.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from eth_utils.crypto import keccak

from covey.protocol.ids import Address, GroupId, Hash, PoolId, Step, TaskId, hash_to_bytes

SEED_BITS = 63
MAX_AUDIT_ROWS = 1024
"""Maximum number of drawn rows of a submission."""
ROWS_DOMAIN = b"covey-rows-1"
"""Domain word of the draw of rows, so that no other draw by the same block depends on the same hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotDomain:
    """Seed inputs that all slots of one task share."""

    beacon: Hash
    """Record hash of the policy with this version."""
    pool: PoolId
    policy_version: Step
    node: Address
    task: TaskId


def compute_sampling_seed(domain: SlotDomain, group: GroupId, sibling: int) -> int:
    """Return the sampling seed of one rollout: the 63-bit key of its Gumbel noise."""
    return _cut(keccak(_encode_shared(domain) + _encode(group, sibling)))


def compute_prompt_draw(domain: SlotDomain, group: GroupId) -> int:
    """Return the 63-bit integer from which the environment draws prompt and target length.

    It is computed as the sampling seed is, but without the sibling, so that siblings share the prompt.
    """
    return _cut(keccak(_encode_shared(domain) + _encode(group)))


def compute_trial_seed(purpose: str, seed: int, prompt: int, sample: int) -> int:
    """Return a 63-bit seed for a completion that is not part of a task, and for which no worker is paid.

    Example: compute_trial_seed("evaluation", 0, 17, 3).
    """
    return _cut(hashlib.sha256(f"covey.{purpose}/{seed}/{prompt}/{sample}".encode()).digest())


def is_audited(receipt_hash: Hash, block_hash: Hash, rate: float) -> bool:
    """Return whether a submission is drawn for replay.

    The draw is uniform. It depends on the receipt and on a block that is later than both signatures.
    """
    draw = int.from_bytes(keccak(hash_to_bytes(receipt_hash) + hash_to_bytes(block_hash))[:8], "big")
    return draw < rate * 2**64


def draw_rows(receipt_hash: Hash, block_hash: Hash, *, count: int, rows: int) -> tuple[int, ...]:
    """Return the rows of a submission's file that are replayed in any case, as numbers from 0, in drawn order.

    The draw is uniform without replacement. Row i has the rank keccak("covey-rows-1", receipt, block, i), with i as a
    32-byte word, and the `count` rows with the lowest ranks are drawn. All `rows` are drawn if there are no more.
    """
    shared = ROWS_DOMAIN + hash_to_bytes(receipt_hash) + hash_to_bytes(block_hash)
    return tuple(sorted(range(rows), key=lambda row: keccak(shared + _encode(row)))[:count])


def compute_turn_order(receipt_hash: Hash, block_hash: Hash, validators: Sequence[Address]) -> list[Address]:
    """Return the validators in the order in which they are asked to judge a submission.

    They are sorted by keccak(receipt, block, validator) in ascending order.
    """

    def compute_rank(validator: Address) -> bytes:
        return keccak(hash_to_bytes(receipt_hash) + hash_to_bytes(block_hash) + bytes.fromhex(validator[2:]))

    return sorted(validators, key=compute_rank)


@functools.lru_cache(maxsize=16)
def _encode_shared(domain: SlotDomain) -> bytes:
    return _encode(int(domain.beacon, 16), domain.pool, domain.policy_version, int(domain.node, 16), domain.task)


def _encode(*words: int) -> bytes:
    """Encode integers as 32-byte words, as Solidity's abi.encode does."""
    return b"".join(word.to_bytes(32, "big") for word in words)


def _cut(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)
