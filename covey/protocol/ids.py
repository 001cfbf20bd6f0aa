"""Identifiers as distinct types, so that mypy rejects, for example, a group id where a task id is required."""

import re
from dataclasses import dataclass
from typing import NewType

PoolId = NewType("PoolId", int)
TaskId = NewType("TaskId", int)
LeaseId = NewType("LeaseId", int)
"""Fencing token of a lease. Every new lease, of any task, gets a larger one."""
GroupId = NewType("GroupId", int)
"""Index of a group within a task, from 0 to groups - 1."""
Step = NewType("Step", int)
"""Number of a training step. It is also the version of the step's policy."""
Address = NewType("Address", str)
"""EIP-55 checksummed address, as a string."""
Hash = NewType("Hash", str)
"""32-byte hash as a string: 0x and 64 lower-case hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RolloutId:
    """Task, group and sibling of one rollout. Example: str(RolloutId(task=7, group=1, sibling=2)) is "7/1/2"."""

    task: TaskId
    group: GroupId
    sibling: int
    """Index of the rollout within its group, from 0 to group_size - 1. All siblings have the same prompt."""

    def __str__(self) -> str:
        return f"{self.task}/{self.group}/{self.sibling}"


def is_address(value: str) -> bool:
    """Return whether `value` is an EIP-55 checksummed address."""
    # Imported here because the import costs time and memory, which engines and learners never need: they use ids only.
    from eth_utils.address import is_checksum_address

    return is_checksum_address(value)


def hash_from_bytes(digest: bytes) -> Hash:
    """Return 32 bytes as a Hash. Raises ValueError for any other length."""
    if len(digest) != 32:
        raise ValueError(f"a hash has {len(digest)} bytes instead of 32")
    return Hash("0x" + digest.hex())


def is_hash(value: str) -> bool:
    """Return whether `value` is 0x and 64 lower-case hexadecimal digits."""
    return _HASH.fullmatch(value) is not None


def hash_to_bytes(value: str) -> bytes:
    """Convert a Hash to its 32 bytes. Raises ValueError for any other string."""
    if not is_hash(value):
        raise ValueError("the hash does not consist of 0x and 64 lower-case hexadecimal digits")
    return bytes.fromhex(value[2:])


_HASH = re.compile("0x[0-9a-f]{64}")
ZERO_HASH = Hash("0x" + "00" * 32)
ZERO_ADDRESS = Address("0x" + "00" * 20)
