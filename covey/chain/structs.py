"""The contracts' structs and enumerations as Python values, with the names that they have in Solidity."""

from dataclasses import dataclass
from enum import IntEnum

from covey.protocol.epochs import WorkLeaf
from covey.protocol.ids import Address, Hash, PoolId
from covey.protocol.messages import Receipt


class PoolState(IntEnum):
    """State of a pool. NONE means that the pool does not exist."""

    NONE = 0
    CREATED = 1
    ACTIVE = 2
    ENDED = 3


class BondKind(IntEnum):
    """Role of the account that a bond belongs to."""

    CONTRIBUTOR = 0
    VALIDATOR = 1
    OPERATOR = 2


class OnChainCaseState(IntEnum):
    """State of a slashing case on chain. NONE means that there is no case."""

    NONE = 0
    LOCKED = 1
    VETOED = 2
    SLASHED = 3
    LAPSED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether the case is decided, so that its state never changes again."""
        return self in (OnChainCaseState.VETOED, OnChainCaseState.SLASHED, OnChainCaseState.LAPSED)


class ChallengeState(IntEnum):
    """State of an omission challenge. NONE means that the receipt was not challenged."""

    NONE = 0
    OPEN = 1
    ANSWERED = 2
    UPHELD = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolTerms:
    """Parameters of a pool that the contracts need, in the contracts' order. IPoolRegistry.sol documents each of them.

    Amounts are in the token's smallest unit, windows in seconds.
    """

    reward_per_unit: int
    """Reward of one completion token of accepted work, in the token's smallest unit."""
    epoch_units: int = 10**9
    """Largest number of completion tokens in one epoch. It limits what a stolen operator's key can promise at once."""
    challenge_window: int
    """Seconds after an epoch's posting within which it can be disabled and omissions can be answered."""
    veto_window: int
    """Seconds within which the arbiter can veto a slashing case."""
    unbond_window: int
    """Seconds from unbonding stake to its withdrawal. At least `challenge_window` + `veto_window`."""
    epoch_length: int = 1
    """Minimum number of seconds between two epochs, from (`challenge_window` + `veto_window`) / 64 to
    `challenge_window` / 2. A pool file without it gets `epoch_seconds`, within these bounds."""
    slash_amount: int
    """Largest stake that one case takes, in the token's smallest unit. At most `min_stake`."""
    validator_bond: int = 0
    """Stake that a validator must have bonded for its verdicts to count in court."""
    max_slashes: int = 4
    """Number of times that `slash_amount` may be locked of one contributor's stake within `unbond_window`."""
    light_slash_bps: int = 10_000
    """Part of `slash_amount`, in 1/10,000, that each of a contributor's first `strikes` cases takes."""
    strikes: int = 0
    """Number of a contributor's first cases that are light, so that they take only `light_slash_bps`."""
    quorum: int
    """Number of validators that must agree. A pool file sets it in [params]."""
    is_invite_only: bool = False
    """Whether contributors need an invitation by the operator to register nodes."""
    arbiter: Address
    """Address of the arbiter, who vetoes slashing cases, disables epochs and may end the pool. The arbiter is neither
    the operator nor a validator."""
    signer_penalty: int = 0
    """Bond that each validator that signed a vetoed case loses. At most `validator_bond`."""
    token: Address
    """Address of the ERC-20 token of stake and reward. A pool file without it gets the deployment's token."""
    min_stake: int
    """Stake that a contributor must have bonded before the coordinator gives its nodes work."""
    trainer: Address
    """Address of the trainer's key, which publishes policies."""
    params_hash: Hash
    """keccak256 of the parameters' canonical text. `covey pool create` computes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbonding:
    """Stake that is being unbonded."""

    amount: int
    available_at: int
    """Time in Unix seconds from which the stake can be withdrawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """Stake of one account in one pool, for one kind of bond."""

    bonded: int
    """Stake that is not being unbonded."""
    leaving: int
    """Sum of all unbondings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """Settlement of a pool so far."""

    posted: int
    """Reward of all epochs that are not disabled."""
    funded: int
    """Amount of tokens paid in, without refunds."""
    epochs: int
    """Number of posted epochs, including disabled ones."""
    last_posted_at: int
    """Time of the newest posting, in Unix seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """An epoch as the event EpochPosted contains it.

    The ledger stores only its hash, so a claim or an answer must include the record.
    """

    header_hash: Hash
    reward_root: Hash
    epoch: int
    final_at: int
    """Time in Unix seconds from which rewards can be claimed against the epoch."""
    reward: int
    """Reward of this epoch alone, in the token's smallest unit."""
    cumulative: int
    """Reward of this epoch and of all earlier epochs that are not disabled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accusation:
    """Identifies a case by its receipt and the accused. The id of the case is the receipt's hash."""

    receipt_hash: Hash
    pool: PoolId
    node: Address
    contributor: Address


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A slashing case."""

    amount: int
    veto_until: int
    """Time in Unix seconds until which the case can be vetoed. It may be executed for a day after that."""
    state: OnChainCaseState
    reason: int
    span: int
    """Span, one period of `unbond_window`, whose cap `amount` counts against."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inclusion:
    """Proof that a challenged receipt is in the work tree of an epoch, which answers the challenge."""

    receipt: Receipt
    leaf: WorkLeaf
    """Leaf of the receipt. The fields that both have are equal."""
    proof: tuple[Hash, ...]
    """Siblings from the leaf up to the epoch's `work_root`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge:
    """An omission challenge."""

    challenger: Address
    answer_by: int
    """Time in Unix seconds until which the challenge can be answered."""
    state: ChallengeState
    answered_by: int
    """Epoch that answered the challenge."""
