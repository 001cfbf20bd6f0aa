import random

import pytest
from eth_utils.crypto import keccak

from covey.protocol.ids import ZERO_HASH, hash_from_bytes
from covey.protocol.merkle import REWARD_LEAF_TYPES, MerkleTree, compute_leaf, compute_reward_leaf, is_in_tree
from tests.vectors.npm import build_trees

ALICE, BOB = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"


def make_leaves(count, seed=0):
    rng = random.Random(seed)
    return [rng.randbytes(32) for _ in range(count)]


def pair(a, b):
    return keccak(a + b if a < b else b + a)


@pytest.mark.unit
@pytest.mark.parametrize("count", range(1, 34))
def test_proof__every_leaf_of_every_size__verifies_only_its_own_leaf(count):
    leaves = make_leaves(count)
    tree, stranger = MerkleTree(leaves), make_leaves(1, seed=99)[0]
    for leaf in leaves:
        proof = tree.get_proof(leaf)
        assert is_in_tree(tree.root, leaf, proof)
        assert not is_in_tree(tree.root, stranger, proof)
        assert not is_in_tree(ZERO_HASH, leaf, proof)
        if proof:
            assert not is_in_tree(tree.root, leaf, proof[:-1])
            assert not is_in_tree(tree.root, leaf, [*proof[:-1], ZERO_HASH])
    with pytest.raises(ValueError, match="is not in this Merkle tree"):
        tree.get_proof(stranger)


@pytest.mark.unit
def test_root__small_trees__by_hand():
    a, b, c = sorted(make_leaves(3))
    assert MerkleTree([]).root == ZERO_HASH
    assert MerkleTree([a]).root == hash_from_bytes(a)
    assert MerkleTree([a]).get_proof(a) == []
    assert MerkleTree([b, a]).root == hash_from_bytes(pair(a, b))
    # The nodes form a heap whose last entries are the sorted leaves, reversed. The first inner node joins the last two.
    assert MerkleTree([c, a, b]).root == hash_from_bytes(pair(c, pair(a, b)))


@pytest.mark.unit
def test_root__order_of_leaves__does_not_matter():
    leaves = make_leaves(9)
    assert MerkleTree(leaves).root == MerkleTree(leaves[::-1]).root


@pytest.mark.unit
def test_leaf__by_hand__is_the_double_hash_of_its_words():
    words = (31337).to_bytes(32, "big") + bytes(12) + bytes.fromhex(ALICE[2:]) + (1).to_bytes(32, "big")
    words += bytes(12) + bytes.fromhex(BOB[2:]) + (10**30).to_bytes(32, "big")
    leaf = compute_reward_leaf(chain=31337, ledger=ALICE, pool=1, contributor=BOB, cumulative=10**30)
    assert leaf == keccak(keccak(words))
    assert leaf == compute_leaf(REWARD_LEAF_TYPES, (31337, ALICE, 1, BOB, 10**30))


@pytest.mark.unit
def test_inner_node__offered_as_leaf__is_not_the_hash_of_any_value():
    """A leaf hashes at least 32 bytes twice, an inner node hashes 64 bytes once. No proof can be shortened."""
    leaves = [compute_leaf(["uint256", "uint256"], (i, i)) for i in range(4)]
    inner = pair(*sorted(leaves)[:2])
    words = b"".join(sorted(leaves)[:2])
    forged = compute_leaf(["bytes32", "bytes32"], (words[:32], words[32:]))
    assert forged != inner


@pytest.mark.integration
def test_tree__1_to_33_rows__equals_the_npm_package():
    rng = random.Random(7)
    addresses = (ALICE, BOB)
    sets = [
        [
            ("31337", ALICE, str(rng.randrange(1, 9)), rng.choice(addresses), str(rng.randrange(10**30)))
            for _ in range(n)
        ]
        for n in (*range(1, 34), 100)
    ]
    trees = build_trees(REWARD_LEAF_TYPES, sets)
    for rows, theirs in zip(sets, trees, strict=True):
        leaves = [compute_leaf(REWARD_LEAF_TYPES, (int(c), le, int(p), a, int(u))) for c, le, p, a, u in rows]
        tree = MerkleTree(leaves)
        assert tree.root == theirs["root"]
        assert [tree.get_proof(leaf) for leaf in leaves] == theirs["proofs"]
