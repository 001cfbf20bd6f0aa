"""Merkle trees as in OpenZeppelin's merkle-tree: leaves are hashed twice and sorted.

The two hashes of a pair are sorted before they are hashed. The contract library MerkleProof.sol verifies the
proofs.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from eth_abi.abi import encode
from eth_hash.auto import keccak  # That of eth_utils converts its input first, which takes a third of the time.

from covey.protocol.ids import ZERO_HASH, Address, Hash, PoolId, hash_from_bytes, hash_to_bytes

REWARD_LEAF_TYPES = ("uint256", "address", "uint256", "address", "uint256")


def compute_leaf(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """Return keccak(keccak(abi.encode(values))). The double hash distinguishes leaves from inner nodes."""
    return hash_leaf(encode(list(types), list(values)))


def hash_leaf(encoded: bytes) -> bytes:
    """Return the leaf of values that are encoded already."""
    return keccak(keccak(encoded))


def compute_reward_leaf(*, chain: int, ledger: Address, pool: PoolId, contributor: Address, cumulative: int) -> bytes:
    """Return the leaf hash for a contributor's reward.

    `cumulative` is what the contributor has earned in the pool since the start, in the token's smallest unit.
    """
    return compute_leaf(REWARD_LEAF_TYPES, (chain, ledger, pool, contributor, cumulative))


class MerkleTree:
    """A tree over 32-byte leaves. Example: `MerkleTree([a, b]).root`."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._leaves = sorted(leaves)
        count = len(self._leaves)
        self._nodes: list[bytes] = [b""] * max(0, count - 1) + self._leaves[::-1]
        for i in range(count - 2, -1, -1):
            self._nodes[i] = _hash_pair(self._nodes[2 * i + 1], self._nodes[2 * i + 2])

    @property
    def root(self) -> Hash:
        """Root hash of the tree. Zero if there are no leaves."""
        return hash_from_bytes(self._nodes[0]) if self._nodes else ZERO_HASH

    def get_proof(self, leaf: bytes) -> list[Hash]:
        """Return the sibling hashes from the leaf to the root. Raises ValueError if the leaf is not in the tree."""
        index = bisect_left(self._leaves, leaf)
        if self._leaves[index : index + 1] != [leaf]:
            raise ValueError(f"the leaf 0x{leaf.hex()} is not in this Merkle tree")
        i = len(self._nodes) - 1 - index
        proof = []
        while i > 0:
            proof.append(hash_from_bytes(self._nodes[i + 1 if i % 2 else i - 1]))
            i = (i - 1) // 2
        return proof


def build_reward_tree(rewards: Mapping[Address, int], *, chain: int, ledger: Address, pool: PoolId) -> MerkleTree:
    """Return the tree of everybody's total reward in a pool, whose root is on chain."""
    return MerkleTree(
        [
            compute_reward_leaf(chain=chain, ledger=ledger, pool=pool, contributor=account, cumulative=amount)
            for account, amount in rewards.items()
        ]
    )


def is_in_tree(root: Hash, leaf: bytes, proof: Sequence[Hash]) -> bool:
    """Return whether `proof` shows that `leaf` belongs to the tree with root `root`."""
    node = leaf
    for sibling in proof:
        node = _hash_pair(node, hash_to_bytes(sibling))
    return hash_from_bytes(node) == root


def _hash_pair(a: bytes, b: bytes) -> bytes:
    return keccak(a + b if a < b else b + a)
