// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Attestation, EpochHeader, Receipt, WorkLeaf} from "./ICoveyTypes.sol";
import {IPayouts, Permit} from "./IPayouts.sol";

/// @notice State of an omission challenge.
enum ChallengeState {
    None,
    Open,
    Answered,
    Upheld
}

/// @notice Totals of one pool.
/// @param posted Reward of all epochs that are not disabled, in the token's smallest unit.
/// @param funded Tokens paid in, minus tokens refunded.
/// @param epochs Number of epochs posted, including disabled ones.
/// @param lastPostedAt Unix time in seconds at which the newest epoch was posted.
struct Settlement {
    uint96 posted;
    uint96 funded;
    uint24 epochs;
    uint40 lastPostedAt;
}

/// @notice What the ledger knows about one epoch.
/// @dev Only the hash of the record is stored. A caller that claims, disables or answers passes the record in.
/// @param headerHash Hash of the epoch's header.
/// @param rewardRoot Merkle root of the reward leaves.
/// @param epoch Number of the epoch.
/// @param finalAt Unix time in seconds from which rewards can be claimed against the epoch.
/// @param reward Reward of this epoch alone, in the token's smallest unit.
/// @param cumulative Reward of this epoch and of all earlier epochs that are not disabled.
struct EpochRecord {
    bytes32 headerHash;
    bytes32 rewardRoot;
    uint64 epoch;
    uint64 finalAt;
    uint96 reward;
    uint96 cumulative;
}

/// @notice The signer's promise to include a receipt in the work tree of an epoch.
/// @dev EIP-712 type "Countersignature" in the domain of EpochLedger. Its first member is the receipt's struct hash.
/// @param signedAt Unix time in seconds at which the signer signed. It must have held its role then.
/// @param dueBy Unix time in seconds until which the receipt must be in a posted epoch.
/// @param signature The signer's 65-byte ECDSA signature.
struct InclusionPromise {
    uint64 signedAt;
    uint64 dueBy;
    bytes signature;
}

/// @notice Proof that a challenged receipt is in the work tree of an epoch.
/// @param receipt The challenged receipt.
/// @param leaf The receipt's leaf. Every field that both have must be equal, except `units`.
/// @param proof Merkle proof of the leaf.
struct Inclusion {
    Receipt receipt;
    WorkLeaf leaf;
    bytes32[] proof;
}

/// @notice An omission challenge. Until it is upheld, it takes one storage slot.
/// @param challenger Account that challenged.
/// @param answerBy Unix time in seconds before which the challenge can be answered.
/// @param state State of the challenge.
/// @param answeredBy Epoch that answered. If it is disabled, the receipt can be challenged again.
/// @param paid Amount that the operator's bond has paid for the receipt.
struct Challenge {
    address challenger;
    uint40 answerBy;
    ChallengeState state;
    uint40 answeredBy;
    uint96 paid;
}

/// @title IEpochLedger
/// @notice Holds the escrow of every pool and settles work in epochs: one Merkle root of all work and one of all
/// rewards per epoch.
/// @dev Claims: rewards are cumulative per contributor, so one proof against any final epoch claims everything earned
/// up to that epoch.
///
/// Attestations: a pool with a `headerQuorum` accepts only headers that this number of bonded validators have signed.
/// A false root then needs the signer and a quorum. If the signer is idle, anyone can post what a quorum has signed.
///
/// Finality: the arbiter can disable an epoch for `challengeWindow` after it was posted. An epoch is final
/// `challengeWindow + vetoWindow` after it was posted.
///
/// Solvency: all claims of a pool together never exceed the reward of the epochs up to the one claimed against,
/// whatever a root promises. The posted rewards of a pool never exceed its funding.
///
/// Storage: the newest KEPT_EPOCHS epochs are kept, each as one hash. PoolRegistry rejects a pool whose epochs could
/// follow each other so quickly that an epoch is overwritten too early. An epoch must be kept until it is final, and
/// until every promise for it can have been challenged and answered.
///
/// Omissions: anyone with an overdue countersigned receipt can challenge the operator with a bond of OMISSION_BOND in
/// ether. Anyone can answer with an inclusion proof within `challengeWindow` and earns the bond. Without an answer, the
/// receipt's contributor is paid from the operator's bond: what the receipt claims, at most half of the bond. The same
/// amount is burned, and the challenger can withdraw its ether. If the receipt is in an epoch after all, the amount is
/// deducted once from the contributor's claims, so no work is paid twice.
///
/// Signatures: the signer is a plain key. Its promises are checked with ECDSA alone, also when its address has code.
interface IEpochLedger is IPayouts {
    /// @notice Tokens were added to the escrow of a pool.
    /// @param pool Id of the pool.
    /// @param funder Account that paid.
    /// @param amount Amount in the token's smallest unit.
    event PoolFunded(uint256 indexed pool, address indexed funder, uint256 amount);

