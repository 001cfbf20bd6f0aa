"""Decodes chain logs to frozen dataclasses with the names of the Solidity events.

Roles look up their handlers by type: `HANDLERS[type(event)]`.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from covey.chain import abi_codec
from covey.chain.node_answers import Log
from covey.chain.structs import EpochRecord
from covey.errors import TransientError
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Address, Hash, PoolId, Step, TaskId, hash_to_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Base of all events: an event's position in the chain."""

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
    closes_at: int
    """Unix time in seconds from which escrow can be refunded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolAnnounced(Event):
    pool: PoolId
    url: str
    """Base URL of the coordinator, as the operator wrote it. Empty if the pool is served nowhere."""
    metadata_hash: Hash
    """SHA-256 of the description that the coordinator serves. ZERO_HASH if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRefunded(Event):
    pool: PoolId
    recipient: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleProposed(Event):
    pool: PoolId
    role: int
    """The role; see `PoolRole`."""
    account: Address
    start: int
    """Unix time in seconds from which the account holds the role. In the past if a proposal was cancelled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceSet(Event):
    pool: PoolId
    reward_per_million: int
    start: int
    """Unix time in seconds from which epochs that begin have the price. In the past if a change was cancelled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeirSet(Event):
    pool: PoolId
    heir: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidatorReplaced(Event):
    pool: PoolId
    previous: Address
    current: Address
    active_from: int
    """Unix time in seconds from which the new validator's verdicts count."""


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
class ContributorInvited(Event):
    pool: PoolId
    contributor: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class InvitationWithdrawn(Event):
    pool: PoolId
    contributor: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class Staked(Event):
    pool: PoolId
    account: Address
    kind: int
    """Kind of the bond; see `BondKind`."""
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StakeUnbonded(Event):
    pool: PoolId
    account: Address
    kind: int
    amount: int
    available_at: int
    """Unix time in seconds from which the stake can be withdrawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StakeWithdrawn(Event):
    pool: PoolId
    account: Address
    kind: int
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
    record_hash: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochPosted(Event):
    pool: PoolId
    epoch: int
    header: EpochHeader
    final_at: int
    reward: int
    cumulative: int

    @property
    def record(self) -> EpochRecord:
        """Record of the epoch, which the event contains the end of."""
        return EpochRecord.of(self.header, self.final_at, self.reward, self.cumulative)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochDisabled(Event):
    pool: PoolId
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardClaimed(Event):
    pool: PoolId
    epoch: int
    contributor: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PayeeSet(Event):
    pool: PoolId
    contributor: Address
    payee: Address
    """Account that receives the contributor's rewards. The zero address stands for the contributor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaymentCredited(Event):
    pool: PoolId
    account: Address
    amount: int
    """Amount that the token refused to pay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CreditWithdrawn(Event):
    pool: PoolId
    account: Address
    recipient: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OmissionChallenged(Event):
    pool: PoolId
    receipt_hash: Hash
    contributor: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class OmissionAnswered(Event):
    pool: PoolId
    receipt_hash: Hash
    epoch: int
    answerer: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class OmissionUpheld(Event):
    pool: PoolId
    receipt_hash: Hash
    contributor: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OmissionNetted(Event):
    pool: PoolId
    receipt_hash: Hash
    contributor: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EtherWithdrawn(Event):
    challenger: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOpened(Event):
    receipt_hash: Hash
    pool: PoolId
    node: Address
    contributor: Address
    reason: int
    amount: int
    veto_until: int
    """Unix time in seconds until which the case can be vetoed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseVetoed(Event):
    receipt_hash: Hash
    pool: PoolId
    node: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseExecuted(Event):
    receipt_hash: Hash
    pool: PoolId
    node: Address
    contributor: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseLapsed(Event):
    receipt_hash: Hash
    pool: PoolId
    node: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class SignerSlashed(Event):
    receipt_hash: Hash
    pool: PoolId
    validator: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FalseAcceptSlashed(Event):
    receipt_hash: Hash
    pool: PoolId
    validator: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AttesterSlashed(Event):
    header_hash: Hash
    pool: PoolId
    validator: Address
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EquivocationSlashed(Event):
    pool: PoolId
    node: Address
    contributor: Address
    task: TaskId
    lease: int
    amount: int


PoolEvent = (
    PoolCreated | PoolStarted | PoolEnded | PoolAnnounced | ValidatorReplaced | RoleProposed | PriceSet | HeirSet
)
NodeEvent = NodeRegistered | NodeRemoved | ContributorInvited | InvitationWithdrawn
StakeEvent = Staked | StakeUnbonded | StakeWithdrawn | StakeSlashed | BondPaid
EscrowEvent = PoolFunded | PoolRefunded | EpochPosted | EpochDisabled | RewardClaimed | PayeeSet
PaymentEvent = PaymentCredited | CreditWithdrawn
OmissionEvent = OmissionChallenged | OmissionAnswered | OmissionUpheld | OmissionNetted
LedgerEvent = EscrowEvent | OmissionEvent | EtherWithdrawn
PenaltyEvent = SignerSlashed | FalseAcceptSlashed | AttesterSlashed | EquivocationSlashed
CourtEvent = CaseOpened | CaseVetoed | CaseExecuted | CaseLapsed | PenaltyEvent
AnyEvent = PoolEvent | NodeEvent | StakeEvent | PolicyPublished | LedgerEvent | PaymentEvent | CourtEvent


def decode(log: Log) -> AnyEvent | None:
    """Decode a log of one of Covey's contracts.

    Returns None for events that Covey does not use, such as role changes. Raises TransientError("bad_answer") if
    the log does not have the event's values, because the node has then changed it.
    """
    decoder = _decoders().get(log.topics[0]) if log.topics else None
    if decoder is None:
        return None
    item, kind = decoder
    try:
        values = _decode_values(item, log)
    except ValueError as error:
        message = f"the chain node's log {log.log_index} of transaction {log.transaction_hash} is not a {item.name}"
        raise TransientError("bad_answer", message) from error
    return kind(
        block_number=log.block_number,
        block_hash=log.block_hash,
        transaction_hash=log.transaction_hash,
        log_index=log.log_index,
        **values,
    )


def _decode_values(item: abi_codec.Item, log: Log) -> dict[str, Any]:
    indexed = [param for param in item.inputs if param.is_indexed]
    plain = [param for param in item.inputs if not param.is_indexed]
    words = b"".join(hash_to_bytes(topic) for topic in log.topics[1:])
    values: dict[str, Any] = {}
    for params, data in ((indexed, words), (plain, log.data)):
        for param, value in zip(params, abi_codec.decode_values(params, data), strict=True):
            values[abi_codec.to_snake(param.name)] = value
    if "header" in values:
        values["header"] = EpochHeader(**dict(zip(EpochHeader.TYPES, values["header"], strict=True)))
    return values


def get_topic(kind: type["Event"]) -> Hash:
    """Return the first topic of an event's logs: the hash of its signature in the ABI."""
    return next(topic for topic, (_, known) in _decoders().items() if known is kind)


@cache
def _decoders() -> dict[Hash, tuple[abi_codec.Item, type[AnyEvent]]]:
    kinds = {kind.__name__: kind for kind in get_args(AnyEvent)}
    items = [item for name in abi_codec.CONTRACT_NAMES for item in abi_codec.load_artifact(name).events]
    return {Hash("0x" + item.digest.hex()): (item, kinds[item.name]) for item in items if item.name in kinds}
