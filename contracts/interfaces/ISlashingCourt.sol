// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Attestation, EpochHeader, Receipt, Verdict} from "./ICoveyTypes.sol";

/// @notice State of a case.
enum CaseState {
    None,
    Locked,
    Vetoed,
    Slashed,
    Lapsed
}

/// @notice A slashing case, packed into one storage slot.
/// @param amount Stake that the case locked, which is burned if the case is executed.
/// @param vetoUntil Unix time in seconds before which the arbiter can veto, and from which anyone can execute.
/// @param state State of the case.
/// @param reason Number of the check that failed. The protocol defines the numbers; `slashFalseAccept` alone
/// interprets two of them.
/// @param span Span whose cap the lock counts against, as StakeManager numbers spans.
struct Case {
    uint96 amount;
    uint64 vetoUntil;
    CaseState state;
    uint8 reason;
    uint32 span;
}

/// @notice Identifies a case by the receipt and the accused.
/// @dev The receipt hash determines the other three fields. The event CaseOpened contains all four.
/// @param receiptHash Struct hash of the receipt.
/// @param pool Id of the pool.
/// @param node Node that signed the receipt.
/// @param contributor Contributor that vouches for the node.
struct Accusation {
    bytes32 receiptHash;
    uint256 pool;
    address node;
    address contributor;
}

/// @notice A validator's signed verdict "reject, hard" or "accept, hard" on the receipt at hand.
/// @dev The other fields of Verdict follow from the receipt, the function and the reason of the case.
/// @param validator Account that signed.
/// @param deadline Unix time in seconds until which the verdict can open a case.
/// @param units Completion tokens, as the validator counts them.
/// @param evidenceHash Hash of the stored evidence.
/// @param signature The validator's 65-byte ECDSA signature over the verdict.
struct Finding {
    address validator;
    uint64 deadline;
    uint64 units;
    bytes32 evidenceHash;
    bytes signature;
}

/// @title ISlashingCourt
/// @notice Slashes contributors by due process: a quorum of signed hard verdicts locks stake, the arbiter can veto, and
/// then anyone can execute the case.
/// @dev Accused: a contributor is slashed only for a receipt that its own node signed. The caller earns nothing.
///
/// Exits: a case that nobody executes within GRACE after the veto window lapses.
///
/// Validators lose their bond for signing a case that is vetoed, for accepting work whose case is executed, and for
/// attesting an epoch that the arbiter disables as false. In each of these, the arbiter's word decides.
///
/// Signatures: nodes and validators are plain keys. A signature has 65 bytes with s in the lower half of the curve
/// order. Any other form reverts with an error of OpenZeppelin's ECDSA library.
interface ISlashingCourt {
    /// @notice A case was opened, and stake was locked.
    /// @param receiptHash Struct hash of the receipt.
    /// @param pool Id of the pool.
    /// @param node Node that signed the receipt.
    /// @param contributor Contributor whose stake is locked.
    /// @param reason Number of the check that failed.
    /// @param amount Stake that the case locked.
    /// @param vetoUntil Unix time in seconds before which the arbiter can veto, and from which anyone can execute.
    event CaseOpened(
        bytes32 indexed receiptHash,
        uint256 indexed pool,
        address indexed node,
        address contributor,
        uint8 reason,
        uint256 amount,
        uint256 vetoUntil
    );

    /// @notice The arbiter ended a case in the contributor's favour.
    /// @param receiptHash Struct hash of the receipt.
    /// @param pool Id of the pool.
    /// @param node Node that signed the receipt.
    event CaseVetoed(bytes32 indexed receiptHash, uint256 indexed pool, address indexed node);

    /// @notice A case was executed, and its stake was burned.
    /// @param receiptHash Struct hash of the receipt.
    /// @param pool Id of the pool.
    /// @param node Node that signed the receipt.
    /// @param contributor Contributor whose stake was burned.
    /// @param amount Amount that was burned.
    event CaseExecuted(
        bytes32 indexed receiptHash, uint256 indexed pool, address indexed node, address contributor, uint256 amount
    );

    /// @notice A case that nobody executed in time was closed, and its stake was freed.
    /// @param receiptHash Struct hash of the receipt.
    /// @param pool Id of the pool.
    /// @param node Node that signed the receipt.
    event CaseLapsed(bytes32 indexed receiptHash, uint256 indexed pool, address indexed node);