    /// @notice Unreserved escrow of a closed pool was returned to its heir or operator.
    /// @param pool Id of the pool.
    /// @param recipient Account that was paid.
    /// @param amount Amount in the token's smallest unit.
    event PoolRefunded(uint256 indexed pool, address indexed recipient, uint256 amount);

    /// @notice An epoch was posted.
    /// @dev Callers need the header and the record to claim, disable and answer, because the ledger stores only hashes.
    /// The header's hash, its reward root and its epoch make the record complete.
    /// @param pool Id of the pool.
    /// @param epoch Number of the epoch.
    /// @param header Header that was posted.
    /// @param finalAt See EpochRecord.
    /// @param reward See EpochRecord.
    /// @param cumulative See EpochRecord.
    event EpochPosted(
        uint256 indexed pool,
        uint64 indexed epoch,
        EpochHeader header,
        uint64 finalAt,
        uint96 reward,
        uint96 cumulative
    );

    /// @notice An epoch was disabled.
    /// @dev Emitted for the epoch that the arbiter named and for each later epoch that was not disabled before.
    /// @param pool Id of the pool.
    /// @param epoch Number of the disabled epoch.
    event EpochDisabled(uint256 indexed pool, uint64 indexed epoch);

    /// @notice A contributor's payee was paid, or credited if the token refused.
    /// @param pool Id of the pool.
    /// @param epoch Epoch that was claimed against.
    /// @param contributor Account that earned the reward.
    /// @param amount Amount in the token's smallest unit.
    event RewardClaimed(uint256 indexed pool, uint64 indexed epoch, address indexed contributor, uint256 amount);

    /// @notice A contributor named the account that receives its rewards.
    /// @param pool Id of the pool.
    /// @param contributor Account that earns the rewards.
    /// @param payee Account that receives them; the zero address for the contributor itself.
    event PayeeSet(uint256 indexed pool, address indexed contributor, address indexed payee);

    /// @notice The operator was challenged to include a receipt.
    /// @param pool Id of the pool.
    /// @param receiptHash Struct hash of the receipt.
    /// @param contributor Contributor that the receipt names.
    event OmissionChallenged(uint256 indexed pool, bytes32 indexed receiptHash, address indexed contributor);

    /// @notice A challenge was answered with an inclusion proof.
    /// @param pool Id of the pool.
    /// @param receiptHash Struct hash of the receipt.
    /// @param epoch Epoch that includes the receipt.
    /// @param answerer Account that answered and receives the challenger's bond.
    event OmissionAnswered(uint256 indexed pool, bytes32 indexed receiptHash, uint64 epoch, address answerer);

    /// @notice Nobody answered a challenge in time, so the operator's bond pays for the receipt, as far as it goes.
    /// @dev Emitted again for each later payment.
    /// @param pool Id of the pool.
    /// @param receiptHash Struct hash of the receipt.
    /// @param contributor Account that was paid.
    /// @param amount Amount paid now from the operator's bond; zero if it was empty. The same amount was burned.
    event OmissionUpheld(
        uint256 indexed pool, bytes32 indexed receiptHash, address indexed contributor, uint256 amount
    );

    /// @notice A receipt of an upheld challenge was shown in an epoch, so the operator's bond pays no more for it.
    /// @param pool Id of the pool.
    /// @param receiptHash Struct hash of the receipt.
    /// @param contributor Account from whose next claims the amount is deducted.
    /// @param amount Amount that both the bond and the epoch pay for the receipt.
    event OmissionNetted(
        uint256 indexed pool, bytes32 indexed receiptHash, address indexed contributor, uint256 amount
    );

    /// @notice A challenger withdrew the bonds of its upheld challenges.
    /// @param challenger Account that was paid.
    /// @param amount Amount in wei.
    event EtherWithdrawn(address indexed challenger, uint256 amount);

    /// @notice The caller is not the signer of the pool.
    /// @param pool Id of the pool.
    /// @param account The caller.
    error NotSigner(uint256 pool, address account);

