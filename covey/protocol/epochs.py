"""Contents of an epoch: one leaf per countersigned submission, and the header, whose hash is on chain."""

from dataclasses import dataclass
from typing import ClassVar

from covey.protocol.abi_words import encode_word
from covey.protocol.eip712 import compute_struct_hash
from covey.protocol.ids import Address, Hash, PoolId, Step, TaskId
from covey.protocol.merkle import hash_leaf

_LEAF_TYPES = [
    *("bytes32", "bytes32", "address", "address", "uint256", "uint64"),
    *("uint64", "uint8", "uint8", "uint64", "bytes32"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLeaf:
    """Leaf for one settled submission. Rejected and void submissions have a leaf too."""

    receipt_hash: Hash
    work_key: Hash
    node: Address
    contributor: Address
    task: TaskId
    policy_version: Step
    signed_at: int
    """Time of the countersignature in Unix seconds. The first block at least `draw_seconds` later is the drawing
    block.
    """
    outcome: int
    reason: int
    units: int
    evidence_hash: Hash

    def compute_hash(self) -> bytes:
        """Return the 32-byte hash of the leaf: keccak256 applied twice to its ABI encoding.

        Raises ValueError if a field does not fit its type.
        """
        words = []
        for kind, name in zip(_LEAF_TYPES, self.__slots__, strict=True):
            value = getattr(self, name)
            if (word := encode_word(kind, value)) is None:
                raise ValueError(f"the field {name} is {value!r}, which is not a valid {kind}")
            words.append(word)
        return hash_leaf(b"".join(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochHeader:
    """Header of an epoch. In the first epoch, `previous_hash` is zero.

    Validators sign it as an EIP-712 message in the domain of EpochLedger.
    """

    TYPES: ClassVar[dict[str, str]] = {
        "pool": "uint256",
        "epoch": "uint64",
        "work_root": "bytes32",
        "reward_root": "bytes32",
        "leaf_count": "uint64",
        "units": "uint64",
        "verdicts": "uint32",
        "data_hash": "bytes32",
        "previous_hash": "bytes32",
    }
    pool: PoolId
    epoch: int
    work_root: Hash
    reward_root: Hash
    leaf_count: int
    units: int
    verdicts: int = 0
    """Number of verdicts for which the epoch pays the pool's fee."""
    data_hash: Hash
    previous_hash: Hash

    def compute_hash(self) -> Hash:
        """Return the EIP-712 struct hash, by which the next header and the ledger refer to this one.

        Raises ProtocolError("bad_message") if a field does not fit its type.
        """
        return compute_struct_hash(self)
