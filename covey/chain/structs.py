"""What the contracts keep, as values; named as in Solidity.  Returned and taken by `covey.chain.contracts`."""

from dataclasses import dataclass
from enum import IntEnum

from covey.protocol.ids import Address, Hash, PoolId


class PoolState(IntEnum):
    """Where a pool stands in its life; NONE means that there is no such pool."""

    NONE = 0
    CREATED = 1
    ACTIVE = 2
    ENDED = 3


class BondKind(IntEnum):
    """Whose bond it is."""

    CONTRIBUTOR = 0
    VALIDATOR = 1
    OPERATOR = 2


class CaseState(IntEnum):
    """Where a slashing case stands."""

    NONE = 0
    LOCKED = 1
    VETOED = 2
    SLASHED = 3
    LAPSED = 4

    @property
    def is_terminal(self) -> bool:
        return self in (CaseState.VETOED, CaseState.SLASHED, CaseState.LAPSED)


class ChallengeState(IntEnum):
    """Where an omission challenge stands."""

    NONE = 0
    OPEN = 1
    ANSWERED = 2
    UPHELD = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolTerms:
    """The parameters of a pool that contracts need.  Amounts in the token's smallest unit, windows in seconds."""

    trainer: Address
    arbiter: Address
    token: Address
    params_hash: Hash
    reward_per_unit: int
    min_stake: int
    slash_amount: int
    quorum: int
    challenge_window: int
    veto_window: int
    unbond_window: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbonding:
    """Stake on its way out."""

    amount: int
    available_at: int
    """Unix seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """Stake that backs an open case; `expires_at` is 0 where there is no lock."""

    pool: PoolId
    account: Address
    amount: int
    expires_at: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PostedEpoch:
    """What is stored of an epoch."""

    header_hash: Hash
    reward_root: Hash
    posted_at: int
    units: int
    cumulative_units: int
    is_disabled: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A slashing case.  Times in Unix seconds."""

    pool: PoolId
    node: Address
    contributor: Address
    receipt_hash: Hash
    reason: int
    state: CaseState
    veto_until: int
    expires_at: int
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge:
    """An omission challenge."""

    pool: PoolId
    challenger: Address
    contributor: Address
    answer_by: int
    """Unix seconds."""
    state: ChallengeState
    answered_by: int
    """The epoch that answered."""
    amount: int
    identity: Hash
