"""The file of an epoch: its leaves, the paid verdicts and everybody's total reward.

From it, anyone computes both roots again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic_core import from_json

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.abi_words import encode_word
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import Address, Hash, PoolId
from covey.protocol.merkle import MerkleTree, build_reward_tree
from covey.protocol.prices import compute_reward
from covey.protocol.verdict_fees import VerdictFees, find_false_count

_MALFORMED = (AttributeError, KeyError, TypeError, ValueError, RecursionError, ProtocolError)
"""Errors of a file whose values have other types than they should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFile:
    """Content of an epoch's file."""

    pool: PoolId
    epoch: int
    previous_hash: Hash
    leaves: Sequence[WorkLeaf]
    rewards: Mapping[Address, int]
    """Total reward of each account by the end of the epoch, in the token's smallest unit. It includes fees."""
    verdicts: Mapping[Address, int] = field(default_factory=dict)
    """Number of verdicts of each validator for which the epoch pays the pool's fee."""

    def to_bytes(self) -> bytes:
        """Return the file, whose hash is `data_hash` in the header. Without paid verdicts, it has no field for them."""
        return canonical.to_bytes(
            {
                "epoch": self.epoch,
                "pool": self.pool,
                "previous_hash": self.previous_hash,
                "leaves": [{name: getattr(leaf, name) for name in WorkLeaf.__slots__} for leaf in self.leaves],
                "rewards": {account: str(amount) for account, amount in self.rewards.items()},
                **({"verdicts": dict(self.verdicts)} if self.verdicts else {}),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, header: EpochHeader) -> "EpochFile":
        """Read the file of a header, which proves every field of the header but `reward_root`.

        Raises ProtocolError("digest_mismatch") if the file's hash is not that of the header, and
        ProtocolError("bad_epoch") if it is malformed, or contradicts the header.
        """
        if canonical.sha256(data) != header.data_hash:
            raise ProtocolError(
                "digest_mismatch", f"the file of epoch {header.epoch} does not have the hash that is on chain"
            )
        try:
            file = cls._parse(data)
            work_root = MerkleTree([leaf.compute_hash() for leaf in file.leaves]).root
        except _MALFORMED as error:
            raise _build_bad(header.epoch, "contains malformed leaves, rewards or verdicts") from error
        if file._has_doubles():
            raise _build_bad(header.epoch, "has two leaves of one receipt")
        if work_root != header.work_root:
            raise _build_bad(header.epoch, "has leaves with another Merkle root than the one that is on chain")
        units = sum(leaf.units for leaf in file.leaves)
        said = (file.pool, file.epoch, file.previous_hash, len(file.leaves), units)
        if said != (header.pool, header.epoch, header.previous_hash, header.leaf_count, header.units):
            raise _build_bad(header.epoch, f"says {said}, which contradicts its header")
        verdicts = sum(file.verdicts.values())
        if verdicts != header.verdicts:
            raise _build_bad(header.epoch, f"counts {verdicts} verdicts, but its header says {header.verdicts}")
        return file

    @classmethod
    def from_unposted(cls, data: bytes, *, chain: int, ledger: Address) -> tuple["EpochFile", EpochHeader]:
        """Read a file that no header is known of, and build its header.

        Raises ProtocolError("bad_epoch") if it is malformed, or is not in the form in which `to_bytes` writes it.
        """
        try:
            file = cls._parse(data)
            header = file.build_header(chain=chain, ledger=ledger)
            is_canonical = file.to_bytes() == data
        except _MALFORMED as error:
            raise ProtocolError("bad_epoch", "the file of an epoch contains malformed values") from error
        if not is_canonical:
            raise _build_bad(file.epoch, "is not written in the canonical form")
        if file._has_doubles():
            raise _build_bad(file.epoch, "has two leaves of one receipt")
        return file, header

    def build_header(self, *, chain: int, ledger: Address) -> EpochHeader:
        """Return the header that posts the epoch."""
        header = EpochHeader(
            pool=self.pool,
            epoch=self.epoch,
            work_root=MerkleTree([leaf.compute_hash() for leaf in self.leaves]).root,
            reward_root=self.build_reward_tree(chain=chain, ledger=ledger).root,
            leaf_count=len(self.leaves),
            units=sum(leaf.units for leaf in self.leaves),
            verdicts=sum(self.verdicts.values()),
            data_hash=canonical.sha256(self.to_bytes()),
            previous_hash=self.previous_hash,
        )
        header.compute_hash()  # Raises if a field does not fit its type.
        return header

    @classmethod
    def _parse(cls, data: bytes) -> "EpochFile":
        values = from_json(data)
        return cls(
            pool=PoolId(values["pool"]),
            epoch=values["epoch"],
            previous_hash=Hash(values["previous_hash"]),
            leaves=[WorkLeaf(**{name: leaf[name] for name in WorkLeaf.__slots__}) for leaf in values["leaves"]],
            rewards=dict(_read_reward(*item) for item in values["rewards"].items()),
            verdicts=dict(_read_count(*item) for item in values.get("verdicts", {}).items()),
        )

    def _has_doubles(self) -> bool:
        return len({leaf.receipt_hash for leaf in self.leaves}) != len(self.leaves)

    def build_reward_tree(self, *, chain: int, ledger: Address) -> MerkleTree:
        """Return the Merkle tree of all total rewards, whose root is in the header."""
        return build_reward_tree(self.rewards, chain=chain, ledger=ledger, pool=self.pool)


def require_rewards(
    file: EpochFile,
    header: EpochHeader,
    *,
    before: Mapping[Address, int] | None,
    reward_per_million: int,
    fees: VerdictFees,
    validators: Iterable[Address],
    chain: int,
    ledger: Address,
) -> None:
    """Raise ProtocolError("false_rewards") unless the rewards follow from leaves and verdicts, and have the root.

    `before` are the total rewards by the end of the newest earlier epoch that stands; empty before the first one. If
    they are not known (None), the sums are not checked. `validators` are all that the pool has ever named.
    """
    wrong = find_false_count(file.verdicts, (leaf.outcome for leaf in file.leaves), fees, validators=validators)
    if wrong:
        raise ProtocolError("false_rewards", f"epoch {file.epoch} has false fees: {wrong}")
    if before is not None:
        _require_sums(file, before, reward_per_million, fees)
    if file.build_reward_tree(chain=chain, ledger=ledger).root != header.reward_root:
        raise ProtocolError(
            "false_rewards", f"the rewards of epoch {file.epoch} have another Merkle root than the one that is on chain"
        )


def _require_sums(file: EpochFile, before: Mapping[Address, int], reward_per_million: int, fees: VerdictFees) -> None:
    expected = Counter(before)
    for account, verdicts in file.verdicts.items():
        expected[account] += fees.compute_total(verdicts)
    for account, units in sum_units(file.leaves).items():
        expected[account] += compute_reward(units, reward_per_million)
    wrong = {account for account in {*expected, *file.rewards} if expected[account] != file.rewards.get(account, 0)}
    if wrong:
        account = min(wrong)
        raise ProtocolError(
            "false_rewards",
            f"epoch {file.epoch} says that {account} has earned {file.rewards.get(account, 0)}, but its work and its "
            f"verdicts make {expected[account]}; {len(wrong)} accounts differ",
        )


def sum_units(leaves: Sequence[WorkLeaf]) -> Counter[Address]:
    """Return the paid units of each contributor."""
    units: Counter[Address] = Counter()
    for leaf in leaves:
        units[leaf.contributor] += leaf.units
    return units


def _read_reward(account: str, amount: str) -> tuple[Address, int]:
    value = int(amount) if isinstance(amount, str) else 0
    if encode_word("address", account) is None or encode_word("uint256", value) is None or not value:
        raise ValueError(f"{account!r} and {amount!r} are not a checksummed address and a positive amount")
    return Address(account), value


def _read_count(account: str, count: object) -> tuple[Address, int]:
    is_address = encode_word("address", account) is not None
    if not is_address or not isinstance(count, int) or encode_word("uint32", count) is None or not count:
        raise ValueError(f"{account!r} and {count!r} are not a checksummed address and a positive number")
    return Address(account), count


def _build_bad(epoch: int, what: str) -> ProtocolError:
    return ProtocolError("bad_epoch", f"the file of epoch {epoch} {what}")
