"""The EIP-712 messages. Everything that the chain may have to verify is signed as one of them.

Each message is a frozen dataclass with the fields of the Solidity type, in order (camelCase on chain).
`covey.protocol.eip712` signs messages and recovers their signers.
"""

from dataclasses import dataclass
from typing import ClassVar

from eth_utils.crypto import keccak

from covey.protocol.ids import Address, Hash, LeaseId, PoolId, Step, TaskId, hash_from_bytes, hash_to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistration:
    """Statement that a contributor vouches for a node, with the node's consent. NodeRegistry verifies it."""

    TYPES: ClassVar[dict[str, str]] = {
        "pool": "uint256",
        "contributor": "address",
        "node": "address",
        "nonce": "uint256",
        "deadline": "uint256",
    }
    pool: PoolId
    contributor: Address
    node: Address
    nonce: int
    deadline: int
    """Time in Unix seconds after which the registration is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A node's claim that it delivered the groups of a task. SlashingCourt verifies it."""

    TYPES: ClassVar[dict[str, str]] = {
        "pool": "uint256",
        "task": "uint256",
        "lease": "uint256",
        "node": "address",
        "contributor": "address",
        "policy_version": "uint64",
        "work_key": "bytes32",
        "groups": "uint32",
        "units": "uint64",
        "deadline": "uint64",
    }
    pool: PoolId
    task: TaskId
    lease: LeaseId
    node: Address
    contributor: Address
    policy_version: Step
    work_key: Hash
    groups: int
    units: int
    deadline: int
    """Time in Unix seconds after which the receipt is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Countersignature:
    """The operator's promise to settle a receipt by a time. EpochLedger verifies it."""

    TYPES: ClassVar[dict[str, str]] = {"receipt_hash": "bytes32", "signed_at": "uint64", "due_by": "uint64"}
    receipt_hash: Hash
    signed_at: int
    """Time of signing in Unix seconds.

    The drawing block is the first block that is at least the pool's `draw_seconds` later.
    """
    due_by: int
    """Time in Unix seconds until which the receipt must be in a posted epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A validator's signed judgement. SlashingCourt verifies it."""

    TYPES: ClassVar[dict[str, str]] = {
        "pool": "uint256",
        "receipt_hash": "bytes32",
        "work_key": "bytes32",
        "validator": "address",
        "outcome": "uint8",
        "reason": "uint8",
        "severity": "uint8",
        "units": "uint64",
        "evidence_hash": "bytes32",
        "deadline": "uint64",
    }
    pool: PoolId
    receipt_hash: Hash
    work_key: Hash
    validator: Address
    outcome: int
    reason: int
    severity: int
    units: int
    evidence_hash: Hash
    deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryConsent:
    """A contributor's consent that work of its node is void, as a canary. It is shown with the opened canary.

    No contract verifies it: whoever finds void work without it has the operator's fault in hand.
    """

    TYPES: ClassVar[dict[str, str]] = {"pool": "uint256", "node": "address", "kind": "uint8"}
    pool: PoolId
    node: Address
    kind: int
    """A `covey.protocol.canaries.CanaryKind`, 1 or 2."""


def compute_commitment(verdict_digest: Hash, salt: Hash) -> Hash:
    """Return keccak256(EIP-712 digest of a verdict, salt).

    A validator publishes this commitment before it can see any other verdict on the submission.
    """
    return hash_from_bytes(keccak(hash_to_bytes(verdict_digest) + hash_to_bytes(salt)))
