"""The contracts' structs and enumerations as Python types with their Solidity names."""

from dataclasses import dataclass
from enum import IntEnum

from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import ZERO_ADDRESS, Address, Hash, PoolId
from covey.protocol.messages import Receipt
from covey.protocol.verdict_fees import VerdictFees


class PoolState(IntEnum):
    """State of a pool. NONE means that the pool does not exist."""

    NONE = 0
    CREATED = 1
    ACTIVE = 2
    ENDED = 3


class PoolRole(IntEnum):
    """Role that one account holds in a pool, and that the operator can pass to another account."""

    OPERATOR = 0
    SIGNER = 1
    TRAINER = 2
    ARBITER = 3


class BondKind(IntEnum):
    """Role of the account that bonded a stake."""

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
        """Whether the case is decided, so that its state cannot change."""
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

    Price, signer, trainer, arbiter and heir can change. The contracts then return the present ones.

    Amounts are in the token's smallest unit, windows in seconds.
    """

    epoch_units: int = 10**9
    """Maximum number of completion tokens in one epoch. It limits what a stolen operator key can promise at once."""
    challenge_window: int
    """Seconds after the posting of an epoch in which it can be disabled and omissions can be answered."""
    veto_window: int
    """Seconds in which the arbiter can veto a slashing case."""
    unbond_window: int
    """Seconds between the unbonding of stake and its withdrawal. At least `challenge_window` + `veto_window`."""
    epoch_length: int = 1
    """Minimum number of seconds between two epochs.

    Its range is from (`challenge_window` + `veto_window`) / 64 to `challenge_window` / 2. If a pool file does not set
    it, it is `epoch_seconds` within this range.
    """
    validator_bond: int = 0
    """Stake that a validator must have bonded before its verdicts count in court, and its attestations of epochs."""
    header_quorum: int = 0
    """Number of validators that must sign the header of each epoch. If it is 0, the signer alone posts.

    If a pool file does not set it, it is `quorum`.
    """
    slash_amount: int
    """Maximum stake that one case takes, in the token's smallest unit. At most `min_stake`."""
    verdict_fee: int = 0
    """Fee for one verdict that an epoch counts, in the token's smallest unit."""
    epoch_verdicts: int = 0
    """Maximum number of verdicts that one epoch pays."""
    max_slashes: int = 4
    """Maximum number of times that cases can lock `slash_amount` of one contributor's stake within `unbond_window`."""
    light_slash_bps: int = 10_000
    """Share of `slash_amount`, in 1/10,000, that each of a contributor's first `strikes` cases takes."""
    strikes: int = 0
    """Number of a contributor's first cases that take only `light_slash_bps`."""
    quorum: int
    """Number of validators that must agree. In a pool file, set it in [params]."""
    is_invite_only: bool = False
    """Whether contributors can register nodes only after the operator has invited them."""
    arbiter: Address
    """Address of the arbiter, who can veto slashing cases, disable epochs and end the pool.

    The arbiter is neither the operator nor a validator.
    """
    signer_penalty: int = 0
    """Stake that each validator who signed a vetoed case loses. At most `validator_bond`."""
    token: Address
    """Address of the ERC-20 token of stake and rewards.

    If a pool file does not set it, it is the deployment's token.
    """
    min_stake: int
    """Stake that a contributor must have bonded before the coordinator assigns work to its nodes."""
    trainer: Address
    """Address of the trainer's key, which publishes policies."""
    accept_penalty: int = 0
    """Stake that a validator who accepted work loses once the case about this work is executed.

    At most `validator_bond`.
    """
    signer: Address = ZERO_ADDRESS
    """Address of the key that signs promises and posts epochs, with which the coordinator runs.

    If a pool file does not set it, it is the operator.
    """
    reward_per_million: int
    """Reward of 1,000,000 completion tokens of accepted work, in the token's smallest unit."""
    heir: Address = ZERO_ADDRESS
    """Address that receives the escrow and the operator's bond of the closed pool. If it is not set, the operator."""
    params_hash: Hash
    """keccak256 of the parameters' canonical text. `covey pool create` computes it."""

    @property
    def verdict_fees(self) -> VerdictFees:
        """What an epoch of the pool pays for verdicts."""
        return VerdictFees(fee=self.verdict_fee, limit=self.epoch_verdicts)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleHolder:
    """Account that holds a role, and the one that was proposed for it."""

    account: Address
    next: Address
    """Account that will hold the role. ZERO_ADDRESS if no change is pending."""
    next_from: int
    """Unix time in seconds from which `next` holds the role. 0 if no change is pending."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbonding:
    """Stake that is being unbonded."""

    amount: int
    available_at: int
    """Unix time in seconds from which the stake can be withdrawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedPermit:
    """A permit of EIP-2612 as the contracts take it. `covey.chain.permits` makes it."""

    deadline: int
    """Unix time in seconds until which the permit can be used."""
    v: int
    r: Hash
    s: Hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """Stake of one account in one pool, for one kind of bond."""

    bonded: int
    """Stake that is not unbonding."""
    leaving: int
    """Total stake that is unbonding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """Running totals of a pool's settlement."""

    posted: int
    """Total reward of all epochs that are not disabled."""
    funded: int
    """Total amount of tokens paid in, minus refunds."""
    epochs: int
    """Number of posted epochs, including disabled ones."""
    last_posted_at: int
    """Time of the newest posting, in Unix seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """What the ledger knows about an epoch.

    The ledger stores only the record's hash, so a claim or an answer must include the record.
    """

    header_hash: Hash
    reward_root: Hash
    epoch: int
    final_at: int
    """Unix time in seconds from which rewards of the epoch can be claimed."""
    reward: int
    """Reward of this epoch alone, in the token's smallest unit."""
    cumulative: int
    """Reward of this epoch and of all earlier epochs that are not disabled."""

    @classmethod
    def of(cls, header: EpochHeader, final_at: int, reward: int, cumulative: int) -> "EpochRecord":
        """Build the record of a posted header."""
        return cls(
            header_hash=header.compute_hash(),
            reward_root=header.reward_root,
            epoch=header.epoch,
            final_at=final_at,
            reward=reward,
            cumulative=cumulative,
        )


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
    """Unix time in seconds until which the case can be vetoed. It can be executed during the day after that."""
    state: OnChainCaseState
    reason: int
    span: int
    """Number of the span, a period of `unbond_window`, in which `amount` counts against the slash cap."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inclusion:
    """Proof that a challenged receipt is in the work tree of an epoch. It answers the challenge."""

    receipt: Receipt
    leaf: WorkLeaf
    """Leaf of the receipt. Fields that the leaf and the receipt share are equal."""
    proof: tuple[Hash, ...]
    """Sibling hashes from the leaf up to the epoch's `work_root`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge:
    """An omission challenge."""

    challenger: Address
    answer_by: int
    """Unix time in seconds until which the challenge can be answered."""
    state: ChallengeState
    answered_by: int
    """Number of the epoch that answered the challenge."""
    paid: int
    """Amount that the operator's bond has paid for the receipt."""
