// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {EpochHeader, Receipt, WorkLeaf} from "./ICoveyTypes.sol";

enum ChallengeState {
    None,
    Open,
    Answered,
    Upheld
}

/// What is settled of a pool.
struct Settlement {
    /// Reward of all epochs that stand.
    uint96 posted;
    /// Tokens paid in, less what was refunded.
    uint96 funded;
    /// How many epochs were posted, disabled ones included.
    uint24 epochs;
    /// Unix seconds.
    uint40 lastPostedAt;
}

/// An epoch as EpochPosted tells it; whoever uses one hands it in, for only its hash is stored.
struct EpochRecord {
    bytes32 headerHash;
    bytes32 rewardRoot;
    uint64 epoch;
    /// Unix seconds, from when it can be claimed against.
    uint64 finalAt;
    /// Reward of this epoch alone, in the token's smallest unit.
    uint96 reward;
    /// Reward of this epoch and of all before it that stand.
    uint96 cumulative;
}

/// What the operator signs in answer to a receipt: it will be in an epoch's tree by `latestEpoch`.  EIP-712 type
/// "Countersignature", domain of EpochLedger, with the receipt's struct hash in front.
struct InclusionPromise {
    /// When the operator signed, in Unix seconds.
    uint64 signedAt;
    uint64 latestEpoch;
    bytes signature;
}

/// Where a challenged receipt stands in the work tree of an epoch.
struct Inclusion {
    Receipt receipt;
    /// The receipt's leaf: all that both name must be equal.
    WorkLeaf leaf;
    bytes32[] proof;
}

/// What is stored of a challenge, in one word.
struct Challenge {
    address challenger;
    /// Unix seconds, until when it may be answered.
    uint40 answerBy;
    ChallengeState state;
    /// The epoch that answered; should it be disabled, the receipt may be challenged again.
    uint24 answeredBy;
}

/// Escrow and settlement: one root of all work and one of all rewards per epoch.  Rewards are cumulative for each
/// contributor, so one proof against any final epoch claims everything up to it.
///
/// An epoch can be disabled by the arbiter for `challengeWindow` after it was posted, and is final `challengeWindow +
/// vetoWindow` after it was posted.  All that is claimed never exceeds the reward of the epochs up to the one claimed
/// against, whatever a root may say, and what is posted never exceeds what the pool was funded with.
///
/// The newest KEPT_EPOCHS epochs are kept, each as one hash.  Pools are refused whose epochs may follow so fast that
/// one is dropped before it is final and everything promised for it could be challenged and answered.
///
/// Omission: whoever holds a countersigned receipt that is overdue posts it with OMISSION_BOND in ether.  Anyone may
/// answer with an inclusion proof within `challengeWindow` and earns the bond.  Else the receipt's contributor is paid
/// what it claims, at most half of the operator's bond, and as much again is burned; the challenger may withdraw its
/// ether.  An operator is a plain key: its promises are judged by its signature alone.
interface IEpochLedger {
    event PoolFunded(uint256 indexed pool, address indexed funder, uint256 amount);
    event PoolRefunded(uint256 indexed pool, address indexed operator, uint256 amount);
    event EpochPosted(uint256 indexed pool, uint64 indexed epoch, EpochHeader header, EpochRecord record);
    /// One for each epoch that falls: the one named, and all after it.
    event EpochDisabled(uint256 indexed pool, uint64 indexed epoch);
    event RewardClaimed(uint256 indexed pool, uint64 indexed epoch, address indexed contributor, uint256 amount);
    event OmissionChallenged(uint256 indexed pool, bytes32 indexed receiptHash, address indexed contributor);
    event OmissionAnswered(uint256 indexed pool, bytes32 indexed receiptHash, uint64 epoch, address answerer);
    event OmissionUpheld(
        uint256 indexed pool, bytes32 indexed receiptHash, address indexed contributor, uint256 amount
    );
    event EtherWithdrawn(address indexed challenger, uint256 amount);

    error NotOperator(uint256 pool, address account);
    error NotArbiter(uint256 pool, address account);
    error ZeroAmount();
    /// The token credited another amount than was sent.
    error UnsupportedToken(address token);
    error PoolNotOpen(uint256 pool);
    error PoolNotStarted(uint256 pool);
    error PoolNotClosed(uint256 closesAt);
    /// The pool was closed at `closedAt`: the escrow is the operator's again, and no epoch is posted any more.
    error PoolClosed(uint256 closedAt);
    error InsufficientEscrow(uint256 pool, uint256 requested, uint256 available);
    /// Epochs are posted one after the other.
    error WrongEpoch(uint256 expected, uint256 actual);
    error WrongPreviousHash(bytes32 expected, bytes32 actual);
    error TooManyUnits(uint256 units, uint256 cap);
    /// The next epoch may be posted from then on.
    error EpochTooEarly(uint256 availableAt);
    /// No epoch of the pool that stands and is kept has this record.
    error UnknownEpoch(uint256 pool, uint256 epoch);
    error WindowClosed(uint256 closedAt);
    error WindowOpen(uint256 closesAt);
    error NotFinal(uint256 finalAt);
    error InvalidProof();
    error NothingToClaim();
    /// All claims together would exceed the reward of the epochs up to this one: the root promises more than there
    /// is, or others have claimed against newer epochs; use the newest final one.
    error RewardExceedsEpochs(uint256 claimed, uint256 ceiling);
    error WrongBond(uint256 expected, uint256 actual);
    error InvalidSignature(address account);
    /// The contributor has never vouched for the node in this pool.
    error NeverBound(address node, address contributor);
    /// The operator still has time to include the receipt.
    error NotOverdue();
    /// The epochs that could hold the receipt are no longer kept: CHALLENGE_SPAN epochs have passed since it was due.
    error TooLate();
    error AlreadyChallenged(bytes32 receiptHash);
    error WrongChallengeState(bytes32 receiptHash, ChallengeState state);
    error WrongHeader();
    /// The leaf is not that of the receipt, or the proof does not show it in the epoch's work tree.
    error WrongLeaf(bytes32 receiptHash);
    /// No receipt that was shown has an open challenge whose window has not passed.
    error NothingToAnswer();
    /// StakeManager names another ledger.
    error WrongDeployment();

