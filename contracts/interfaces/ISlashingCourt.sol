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

/// What is stored of a case, in one word.
struct Case {
    /// What is locked, and taken if the case is executed.
    uint96 amount;
    /// Unix seconds, until when the arbiter may veto and from when anyone may execute.
    uint64 vetoUntil;
    CaseState state;
    /// Which check failed; a number of the protocol, not of the contracts.
    uint8 reason;
    /// The span whose cap the lock counts against, as StakeManager numbers spans.
    uint32 span;
}

/// Who is accused of what: names a case.  A receipt's hash fixes the other three, and CaseOpened tells all four.
struct Accusation {
    bytes32 receiptHash;
    uint256 pool;
    address node;
    address contributor;
}

/// A validator's signed verdict "reject, hard" on the receipt at hand.  The other fields of Verdict follow from the
/// receipt.
struct Finding {
    address validator;
    /// Unix seconds, until when it may open a case.
    uint64 deadline;
    uint64 units;
    bytes32 evidenceHash;
    bytes signature;
}

/// Due process: a quorum of signed hard verdicts locks stake, the arbiter may veto, then anyone executes.  Who is
/// slashed has signed the receipt, through its node; who calls earns nothing.  A case that nobody executes within
/// GRACE after the veto window lapses.  Validators whose case was vetoed pay for it from their bonds.
///
/// Nodes and validators are plain keys: their signatures are 65 bytes with s in the lower half, else OpenZeppelin's
/// ECDSA errors come.
interface ISlashingCourt {
    event CaseOpened(
        bytes32 indexed receiptHash,
        uint256 indexed pool,
        address indexed node,
        address contributor,
        uint8 reason,
        uint256 amount,
        uint256 vetoUntil
    );
    event CaseVetoed(bytes32 indexed receiptHash, uint256 indexed pool, address indexed node);
    event CaseExecuted(
        bytes32 indexed receiptHash, uint256 indexed pool, address indexed node, address contributor, uint256 amount
    );
    event CaseLapsed(bytes32 indexed receiptHash, uint256 indexed pool, address indexed node);
    event SignerSlashed(
        bytes32 indexed receiptHash, uint256 indexed pool, address indexed validator, uint256 amount
    );
    event EquivocationSlashed(
        uint256 indexed pool,
        address indexed node,
        address indexed contributor,
        uint256 task,
        uint256 lease,
        uint256 amount
    );

    error QuorumNotReached(uint256 findings, uint256 quorum);
    /// The receipt has had its case, whatever came of it.
    error CaseExists(bytes32 receiptHash);
    error FindingExpired(uint256 index);
    error NotValidator(uint256 pool, address account);
    /// A verdict has weight only while its signer has enough to lose.
    error BondTooSmall(address validator, uint256 bond, uint256 required);
    /// Findings stand in the ascending order of their validators, which also makes them distinct.
    error UnorderedValidators(uint256 index);
    /// The signature is another account's, or over other fields: other work, reason, outcome, severity, chain or
    /// contract.
    error InvalidSignature(address account);
    /// The receipt's contributor does not answer for its node.
    error NotLiable(address node, address contributor);
    error NotArbiter(uint256 pool, address account);
    error WrongCaseState(bytes32 receiptHash, CaseState state);
    error WindowClosed(uint256 closedAt);
    error WindowOpen(uint256 closesAt);
    /// The two receipts are not two claims of one node for one slot.
    error NotEquivocation();
    error AlreadySlashed();
    /// The validator has no bond left.
    error NothingToSlash();
    /// StakeManager names another court.
    error WrongDeployment();

    /// Opens a case and locks stake.  Anyone who has the signatures.
    /// @param reason The same in all findings.
    function propose(
        Receipt calldata receipt,
        bytes calldata nodeSignature,
        uint8 reason,
        Finding[] calldata findings
    ) external;

    /// Ends a case in the contributor's favour, within the veto window.  Arbiter only.
    function veto(Accusation calldata accusation) external;

    /// Burns the locked stake, after the veto window and before the case lapses.  Anyone.
    function execute(Accusation calldata accusation) external;

    /// Closes a case that nobody executed in time and frees the stake.  Anyone.
    function lapse(Accusation calldata accusation) external;

    /// Slashes a validator's bond for a finding on a receipt whose case was vetoed; once for each case.  Anyone.
    function slashSigner(Accusation calldata accusation, bytes32 workKey, Finding calldata finding) external;

    /// Slashes at once for two receipts of one node for one (pool, task, lease, policyVersion) with different work
    /// keys: a task's version is fixed, so another one is an order that the operator gave twice.  Anyone.
    function slashForEquivocation(
        Receipt calldata a,
        bytes calldata signatureA,
        Receipt calldata b,
        bytes calldata signatureB
    ) external;

    function getCase(Accusation calldata accusation) external view returns (Case memory);

    /// The EIP-712 digest that the node signs.
    function digestReceipt(Receipt calldata receipt) external view returns (bytes32);

    /// The EIP-712 digest that the validator signs.
    function digestVerdict(Verdict calldata verdict) external view returns (bytes32);

    /// The EIP-712 struct hash: the `receiptHash` of all other messages.
    function hashReceipt(Receipt calldata receipt) external pure returns (bytes32);

    /// The EIP-712 struct hash of a verdict.
    function hashVerdict(Verdict calldata verdict) external pure returns (bytes32);
}
