// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Receipt, Verdict} from "./ICoveyTypes.sol";

enum CaseState {
    None,
    Locked,
    Vetoed,
    Slashed,
    Lapsed
}

struct Case {
    uint256 pool;
    address node;
    address contributor;
    bytes32 receiptHash;
    uint8 reason;
    CaseState state;
    /// Unix seconds, until when the arbiter may veto and from when anyone may execute.
    uint64 vetoUntil;
    /// Unix seconds, until when the case may be executed; then it lapses.
    uint64 expiresAt;
    /// What is locked, and taken if the case is executed.
    uint256 amount;
}

/// Due process: a quorum of signed hard verdicts locks stake, the arbiter may veto, then anyone executes.  Who is slashed
/// has signed the receipt, through its node; who calls earns nothing.
interface ISlashingCourt {
    event CaseOpened(
        uint256 indexed caseId,
        uint256 indexed pool,
        address indexed node,
        address contributor,
        bytes32 receiptHash,
        uint8 reason,
        uint256 amount
    );
    event CaseVetoed(uint256 indexed caseId, uint256 indexed pool, address indexed node);
    event CaseExecuted(
        uint256 indexed caseId, uint256 indexed pool, address indexed node, address contributor, uint256 amount
    );
    event CaseLapsed(uint256 indexed caseId, uint256 indexed pool, address indexed node);
    event EquivocationSlashed(
        uint256 indexed pool,
        address indexed node,
        address indexed contributor,
        uint256 task,
        uint256 lease,
        uint256 amount
    );

    error QuorumNotReached(uint256 verdicts, uint256 quorum);
    error LengthMismatch(uint256 verdicts, uint256 signatures);
    /// The receipt has had its case, whatever came of it.
    error CaseExists(uint256 caseId);
    /// The verdict is about other work, or gives another reason than the first.
    error VerdictMismatch(uint256 index);
    /// Only a reject that is hard opens a case.
    error NotHardReject(uint256 index);
    error VerdictExpired(uint256 index);
    error NotValidator(uint256 pool, address account);
    /// Verdicts stand in the ascending order of their validators, which also makes them distinct.
    error UnorderedValidators(uint256 index);
    error InvalidSignature(address account);
    /// The receipt's contributor does not answer for its node.
    error NotLiable(address node, address contributor);
    error NotArbiter(uint256 pool, address account);
    error WrongCaseState(uint256 caseId, CaseState state);
    error WindowClosed(uint256 closedAt);
    error WindowOpen(uint256 closesAt);
    /// The two receipts are not two claims of one node for one slot.
    error NotEquivocation();
    error AlreadySlashed(uint256 pool, uint256 task, uint256 lease, address node);

    /// Opens a case and locks stake.  Anyone who has the signatures.
    function propose(
        Receipt calldata receipt,
        bytes calldata nodeSignature,
        Verdict[] calldata verdicts,
        bytes[] calldata signatures
    ) external returns (uint256 caseId);

    /// Ends a case in the contributor's favour, within the veto window.  Arbiter only.
    function veto(uint256 caseId) external;

    /// Burns the locked stake, after the veto window and before the case lapses.  Anyone.
    function execute(uint256 caseId) external;

    /// Closes a case that nobody executed in time and frees the stake.  Anyone.
    function lapse(uint256 caseId) external;

    /// Slashes at once for two receipts of one node for one (pool, task, lease) with different work keys.  Anyone.
    function slashForEquivocation(
        Receipt calldata a,
        bytes calldata signatureA,
        Receipt calldata b,
        bytes calldata signatureB
    ) external;

    function getCase(uint256 caseId) external view returns (Case memory);

    /// The case of a receipt; 0 where there is none.
    function caseOf(bytes32 receiptHash) external view returns (uint256);

    /// The EIP-712 struct hash: the `receiptHash` of all other messages.
    function hashReceipt(Receipt calldata receipt) external pure returns (bytes32);

    /// The EIP-712 digest that the node signs.
    function digestReceipt(Receipt calldata receipt) external view returns (bytes32);

    /// The EIP-712 struct hash of a verdict.
    function hashVerdict(Verdict calldata verdict) external pure returns (bytes32);

    /// The EIP-712 digest that the validator signs.
    function digestVerdict(Verdict calldata verdict) external view returns (bytes32);
}
