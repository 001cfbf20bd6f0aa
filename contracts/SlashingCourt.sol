// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {Receipt, Verdict} from "./interfaces/ICoveyTypes.sol";
import {INodeRegistry} from "./interfaces/INodeRegistry.sol";
import {IPoolRegistry, PoolTerms} from "./interfaces/IPoolRegistry.sol";
import {Case, CaseState, ISlashingCourt} from "./interfaces/ISlashingCourt.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";

/// The prose is in ISlashingCourt.
contract SlashingCourt is ISlashingCourt, EIP712 {
    uint8 private constant REJECT = 2;
    uint8 private constant HARD = 2;

    IPoolRegistry public immutable POOLS;
    INodeRegistry public immutable NODES;
    IStakeManager public immutable STAKES;

    uint256 public caseCount;
    mapping(bytes32 receiptHash => uint256) public caseOf;
    mapping(uint256 caseId => Case) private _cases;
    mapping(bytes32 slot => bool) private _equivocations;

    constructor(IPoolRegistry pools, INodeRegistry nodes, IStakeManager stakes) EIP712("Covey", "1") {
        POOLS = pools;
        NODES = nodes;
        STAKES = stakes;
    }

    function propose(
        Receipt calldata receipt,
        bytes calldata nodeSignature,
        Verdict[] calldata verdicts,
        bytes[] calldata signatures
    ) external returns (uint256 caseId) {
        bytes32 receiptHash = CoveyTypes.hashReceipt(receipt);
        if (caseOf[receiptHash] != 0) revert CaseExists(caseOf[receiptHash]);
        _requireLiable(receipt, nodeSignature);
        PoolTerms memory terms = POOLS.getTerms(receipt.pool);
        if (verdicts.length < terms.quorum) revert QuorumNotReached(verdicts.length, terms.quorum);
        if (verdicts.length != signatures.length) revert LengthMismatch(verdicts.length, signatures.length);
        _requireVerdicts(receipt, receiptHash, verdicts, signatures);

        caseId = ++caseCount;
        caseOf[receiptHash] = caseId;
        // The lock comes first, for the event says what it holds.  StakeManager calls nobody back.
        uint256 amount = STAKES.lock(receipt.pool, receipt.contributor, terms.slashAmount, caseId);
        _cases[caseId] = Case({
            pool: receipt.pool,
            node: receipt.node,
            contributor: receipt.contributor,
            receiptHash: receiptHash,
            reason: verdicts[0].reason,
            state: CaseState.Locked,
            vetoUntil: uint64(block.timestamp + terms.vetoWindow),
            expiresAt: uint64(STAKES.getLock(caseId).expiresAt),
            amount: amount
        });

        emit CaseOpened(
            caseId, receipt.pool, receipt.node, receipt.contributor, receiptHash, verdicts[0].reason, amount
        );
    }

    function veto(uint256 caseId) external {
        Case storage open = _requireOpen(caseId);
        if (msg.sender != POOLS.getTerms(open.pool).arbiter) revert NotArbiter(open.pool, msg.sender);
        if (block.timestamp >= open.vetoUntil) revert WindowClosed(open.vetoUntil);

        open.state = CaseState.Vetoed;

        emit CaseVetoed(caseId, open.pool, open.node);

        STAKES.release(caseId);
    }

    function execute(uint256 caseId) external {
        Case storage open = _requireOpen(caseId);
        if (block.timestamp < open.vetoUntil) revert WindowOpen(open.vetoUntil);
        if (block.timestamp >= open.expiresAt) revert WindowClosed(open.expiresAt);

        open.state = CaseState.Slashed;

        emit CaseExecuted(caseId, open.pool, open.node, open.contributor, open.amount);

        STAKES.slash(caseId);
    }

    function lapse(uint256 caseId) external {
        Case storage open = _requireOpen(caseId);
        if (block.timestamp < open.expiresAt) revert WindowOpen(open.expiresAt);

        open.state = CaseState.Lapsed;

        emit CaseLapsed(caseId, open.pool, open.node);

        // Anyone may have freed the stake already, by releaseExpired.
        if (STAKES.getLock(caseId).expiresAt != 0) STAKES.release(caseId);
    }

    function slashForEquivocation(
        Receipt calldata a,
        bytes calldata signatureA,
        Receipt calldata b,
        bytes calldata signatureB
    ) external {
        bool isSameSlot = a.pool == b.pool && a.task == b.task && a.lease == b.lease && a.node == b.node;
        if (!isSameSlot || a.contributor != b.contributor || a.workKey == b.workKey) revert NotEquivocation();
        _requireLiable(a, signatureA);
        _requireLiable(b, signatureB);
        bytes32 slot = keccak256(abi.encode(a.pool, a.task, a.lease, a.node));
        if (_equivocations[slot]) revert AlreadySlashed(a.pool, a.task, a.lease, a.node);

        _equivocations[slot] = true;
        uint256 amount = STAKES.slashNow(a.pool, a.contributor, POOLS.getTerms(a.pool).slashAmount);

        emit EquivocationSlashed(a.pool, a.node, a.contributor, a.task, a.lease, amount);
    }

    function getCase(uint256 caseId) external view returns (Case memory) {
        return _cases[caseId];
    }

    function hashReceipt(Receipt calldata receipt) external pure returns (bytes32) {
        return CoveyTypes.hashReceipt(receipt);
    }

    function digestReceipt(Receipt calldata receipt) public view returns (bytes32) {
        return _hashTypedDataV4(CoveyTypes.hashReceipt(receipt));
    }

    function hashVerdict(Verdict calldata verdict) external pure returns (bytes32) {
        return CoveyTypes.hashVerdict(verdict);
    }

    function digestVerdict(Verdict calldata verdict) public view returns (bytes32) {
        return _hashTypedDataV4(CoveyTypes.hashVerdict(verdict));
    }

    function _requireOpen(uint256 caseId) private view returns (Case storage open) {
        open = _cases[caseId];
        if (open.state != CaseState.Locked) revert WrongCaseState(caseId, open.state);
    }

    function _requireLiable(Receipt calldata receipt, bytes calldata signature) private view {
        _requireSignature(receipt.node, digestReceipt(receipt), signature);
        if (!NODES.isLiable(receipt.pool, receipt.node, receipt.contributor)) {
            revert NotLiable(receipt.node, receipt.contributor);
        }
    }

    function _requireVerdicts(
        Receipt calldata receipt,
        bytes32 receiptHash,
        Verdict[] calldata verdicts,
        bytes[] calldata signatures
    ) private view {
        address last = address(0);
        for (uint256 i = 0; i < verdicts.length; ++i) {
            Verdict calldata verdict = verdicts[i];
            bool isSameWork = verdict.pool == receipt.pool && verdict.receiptHash == receiptHash
                && verdict.workKey == receipt.workKey && verdict.reason == verdicts[0].reason;
            if (!isSameWork) revert VerdictMismatch(i);
            if (verdict.outcome != REJECT || verdict.severity != HARD) revert NotHardReject(i);
            if (block.timestamp > verdict.deadline) revert VerdictExpired(i);
            if (verdict.validator <= last) revert UnorderedValidators(i);
            if (!POOLS.isValidator(receipt.pool, verdict.validator)) revert NotValidator(receipt.pool, verdict.validator);
            _requireSignature(verdict.validator, digestVerdict(verdict), signatures[i]);
            last = verdict.validator;
        }
    }

    function _requireSignature(address account, bytes32 digest, bytes calldata signature) private view {
        if (!SignatureChecker.isValidSignatureNow(account, digest, signature)) revert InvalidSignature(account);
    }
}
