"""Names of things as types: mypy refuses a group where a task is due.  Called by everybody."""

import re
from dataclasses import dataclass
from typing import NewType

PoolId = NewType("PoolId", int)
TaskId = NewType("TaskId", int)
LeaseId = NewType("LeaseId", int)
"""Fencing token of a lease: grows with every assignment of any task."""
GroupId = NewType("GroupId", int)
"""0 .. groups - 1 within a task."""
Step = NewType("Step", int)
Address = NewType("Address", str)
"""EIP-55 checksummed."""
Hash = NewType("Hash", str)
"""32 bytes as 0x and 64 lower-case hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RolloutId:
    """Which sibling of which group of which task.  Example: RolloutId(task=7, group=1, sibling=2) -> "7/1/2"."""

    task: TaskId
    group: GroupId
    sibling: int
    """0 .. group_size - 1; siblings share the prompt."""

    def __str__(self) -> str:
        return f"{self.task}/{self.group}/{self.sibling}"


def is_address(value: str) -> bool:
    """Whether `value` is an EIP-55 checksummed address."""
    # Late: a tenth of a second and 10 MB, and an engine or a learner, which take ids, see no address.
    from eth_utils.address import is_checksum_address

    return is_checksum_address(value)


def hash_from_bytes(digest: bytes) -> Hash:
    """32 bytes -> Hash; raise ValueError for another length."""
    if len(digest) != 32:
        raise ValueError(f"a hash has 32 bytes, not {len(digest)}")
    return Hash("0x" + digest.hex())


def is_hash(value: str) -> bool:
    """Whether `value` is a Hash."""
    return _HASH.fullmatch(value) is not None


def hash_to_bytes(value: str) -> bytes:
    """Hash -> 32 bytes; raise ValueError for anything else."""
    if not is_hash(value):
        raise ValueError("a hash is 0x and 64 lower-case hexadecimal digits")
    return bytes.fromhex(value[2:])


_HASH = re.compile("0x[0-9a-f]{64}")
ZERO_HASH = Hash("0x" + "00" * 32)