    /// @notice A validator was slashed for signing a case that was vetoed.
    /// @param receiptHash Struct hash of the receipt.
    /// @param pool Id of the pool.
    /// @param validator Account that signed.
    /// @param amount Amount that was burned.
    event SignerSlashed(
        bytes32 indexed receiptHash, uint256 indexed pool, address indexed validator, uint256 amount
    );

    /// @notice A validator was slashed for accepting work whose case was executed.
    /// @param receiptHash Struct hash of the receipt.
    /// @param pool Id of the pool.
    /// @param validator Account that signed.
    /// @param amount Amount that was burned.
    event FalseAcceptSlashed(
        bytes32 indexed receiptHash, uint256 indexed pool, address indexed validator, uint256 amount
    );

    /// @notice A validator was slashed for attesting the header of an epoch that the arbiter disabled as false.
    /// @param headerHash Hash of the header.
    /// @param pool Id of the pool.
    /// @param validator Account that signed.
    /// @param amount Amount that was burned.
    event AttesterSlashed(
        bytes32 indexed headerHash, uint256 indexed pool, address indexed validator, uint256 amount
    );

    /// @notice A contributor was slashed for two contradicting receipts of its node.
    /// @param pool Id of the pool.
    /// @param node Node that signed both receipts.
    /// @param contributor Contributor whose stake was burned.
    /// @param task Task of both receipts.
    /// @param lease Lease of both receipts.
    /// @param amount Amount that was burned.
    event EquivocationSlashed(
        uint256 indexed pool,
        address indexed node,
        address indexed contributor,
        uint256 task,
        uint256 lease,
        uint256 amount
    );

    /// @notice Fewer findings were given than the pool's quorum requires.
    /// @param findings Number of findings.
    /// @param quorum Number of findings that are required.
    error QuorumNotReached(uint256 findings, uint256 quorum);

    /// @notice The receipt already had its case, whatever the result.
    /// @param receiptHash Struct hash of the receipt.
    error CaseExists(bytes32 receiptHash);

    /// @notice A finding can no longer open a case.
    /// @param index Index of the finding.
    error FindingExpired(uint256 index);

    /// @notice The findings are not in ascending order of their validators.
    /// @dev The strict order also makes the validators distinct.
    /// @param index Index of the first finding that is out of order.
    error UnorderedValidators(uint256 index);

    /// @notice The signature was not made by this account over these fields.
    /// @dev It may be over another work key, reason, outcome or severity, or for another chain or contract.
    /// @param account Account that should have signed.
    error InvalidSignature(address account);

    /// @notice The contributor is not liable for the node.
    /// @param node Node that the receipt names.
    /// @param contributor Contributor that the receipt names.
    error NotLiable(address node, address contributor);

    /// @notice The caller is not the arbiter of the pool.
    /// @param pool Id of the pool.
    /// @param account The caller.
    error NotArbiter(uint256 pool, address account);

    /// @notice The case is not in the state that this function requires.
    /// @param receiptHash Struct hash of the receipt.
    /// @param state State of the case; None if the case does not exist.
    error WrongCaseState(bytes32 receiptHash, CaseState state);

    /// @notice The window in which this could be done has closed.
    /// @param closedAt Unix time in seconds at which it closed.
    error WindowClosed(uint256 closedAt);

    /// @notice The window before this can be done is still open.
    /// @param closesAt Unix time in seconds at which it closes.
    error WindowOpen(uint256 closesAt);

    /// @notice The two receipts are not contradicting claims of one node for one task and lease.
    error NotEquivocation();

    /// @notice The arbiter has not disabled the epoch with this header as false.
    /// @param headerHash Hash of the header.
    error NotRefuted(bytes32 headerHash);

    /// @notice A replay of the work cannot show what this case is about, so an accept may honestly be wrong.
    /// @param reason Reason of the case: another submission has the same proof, or contradicts this one.
    error NotReplayable(uint8 reason);

    /// @notice The validator was already slashed for this case or header, or the node for this task and lease.
    error AlreadySlashed();

    /// @notice The validator has no bond left.
    error NothingToSlash();

    /// @notice StakeManager names another court.
    error WrongDeployment();

    /// @notice Opens a case and locks the contributor's stake.
    /// @dev Anyone with the signatures can call this.
    /// @param receipt Receipt of the rejected work.
    /// @param nodeSignature The node's signature over the receipt.
    /// @param reason Number of the check that failed, the same in all findings.
    /// @param findings Findings of at least a quorum of validators, in ascending order of their addresses.
    function propose(
        Receipt calldata receipt,
        bytes calldata nodeSignature,
        uint8 reason,
        Finding[] calldata findings
    ) external;

