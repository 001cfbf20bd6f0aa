"""What the contracts keep, as values; named as in Solidity.  Returned and taken by `covey.chain.contracts`."""

from dataclasses import dataclass
from enum import IntEnum

from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import Address, Hash, PoolId
from covey.protocol.messages import Receipt


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


class OnChainCaseState(IntEnum):
    """Where a slashing case stands."""

    NONE = 0
    LOCKED = 1
    VETOED = 2
    SLASHED = 3
    LAPSED = 4

    @property
    def is_terminal(self) -> bool:
        return self in (OnChainCaseState.VETOED, OnChainCaseState.SLASHED, OnChainCaseState.LAPSED)


class ChallengeState(IntEnum):
    """Where an omission challenge stands."""

    NONE = 0
    OPEN = 1
    ANSWERED = 2
    UPHELD = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolTerms:
    """The parameters of a pool that contracts need, in their order; what each means stands in IPoolRegistry.sol.

    Amounts in the token's smallest unit, windows in seconds.
    """

    reward_per_unit: int
    """Reward of one completion token of accepted work, in the token's smallest unit."""
    epoch_units: int = 10**9
    """Completion tokens that one epoch may post at most; it bounds what a stolen operator's key can promise."""
    challenge_window: int
    """Seconds after an epoch's posting within which it can be disabled and omissions can be answered."""
    veto_window: int
    """Seconds within which the arbiter can veto a slashing case."""
    unbond_window: int
    """Seconds from unbonding stake to its withdrawal; at least `challenge_window` + `veto_window`."""
    epoch_length: int = 1
    """Least seconds between two epochs: from (`challenge_window` + `veto_window`) / 64 to `challenge_window` / 2. A
    pool file without it gets `epoch_seconds`, within these bounds."""
    slash_amount: int
    """Largest stake that one case takes, in the token's smallest unit; at most `min_stake`."""
    validator_bond: int = 0
    """Stake that a validator must have bonded for its verdicts to count in court."""
    max_slashes: int = 4
    """Largest number of `slash_amount`s that may be locked of one contributor's stake within `unbond_window`."""
    light_slash_bps: int = 10_000
    """Part of `slash_amount`, in 1/10,000, that a contributor's first `strikes` light cases take."""
    strikes: int = 0
    """Number of a contributor's first light cases that take only `light_slash_bps`."""
    quorum: int
    """Validators that must agree. A pool file states it in [params]."""
    is_invite_only: bool = False
    """Whether contributors need an invitation by the operator to register nodes."""
    arbiter: Address
    """Address that vetoes slashing cases, disables epochs and may end the pool. It is neither operator nor
    validator."""
    signer_penalty: int = 0
    """Bond that each validator loses that signed a vetoed case; at most `validator_bond`."""
    token: Address
    """Address of the ERC-20 token of stake and reward. A pool file without it gets the deployment's token."""
    min_stake: int
    """Stake that a contributor must have bonded before the coordinator gives its nodes work."""
    trainer: Address
    """Address of the key that publishes policies."""
    params_hash: Hash
    """keccak256 of the parameters' canonical text. `covey pool create` computes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbonding:
    """Stake on its way out."""

    amount: int
    available_at: int
    """Unix seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """What one account has in one pool as one kind of bond."""

    bonded: int
    leaving: int
    """The sum of all unbondings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exposure:
    """What cases hold and have held of a contributor's stake."""

    locked: int
    taken: int
    """What cases locked in the span `taken_in`, without those that were overturned or lapsed."""
    taken_in: int
    strikes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """What is settled of a pool."""

    posted: int
    """Reward of all epochs that stand."""
    funded: int
    """Tokens paid in, less what was refunded."""
    epochs: int
    last_posted_at: int
    """Unix seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """An epoch as EpochPosted tells it; whoever claims or answers hands it in, for only its hash is stored."""

    header_hash: Hash
    reward_root: Hash
    epoch: int
    final_at: int
    """Unix seconds, from when it can be claimed against."""
    reward: int
    """Of this epoch alone."""
    cumulative: int
    """Of this epoch and of all before it that stand."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accusation:
    """Who is accused of what: names a case, whose id is the receipt's hash."""

    receipt_hash: Hash
    pool: PoolId
    node: Address
    contributor: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A slashing case.  `veto_until` in Unix seconds; it may be executed for a day after that."""

    amount: int
    veto_until: int
    state: OnChainCaseState
    reason: int
    span: int
    """The span of the unbonding window whose cap `amount` counts against."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inclusion:
    """Where a challenged receipt stands in the work tree of an epoch: what answers its challenge."""

    receipt: Receipt
    leaf: WorkLeaf
    """The leaf of the receipt; all that both name is equal."""
    proof: tuple[Hash, ...]
    """Siblings from the leaf up to the epoch's `work_root`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge:
    """An omission challenge."""

    challenger: Address
    answer_by: int
    """Unix seconds."""
    state: ChallengeState
    answered_by: int
    """The epoch that answered."""