    /// @notice The caller is not the arbiter of the pool.
    /// @param pool Id of the pool.
    /// @param account The caller.
    error NotArbiter(uint256 pool, address account);

    /// @notice The pool does not exist or has ended.
    /// @param pool Id of the pool.
    error PoolNotOpen(uint256 pool);

    /// @notice The pool was not started.
    /// @param pool Id of the pool.
    error PoolNotStarted(uint256 pool);

    /// @notice The pool is not closed yet.
    /// @param closesAt Unix time in seconds at which it closes; the maximum of uint256 while the pool has not ended.
    error PoolNotClosed(uint256 closesAt);

    /// @notice The pool is closed: the escrow can be refunded, and no epoch can be posted.
    /// @param closedAt Unix time in seconds at which it closed.
    error PoolClosed(uint256 closedAt);

    /// @notice The unreserved escrow cannot pay the reward of the epoch.
    /// @param pool Id of the pool.
    /// @param requested Reward of the epoch.
    /// @param available Unreserved escrow.
    error InsufficientEscrow(uint256 pool, uint256 requested, uint256 available);

    /// @notice The header is not that of the next epoch.
    /// @param expected Number of the next epoch.
    /// @param actual Number in the header.
    error WrongEpoch(uint256 expected, uint256 actual);

    /// @notice The header does not name the predecessor that `headOf` returns.
    /// @param expected Hash that `headOf` returns.
    /// @param actual Hash in the header.
    error WrongPreviousHash(bytes32 expected, bytes32 actual);

    /// @notice The epoch, or the receipt, has more units than the pool allows in an epoch.
    /// @param units Units in the header or the receipt.
    /// @param cap The pool's `epochUnits`.
    error TooManyUnits(uint256 units, uint256 cap);

    /// @notice The epoch pays for more verdicts than the pool allows.
    /// @param verdicts Verdicts in the header.
    /// @param cap The pool's `epochVerdicts`.
    error TooManyVerdicts(uint256 verdicts, uint256 cap);

    /// @notice The caller is not the signer, who may still post.
    /// @param idleAt Unix time in seconds from which anyone can post with attestations.
    error SignerNotIdle(uint256 idleAt);

    /// @notice Less than `epochLength` has passed since the previous epoch.
    /// @param availableAt Unix time in seconds from which the next epoch can be posted.
    error EpochTooEarly(uint256 availableAt);

    /// @notice The ledger keeps no epoch with this record: it was never posted, is disabled, or was overwritten.
    /// @param pool Id of the pool.
    /// @param epoch Number of the epoch in the record.
    error UnknownEpoch(uint256 pool, uint256 epoch);

    /// @notice The window in which this could be done has closed.
    /// @param closedAt Unix time in seconds at which it closed.
    error WindowClosed(uint256 closedAt);

    /// @notice The challenge can still be answered.
    /// @param closesAt Unix time in seconds from which it can be resolved.
    error WindowOpen(uint256 closesAt);

    /// @notice The epoch is not final yet.
    /// @param finalAt Unix time in seconds from which it is final.
    error NotFinal(uint256 finalAt);

    /// @notice The proof does not show the reward leaf under the epoch's reward root.
    error InvalidProof();

    /// @notice The contributor has already received this amount or more.
    error NothingToClaim();

    /// @notice All claims of the pool together would exceed the reward of the epochs up to this one.
    /// @dev Either the root promises more than the epochs are worth, or others have claimed against newer epochs. In
    /// the second case, claim against the newest final epoch.
    /// @param claimed All claims of the pool, including this one.
    /// @param ceiling Reward of the epochs up to this one.
    error RewardExceedsEpochs(uint256 claimed, uint256 ceiling);

    /// @notice The ether sent is not OMISSION_BOND.
    /// @param expected OMISSION_BOND.
    /// @param actual Amount sent, in wei.
    error WrongBond(uint256 expected, uint256 actual);

    /// @notice The signature was not made by this account over these fields.
    /// @param account Account that should have signed.
    error InvalidSignature(address account);

    /// @notice The contributor has never vouched for the node in this pool.
    /// @param node Node that the receipt names.
    /// @param contributor Contributor that the receipt names.
    error NeverBound(address node, address contributor);

    /// @notice The promise gives the operator more time than a quarter of the time for which epochs are kept.
    /// @param dueBy Time in the promise.
    /// @param latest Latest time that a promise with its `signedAt` can name.
    error PromiseTooLong(uint256 dueBy, uint256 latest);

