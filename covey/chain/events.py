"""Chain logs become frozen dataclasses here and nowhere else; named as the Solidity events.

Called by `covey.chain.follower`; read by the roles' handlers (`HANDLERS[type(event)]`).
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from covey.chain import codec
from covey.chain.client import Log
from covey.protocol.ids import Address, Hash, PoolId, Step, TaskId, hash_to_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Where an event stands in the chain."""

    block_number: int
    block_hash: Hash
    transaction_hash: Hash
    log_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolCreated(Event):
    pool: PoolId
    operator: Address
    params_hash: Hash
    params: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolFunded(Event):
    pool: PoolId
    funder: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolStarted(Event):
    pool: PoolId


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolEnded(Event):
    pool: PoolId


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRefunded(Event):
    pool: PoolId
    operator: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidatorReplaced(Event):
    pool: PoolId
    previous: Address
    current: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRegistered(Event):
    pool: PoolId
    node: Address
    contributor: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRemoved(Event):
    pool: PoolId
    node: Address
    contributor: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class Staked(Event):
    pool: PoolId
    account: Address
    kind: int
    """A BondKind."""
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StakeUnbonded(Event):
    pool: PoolId
    account: Address
    kind: int
    amount: int
    available_at: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StakeWithdrawn(Event):
    pool: PoolId
    account: Address
    kind: int
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StakeLocked(Event):
    case_id: int
    pool: PoolId
    account: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StakeReleased(Event):
    case_id: int
    pool: PoolId
    account: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StakeSlashed(Event):
    pool: PoolId
    account: Address
    kind: int
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BondPaid(Event):
    pool: PoolId
    operator: Address
    recipient: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyPublished(Event):
    pool: PoolId
    step: Step
    manifest_hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochPosted(Event):
    pool: PoolId
    epoch: int
    header_hash: Hash
    work_root: Hash
    reward_root: Hash
    leaf_count: int
    units: int
    data_hash: Hash
    previous_hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochDisabled(Event):
    pool: PoolId
    epoch: int
    header_hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardClaimed(Event):
    pool: PoolId
    epoch: int
    contributor: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OmissionChallenged(Event):
    challenge_id: int
    pool: PoolId
    contributor: Address
    receipt_hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class OmissionAnswered(Event):
    challenge_id: int
    pool: PoolId
    epoch: int
    answerer: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class OmissionUpheld(Event):
    challenge_id: int
    pool: PoolId
    contributor: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOpened(Event):
    case_id: int
    pool: PoolId
    node: Address
    contributor: Address
    receipt_hash: Hash
    reason: int
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseVetoed(Event):
    case_id: int
    pool: PoolId
    node: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseExecuted(Event):
    case_id: int
    pool: PoolId
    node: Address
    contributor: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseLapsed(Event):
    case_id: int
    pool: PoolId
    node: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class EquivocationSlashed(Event):
    pool: PoolId
    node: Address
    contributor: Address
    task: TaskId
    lease: int
    amount: int


PoolEvent = PoolCreated | PoolFunded | PoolStarted | PoolEnded | PoolRefunded | ValidatorReplaced
NodeEvent = NodeRegistered | NodeRemoved
StakeEvent = Staked | StakeUnbonded | StakeWithdrawn | StakeLocked | StakeReleased | StakeSlashed | BondPaid
LedgerEvent = EpochPosted | EpochDisabled | RewardClaimed | OmissionChallenged | OmissionAnswered | OmissionUpheld
CourtEvent = CaseOpened | CaseVetoed | CaseExecuted | CaseLapsed | EquivocationSlashed
AnyEvent = PoolEvent | NodeEvent | StakeEvent | PolicyPublished | LedgerEvent | CourtEvent


def decode(log: Log) -> AnyEvent | None:
    """The event that a log of one of our contracts holds; None for one that is not ours (role administration)."""
    if not log.topics:
        return None
    found = _decoders().get(log.topics[0])
    if found is None:
        return None
    item, kind = found
    indexed = [param for param in item.inputs if param.is_indexed]
    plain = [param for param in item.inputs if not param.is_indexed]
    words = b"".join(hash_to_bytes(topic) for topic in log.topics[1:])
    values: dict[str, Any] = {}
    for params, data in ((indexed, words), (plain, log.data)):
        for param, value in zip(params, codec.decode_values(params, data), strict=True):
            values[codec.to_snake(param.name)] = value
    return kind(
        block_number=log.block_number,
        block_hash=log.block_hash,
        transaction_hash=log.transaction_hash,
        log_index=log.log_index,
        **values,
    )


@cache
def _decoders() -> dict[Hash, tuple[codec.Item, type[AnyEvent]]]:
    kinds = {kind.__name__: kind for kind in get_args(AnyEvent)}
    items = [item for name in codec.CONTRACT_NAMES for item in codec.load_artifact(name).events]
    return {Hash("0x" + item.digest.hex()): (item, kinds[item.name]) for item in items if item.name in kinds}