    /// @notice Ends a case in the contributor's favour.
    /// @dev Arbiter only, within the veto window.
    /// @param accusation Identifies the case.
    function veto(Accusation calldata accusation) external;

    /// @notice Burns the locked stake.
    /// @dev Anyone can call this after the veto window and before the case lapses.
    /// @param accusation Identifies the case.
    function execute(Accusation calldata accusation) external;

    /// @notice Closes a case that nobody executed in time, and frees its stake.
    /// @dev Anyone can call this from GRACE after the veto window on.
    /// @param accusation Identifies the case.
    function lapse(Accusation calldata accusation) external;

    /// @notice Slashes a validator's bond for a finding on a receipt whose case was vetoed.
    /// @dev Anyone can call this. Each validator is slashed once for each case, also if its finding was not needed for
    /// the quorum. The deadline of the finding does not matter here.
    /// @param accusation Identifies the case.
    /// @param workKey Work key of the receipt.
    /// @param finding The validator's finding. Its signature must cover the reason of the case.
    function slashSigner(Accusation calldata accusation, bytes32 workKey, Finding calldata finding) external;

    /// @notice Slashes a validator's bond for accepting work whose case was executed.
    /// @dev Anyone can call this. Only an accept of severity "hard" counts: by it the validator says that it has
    /// repeated all of the work. An accept of severity "none" is given after a part, and may honestly be wrong. So may
    /// any accept of work that was rejected for what a replay cannot show (NotReplayable). Each validator is slashed
    /// once for each case. The deadline of the finding does not matter here.
    /// @param accusation Identifies the case.
    /// @param workKey Work key of the receipt.
    /// @param finding The validator's verdict "accept, hard" on the receipt.
    function slashFalseAccept(Accusation calldata accusation, bytes32 workKey, Finding calldata finding) external;

    /// @notice Slashes a validator's bond for attesting the header of an epoch that the arbiter disabled as false.
    /// @dev Anyone can call this. Only the epoch that the arbiter named counts (see IEpochLedger.wasRefuted). Each
    /// validator is slashed once for each header, by `signerPenalty`, also if its attestation was not posted.
    /// @param header Header of the false epoch.
    /// @param attestation The validator's signature over the header, in the domain of EpochLedger.
    function slashAttester(EpochHeader calldata header, Attestation calldata attestation) external;

    /// @notice Slashes a contributor at once for two receipts of its node for the same work with different files.
    /// @dev Anyone can call this. The receipts must agree in pool, task, lease, node, policy version and contributor,
    /// and differ in their work keys. A task's policy version is fixed, so receipts of two versions only show that the
    /// operator gave the order twice. There is one slash for each pool, task, lease and node, without veto window and
    /// at the heavy rate.
    /// @param a First receipt.
    /// @param signatureA The node's signature over `a`.
    /// @param b Second receipt.
    /// @param signatureB The node's signature over `b`.
    function slashForEquivocation(
        Receipt calldata a,
        bytes calldata signatureA,
        Receipt calldata b,
        bytes calldata signatureB
    ) external;

    /// @notice Returns a case.
    /// @param accusation Identifies the case.
    /// @return The case; its state is None if the case does not exist.
    function getCase(Accusation calldata accusation) external view returns (Case memory);

    /// @notice Returns the EIP-712 digest that a node signs.
    /// @param receipt The receipt.
    /// @return EIP-712 digest in the domain of this contract.
    function digestReceipt(Receipt calldata receipt) external view returns (bytes32);

    /// @notice Returns the EIP-712 digest that a validator signs.
    /// @param verdict The verdict.
    /// @return EIP-712 digest in the domain of this contract.
    function digestVerdict(Verdict calldata verdict) external view returns (bytes32);

    /// @notice Returns the EIP-712 struct hash of a receipt, the `receiptHash` of all other messages.
    /// @param receipt The receipt.
    /// @return EIP-712 struct hash.
    function hashReceipt(Receipt calldata receipt) external pure returns (bytes32);

    /// @notice Returns the EIP-712 struct hash of a verdict.
    /// @param verdict The verdict.
    /// @return EIP-712 struct hash.
    function hashVerdict(Verdict calldata verdict) external pure returns (bytes32);
}