    /// @notice The operator still has time to include the receipt.
    /// @param dueBy Unix time in seconds until which the operator has time.
    error NotOverdue(uint256 dueBy);

    /// @notice The time for challenging the receipt is over.
    /// @dev The epochs that could hold the receipt may no longer be kept, so the operator might be unable to answer.
    /// @param closedAt Unix time in seconds until which it could be challenged.
    error TooLate(uint256 closedAt);

    /// @notice The receipt was challenged before, and the epoch that answered, if any, was not disabled since.
    /// @param receiptHash Struct hash of the receipt.
    error AlreadyChallenged(bytes32 receiptHash);

    /// @notice The challenge is not open.
    /// @param receiptHash Struct hash of the receipt.
    /// @param state State of the challenge; None if the receipt was never challenged.
    error WrongChallengeState(bytes32 receiptHash, ChallengeState state);

    /// @notice The header is not the one that the record names.
    error WrongHeader();

    /// @notice The leaf is not that of the receipt, or the proof does not show it under the epoch's work root.
    /// @param receiptHash Struct hash of the receipt.
    error WrongLeaf(bytes32 receiptHash);

    /// @notice None of the given receipts has an open challenge whose window has not passed, or an amount to deduct.
    error NothingToAnswer();

    /// @notice StakeManager names another ledger.
    error WrongDeployment();

    /// @notice Adds tokens to the escrow of a pool.
    /// @dev Anyone can call this. The tokens come from the caller, who must have approved them. Reverts once the pool
    /// has ended. A pause does not stop it.
    /// @param pool Id of the pool.
    /// @param amount Amount in the token's smallest unit.
    function fundPool(uint256 pool, uint256 amount) external;

    /// @notice Adds tokens to the escrow of a pool, which the caller approves by signature in the same call.
    /// @dev See `fundPool`. The token must support EIP-2612.
    /// @param pool Id of the pool.
    /// @param amount Amount in the token's smallest unit.
    /// @param permit The caller's permit for this contract over exactly the amount.
    function fundPoolWithPermit(uint256 pool, uint256 amount, Permit calldata permit) external;

    /// @notice Returns all escrow that no epoch has reserved to the pool's heir, or to the operator if none is named.
    /// @dev Anyone can call this once the pool is closed (see IPoolRegistry.closesAt), so that a lost operator's key
    /// does not lock the escrow up. Unclaimed rewards stay claimable.
    /// @param pool Id of the pool.
    function refundPool(uint256 pool) external;

    /// @notice Posts the next epoch and reserves its reward.
    /// @dev Signer only, unless the signer is idle: with attestations, anyone can post once `epochLength` and
    /// `challengeWindow` have passed since the newest epoch, or since the pool's start before the first one. A pool
    /// with a `headerQuorum` of 0 needs no attestations and always needs its signer.
    ///
    /// The reward is that of the units, at the price that held when the previous epoch was posted, and `verdictFee` for
    /// each verdict. Reverts if the unreserved escrow cannot pay it. An epoch can be posted after the pool's end until
    /// the pool is closed (see IPoolRegistry.closesAt). A later root could only take rewards that others have not
    /// claimed yet.
    /// @param header Header that continues the pool's chain of headers.
    /// @param attestations Signatures of at least `headerQuorum` bonded validators over the header, in ascending order
    /// of their addresses; ignored if `headerQuorum` is 0.
    function post(EpochHeader calldata header, Attestation[] calldata attestations) external;

    /// @notice Disables an epoch and all later ones, and releases the escrow that they reserved.
    /// @dev Arbiter only, for `challengeWindow` after the epoch was posted. The next header names zero as its
    /// predecessor, so that nothing which validators signed on top of the disabled epoch can be posted.
    ///
    /// If the epoch is false, each validator that attested its header can be slashed (see
    /// ISlashingCourt.slashAttester), but not those of later headers. An epoch whose data is missing, or which pays for
    /// work that only some validators have judged, is not their fault.
    /// @param pool Id of the pool.
    /// @param record Record of the first epoch to disable.
    /// @param isFalse Whether every validator could have computed that the header of `record` is false.
    function disableEpoch(uint256 pool, EpochRecord calldata record, bool isFalse) external;

