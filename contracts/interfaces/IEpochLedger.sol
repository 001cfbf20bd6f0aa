// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {EpochHeader, Receipt, WorkLeaf} from "./ICoveyTypes.sol";

/// What is stored of a posted epoch.
struct PostedEpoch {
    bytes32 headerHash;
    bytes32 rewardRoot;
    uint64 postedAt;
    /// Units of this epoch alone.
    uint64 units;
    /// Units of this epoch and of all before it that stand.
    uint120 cumulativeUnits;
    bool isDisabled;
}

/// What the operator signs in answer to a receipt: it will be in an epoch's tree by `latestEpoch`.  EIP-712 type
/// "Countersignature", domain of EpochLedger, with the receipt's struct hash in front.
struct InclusionPromise {
    /// The newest block that the operator knew when it signed.
    uint64 blockNumber;
    uint64 latestEpoch;
    bytes signature;
}

enum ChallengeState {
    None,
    Open,
    Answered,
    Upheld
}

struct Challenge {
    uint256 pool;
    address challenger;
    address contributor;
    /// Unix seconds, until when it may be answered.
    uint64 answerBy;
    ChallengeState state;
    /// The epoch that answered; should it be disabled, the receipt may be challenged again.
    uint64 answeredBy;
    /// The reward that the receipt claims.
    uint256 amount;
    /// Binds an answer to the receipt: keccak256 of the leaf's receiptHash, workKey, node, contributor, task, policyVersion.
    bytes32 identity;
}

/// Settlement: one root of all work and one of all rewards per epoch.  Rewards are cumulative for each contributor, so one
/// proof against any final epoch claims everything up to it.
///
/// An epoch can be disabled by the arbiter for `challengeWindow` after it was posted, and is final
/// `challengeWindow + vetoWindow` after it was posted.  All that is claimed never exceeds the units of the final epochs
/// times the pool's price, whatever a root may say.
///
/// Omission: whoever holds a countersigned receipt that is overdue posts it with OMISSION_BOND in ether.  Anyone may answer
/// with an inclusion proof within `challengeWindow` and earns the bond; else the receipt's contributor is paid what it
/// claims from the operator's bond, as far as that reaches, and the challenger has its ether back.
interface IEpochLedger {
    event EpochPosted(
        uint256 indexed pool,
        uint64 indexed epoch,
        bytes32 headerHash,
        bytes32 workRoot,
        bytes32 rewardRoot,
        uint64 leafCount,
        uint64 units,
        bytes32 dataHash,
        bytes32 previousHash
    );
    /// One for each epoch that falls: the one named, and all after it.
    event EpochDisabled(uint256 indexed pool, uint64 indexed epoch, bytes32 headerHash);
    event RewardClaimed(uint256 indexed pool, uint64 indexed epoch, address indexed contributor, uint256 amount);
    event OmissionChallenged(
        uint256 indexed challengeId, uint256 indexed pool, address indexed contributor, bytes32 receiptHash
    );
    event OmissionAnswered(uint256 indexed challengeId, uint256 indexed pool, uint64 epoch, address answerer);
    event OmissionUpheld(uint256 indexed challengeId, uint256 indexed pool, address indexed contributor, uint256 amount);

    error NotOperator(uint256 pool, address account);
    error NotArbiter(uint256 pool, address account);
    error PoolNotStarted(uint256 pool);
    /// At most MAX_OPEN_EPOCHS may be waiting for finality, so that disabling them stays affordable.
    error TooManyOpenEpochs();
    error UnknownEpoch(uint256 pool, uint256 epoch);
    error EpochIsDisabled(uint256 epoch);
    error WindowClosed(uint256 closedAt);
    error WindowOpen(uint256 closesAt);
    error NotFinal(uint256 finalAt);
    error InvalidProof();
    error NothingToClaim();
    /// The root promises more than the final epochs' units are worth.
    error RewardExceedsUnits(uint256 requested, uint256 available);
    error WrongBond(uint256 expected, uint256 actual);
    error InvalidSignature(address account);
    /// The operator still has time to include the receipt.
    error NotOverdue();
    error AlreadyChallenged(bytes32 receiptHash);
    error WrongChallengeState(uint256 challengeId, ChallengeState state);
    error WrongHeader();
    error WrongLeaf();

    /// Posts the next epoch; reverts where the escrow cannot pay its units.  Operator only, also after the pool's end.
    function post(
        uint256 pool,
        bytes32 workRoot,
        bytes32 rewardRoot,
        uint64 leafCount,
        uint64 units,
        bytes32 dataHash
    ) external returns (uint64 epoch);

    /// Disables an epoch and all after it, and frees what was set aside for them.  Arbiter only.
    function disableEpoch(uint256 pool, uint64 epoch) external;

    /// Pays a contributor what it has earned up to a final epoch and not yet received.  Anyone; paid to the contributor.
    /// @param cumulative All that the contributor ever earned in the pool, as the leaf says.
    function claim(uint256 pool, uint64 epoch, address contributor, uint256 cumulative, bytes32[] calldata proof)
        external;

    /// Says that a countersigned receipt is in no epoch.  It is overdue once an epoch after `latestEpoch` could have been
    /// posted, or, should the operator have stopped, `challengeWindow + vetoWindow` after the receipt's deadline.
    function challengeOmission(Receipt calldata receipt, InclusionPromise calldata given)
        external
        payable
        returns (uint256 challengeId);

    /// Shows that the receipt is in an epoch that stands.
    function answerOmission(
        uint256 challengeId,
        EpochHeader calldata header,
        WorkLeaf calldata leaf,
        bytes32[] calldata proof
    ) external;

    /// Decides an unanswered challenge after its window.  Anyone.
    function resolveOmission(uint256 challengeId) external;

    /// How many epochs were posted, disabled ones included.
    function epochsOf(uint256 pool) external view returns (uint64);
    function getEpoch(uint256 pool, uint64 epoch) external view returns (PostedEpoch memory);
    function isFinal(uint256 pool, uint64 epoch) external view returns (bool);
    function claimedOf(uint256 pool, address contributor) external view returns (uint256);

    /// Units of all epochs that stand.
    function unitsOf(uint256 pool) external view returns (uint256);
    function getChallenge(uint256 challengeId) external view returns (Challenge memory);

    /// The EIP-712 struct hash.
    function hashCountersignature(bytes32 receiptHash, uint64 blockNumber, uint64 latestEpoch)
        external
        pure
        returns (bytes32);

    /// The EIP-712 digest that the operator signs.
    function digestCountersignature(bytes32 receiptHash, uint64 blockNumber, uint64 latestEpoch)
        external
        view
        returns (bytes32);
    function hashWorkLeaf(WorkLeaf calldata leaf) external pure returns (bytes32);
    function hashRewardLeaf(uint256 chainId, address ledger, uint256 pool, address contributor, uint256 cumulative)
        external
        pure
        returns (bytes32);
    function hashHeader(EpochHeader calldata header) external pure returns (bytes32);
}