    /// Adds to a pool's escrow, from anybody's approved tokens, until the pool has ended.
    function fundPool(uint256 pool, uint256 amount) external;

    /// Returns to the operator what no epoch has promised, once the pool is closed (IPoolRegistry.closesAt).
    /// Operator only.
    function refundPool(uint256 pool) external;

    /// Posts the next epoch; reverts where the escrow cannot pay its units.  Operator only, also after the pool's end,
    /// until it is closed (IPoolRegistry.closesAt): later a root could only take what others have not claimed yet.
    function post(EpochHeader calldata header) external;

    /// Disables an epoch and all after it, and frees what was set aside for them.  Arbiter only.
    function disableEpoch(uint256 pool, EpochRecord calldata record) external;

    /// Pays a contributor what it has earned up to a final epoch and not yet received.  Anyone; paid to the
    /// contributor.
    /// @param cumulative All that the contributor ever earned in the pool, as the leaf says.
    function claim(
        uint256 pool,
        EpochRecord calldata record,
        address contributor,
        uint256 cumulative,
        bytes32[] calldata proof
    ) external;

    /// Says that a countersigned receipt is in no epoch.  It is overdue once epoch `latestEpoch` was posted; or once
    /// the operator has posted nothing for `epochLength + challengeWindow + vetoWindow`, and both windows have passed
    /// since the receipt's deadline; or `unbondWindow` after the pool's end.
    ///
    /// The node must have signed the receipt and be, or have been at any time, the contributor's.  Liability is not
    /// asked for: it ends one `unbondWindow` after a node was removed, and a promise may fall due later.  Whoever
    /// removed or rotated a node can challenge what it signed for as long as the promise can be challenged at all.
    /// @param nodeSignature The node's over the receipt, in the court's domain.
    function challengeOmission(
        Receipt calldata receipt,
        bytes calldata nodeSignature,
        InclusionPromise calldata given
    ) external payable;

    /// Shows that receipts are in one epoch that stands, and pays the sender the bonds of the challenges that this
    /// answers.  A receipt without an open challenge, or whose window has passed, is skipped: several who answer at
    /// once do not undo each other's transactions.  Reverts if all are skipped, and if one that is challenged is not
    /// in the epoch.  Anyone.
    function answerOmissions(
        EpochRecord calldata record,
        EpochHeader calldata header,
        Inclusion[] calldata inclusions
    ) external;

    /// Decides an unanswered challenge after its window.  Anyone.
    function resolveOmission(Receipt calldata receipt) external;

    /// Sends the sender the ether of its challenges that were upheld.
    function withdrawEther() external;

    /// Ether that a challenger may withdraw.
    function etherOf(address challenger) external view returns (uint256);

    /// How many epochs were posted, disabled ones included.
    function epochsOf(uint256 pool) external view returns (uint64);

    /// The header hash of the newest epoch, disabled or not; zero before the first.
    function headOf(uint256 pool) external view returns (bytes32);

    /// Whether the record is that of an epoch that stands and is kept.
    function isPosted(uint256 pool, EpochRecord calldata record) external view returns (bool);
    function getSettlement(uint256 pool) external view returns (Settlement memory);
    function claimedOf(uint256 pool, address contributor) external view returns (uint256);

    /// Tokens held for the pool now.
    function escrowOf(uint256 pool) external view returns (uint256);

    /// The part of the escrow that is promised by epochs and unclaimed.
    function owedOf(uint256 pool) external view returns (uint256);
    function getChallenge(bytes32 receiptHash) external view returns (Challenge memory);

    /// The EIP-712 digest that the operator signs.
    function digestCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 latestEpoch)
        external
        view
        returns (bytes32);

    /// The EIP-712 struct hash.
    function hashCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 latestEpoch)
        external
        pure
        returns (bytes32);
    function hashWorkLeaf(WorkLeaf calldata leaf) external pure returns (bytes32);
    function hashRewardLeaf(uint256 chainId, address ledger, uint256 pool, address contributor, uint256 cumulative)
        external
        pure
        returns (bytes32);
    function hashHeader(EpochHeader calldata header) external pure returns (bytes32);
}