    /// @notice Names the account that receives the caller's rewards in a pool, also for omitted work.
    /// @dev A contributor keeps its key for signatures and has its pay sent to a colder account, or to one that the
    /// token does not block.
    /// @param pool Id of the pool.
    /// @param payee Account that is paid from now on; the zero address for the caller itself.
    function setPayee(uint256 pool, address payee) external;

    /// @notice Pays the reward that a contributor has earned up to a final epoch and not received yet.
    /// @dev Anyone can call this. The tokens go to the contributor's payee. What it has already received from the
    /// operator's bond for receipts of an epoch (`deductionOf`) is deducted, and returns to the unreserved escrow.
    /// @param pool Id of the pool.
    /// @param record Record of a final epoch.
    /// @param contributor Account that earned the reward.
    /// @param cumulative Total reward of the contributor in the pool, as in the reward leaf.
    /// @param proof Merkle proof of the reward leaf.
    function claim(
        uint256 pool,
        EpochRecord calldata record,
        address contributor,
        uint256 cumulative,
        bytes32[] calldata proof
    ) external;

    /// @notice Challenges the operator to show that a countersigned receipt is in an epoch.
    /// @dev Anyone can call this, with OMISSION_BOND in ether. A receipt is overdue after `dueBy`, and once
    /// `unbondWindow` has passed since the pool's end. Empty epochs put nothing off, because `dueBy` is a time. Reverts
    /// with TooManyUnits if the receipt claims more than `epochUnits`.
    ///
    /// Epochs are kept for at least `KEPT_EPOCHS * epochLength` after they were posted. A promise can give the operator
    /// at most a quarter of this time (PromiseTooLong), and can be challenged for another quarter (TooLate), so an
    /// epoch that holds the receipt is still kept when the challenge is answered. Reverts with WindowClosed from two
    /// challenge windows before the pool closes, so that every challenge can be answered and resolved before the
    /// operator can withdraw its bond.
    ///
    /// The node must have signed the receipt, and must be, or have been at any time, bound to the contributor.
    /// Liability is not required: it ends one `unbondWindow` after a node was removed, and a promise may fall due
    /// later. A contributor that removed or rotated a node keeps every promise for the work of that node.
    /// @param receipt The receipt.
    /// @param nodeSignature The node's signature over the receipt, in the domain of SlashingCourt.
    /// @param given The signer's promise.
    function challengeOmission(
        Receipt calldata receipt,
        bytes calldata nodeSignature,
        InclusionPromise calldata given
    ) external payable;

    /// @notice Shows that challenged receipts are in one epoch, and pays their challengers' bonds to the caller.
    /// @dev Anyone can call this. Skips a receipt without an open challenge and one whose window has passed, so that
    /// two callers that answer the same challenges do not revert each other. Reverts if all receipts are skipped, and
    /// if a challenged receipt is not in the epoch.
    ///
    /// An upheld receipt earns nobody a bond. Once the epoch is final, what the epoch pays for it, at most what the
    /// operator's bond has paid, is deducted from the contributor's claims. The bond pays no more for it.
    /// @param record Record of a kept epoch that is not disabled.
    /// @param header Header of the same epoch.
    /// @param inclusions Receipts with their leaves and proofs.
    function answerOmissions(
        EpochRecord calldata record,
        EpochHeader calldata header,
        Inclusion[] calldata inclusions
    ) external;

    /// @notice Resolves a challenge that nobody answered within its window, or pays more for an upheld one.
    /// @dev Anyone can call this. Pays the contributor's payee from the operator's bond (see
    /// IStakeManager.payFromOperator), at the price that held at the receipt's deadline, or when the challenge's window
    /// closed if that was earlier. Credits the challenger's ether. If the bond pays less than is due, the rest can be
    /// resolved for one `unbondWindow` once the bond is larger. Later it could drain the bond of another operator.
    /// @param receipt The challenged receipt.
    function resolveOmission(Receipt calldata receipt) external;

    /// @notice Sends the caller the ether of its upheld challenges.
    function withdrawEther() external;

    /// @notice Returns the ether that a challenger can withdraw.
    /// @param challenger Account that challenged.
    /// @return Amount in wei.
    function etherOf(address challenger) external view returns (uint256);

    /// @notice Returns the number of posted epochs.
    /// @param pool Id of the pool.
    /// @return Number of epochs, including disabled ones.
    function epochsOf(uint256 pool) external view returns (uint64);

    /// @notice Returns the header hash of the newest epoch.
    /// @param pool Id of the pool.
    /// @return Hash of the newest header; zero before the first epoch and after a disabled one.
    function headOf(uint256 pool) external view returns (bytes32);

    /// @notice Returns whether the arbiter disabled the epoch with a header because that is false.
    /// @param headerHash Hash of the header.
    /// @return Whether its attesters can be slashed.
    function wasRefuted(bytes32 headerHash) external view returns (bool);

    /// @notice Returns whether a record is that of a kept epoch that is not disabled.
    /// @param pool Id of the pool.
    /// @param record Record to check.
    /// @return Whether the hash of the record is stored.
    function isPosted(uint256 pool, EpochRecord calldata record) external view returns (bool);

    /// @notice Returns the totals of a pool.
    /// @param pool Id of the pool.
    /// @return Totals of the pool.
    function getSettlement(uint256 pool) external view returns (Settlement memory);

    /// @notice Returns what a contributor has claimed in a pool.
    /// @param pool Id of the pool.
    /// @param contributor Account that earned it.
    /// @return Amount in the token's smallest unit.
    function claimedOf(uint256 pool, address contributor) external view returns (uint256);

    /// @notice Returns what the operator's bond has paid a contributor for receipts of final epochs.
    /// @param pool Id of the pool.
    /// @param contributor Account that is paid.
    /// @return Amount that is deducted from its next claims, in the token's smallest unit.
    function deductionOf(uint256 pool, address contributor) external view returns (uint256);

    /// @notice Returns the account that receives a contributor's rewards in a pool.
    /// @param pool Id of the pool.
    /// @param contributor Account that earns the rewards.
    /// @return The payee; the contributor itself unless it named another account.
    function payeeOf(uint256 pool, address contributor) external view returns (address);

    /// @notice Returns the tokens that the ledger holds for a pool, without credits.
    /// @param pool Id of the pool.
    /// @return Amount in the token's smallest unit.
    function escrowOf(uint256 pool) external view returns (uint256);

    /// @notice Returns the part of the escrow that epochs have reserved and nobody has claimed.
    /// @param pool Id of the pool.
    /// @return Amount in the token's smallest unit.
    function owedOf(uint256 pool) external view returns (uint256);

    /// @notice Returns the challenge of a receipt.
    /// @param receiptHash Struct hash of the receipt.
    /// @return The challenge; its state is None if the receipt was never challenged.
    function getChallenge(bytes32 receiptHash) external view returns (Challenge memory);

    /// @notice Returns the EIP-712 digest that the signer signs to promise inclusion.
    /// @param receiptHash Struct hash of the receipt.
    /// @param signedAt Unix time in seconds at which the signer signs.
    /// @param dueBy Unix time in seconds until which the receipt must be in a posted epoch.
    /// @return EIP-712 digest in the domain of this contract.
    function digestCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 dueBy)
        external
        view
        returns (bytes32);

    /// @notice Returns the EIP-712 digest that validators sign to attest an epoch header.
    /// @param header The header.
    /// @return EIP-712 digest in the domain of this contract.
    function digestHeader(EpochHeader calldata header) external view returns (bytes32);

    /// @notice Returns the EIP-712 struct hash of a countersignature.
    /// @param receiptHash Struct hash of the receipt.
    /// @param signedAt Unix time in seconds at which the signer signs.
    /// @param dueBy Unix time in seconds until which the receipt must be in a posted epoch.
    /// @return EIP-712 struct hash.
    function hashCountersignature(bytes32 receiptHash, uint64 signedAt, uint64 dueBy)
        external
        pure
        returns (bytes32);

    /// @notice Returns the hash of a leaf of the work tree.
    /// @param leaf The leaf.
    /// @return Double keccak256 of the ABI-encoded leaf.
    function hashWorkLeaf(WorkLeaf calldata leaf) external pure returns (bytes32);

    /// @notice Returns the hash of a leaf of the reward tree.
    /// @param chainId Id of the chain that the ledger is on.
    /// @param ledger Address of the ledger.
    /// @param pool Id of the pool.
    /// @param contributor Account that is paid.
    /// @param cumulative Total reward of the contributor in the pool.
    /// @return Double keccak256 of the ABI-encoded fields.
    function hashRewardLeaf(uint256 chainId, address ledger, uint256 pool, address contributor, uint256 cumulative)
        external
        pure
        returns (bytes32);

    /// @notice Returns the hash of an epoch header.
    /// @param header The header.
    /// @return EIP-712 struct hash.
    function hashHeader(EpochHeader calldata header) external pure returns (bytes32);
}
