// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {Attestation, EpochHeader, Receipt, Verdict} from "./interfaces/ICoveyTypes.sol";
import {IEpochLedger} from "./interfaces/IEpochLedger.sol";
import {INodeRegistry} from "./interfaces/INodeRegistry.sol";
import {IPoolRegistry, SlashingTerms} from "./interfaces/IPoolRegistry.sol";
import {Accusation, Case, CaseState, Finding, ISlashingCourt} from "./interfaces/ISlashingCourt.sol";
import {Hold, IStakeManager} from "./interfaces/IStakeManager.sol";
import {StakeManager} from "./StakeManager.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title SlashingCourt
/// @notice Slashes contributors by due process, and validators that signed what the arbiter refuted.
/// @dev See ISlashingCourt for the rules.
contract SlashingCourt is ISlashingCourt, EIP712 {
    /// @dev Outcome "accept" of a verdict.
    uint8 private constant _ACCEPT = 1;
    /// @dev Outcome "reject" of a verdict.
    uint8 private constant _REJECT = 2;
    /// @dev Severity "hard" of a verdict.
    uint8 private constant _HARD = 2;
    /// @dev Reason of a verdict that accepts.
    uint8 private constant _NO_REASON = 0;
    /// @dev Reason "another submission has the same proof", which a replay of one submission cannot show.
    uint8 private constant _REPLAYED_PROOF = 8;
    /// @dev Reason "another receipt contradicts this one", which a replay cannot show either.
    uint8 private constant _EQUIVOCATION = 9;
    /// @notice Time after the veto window in which a case can be executed. After that it can only lapse.
    uint256 public constant GRACE = 1 days;

    /// @notice Registry of the pools.
    IPoolRegistry public immutable POOLS;
    /// @notice Registry of the nodes.
    INodeRegistry public immutable NODES;
    /// @notice Contract that holds the stake.
    IStakeManager public immutable STAKES;
    /// @notice Contract in whose EIP-712 domain validators attest headers.
    IEpochLedger public immutable LEDGER;

    /// @dev Cases by the keccak256 of their ABI-encoded accusation.
    mapping(bytes32 accusation => Case) private _cases;
    /// @dev Validators that were slashed for a verdict on the receipt of a case, or for attesting a header.
    mapping(bytes32 accusationOrHeader => mapping(address validator => bool)) private _slashedSigners;
    /// @dev Whether a node was slashed for equivocation, by the keccak256 of (pool, task, lease, node).
    mapping(bytes32 slot => bool) private _equivocations;

    /// @dev Reverts unless StakeManager names this contract as its court.
    constructor(IPoolRegistry pools, INodeRegistry nodes, StakeManager stakes) EIP712("Covey", "3") {
        if (stakes.COURT() != address(this)) revert WrongDeployment();
        POOLS = pools;
        NODES = nodes;
        STAKES = stakes;
        LEDGER = IEpochLedger(stakes.LEDGER());
    }

    /// @inheritdoc ISlashingCourt
    function propose(
        Receipt calldata receipt,
        bytes calldata nodeSignature,
        uint8 reason,
        Finding[] calldata findings
    ) external {
        bytes32 receiptHash = CoveyTypes.hashReceipt(receipt);
        _requireLiable(receipt, receiptHash, nodeSignature);
        bytes32 key = keccak256(abi.encode(receiptHash, receipt.pool, receipt.node, receipt.contributor));
        if (_cases[key].state != CaseState.None) revert CaseExists(receiptHash);
        SlashingTerms memory terms = POOLS.getSlashingTerms(receipt.pool);
        if (findings.length < terms.quorum) revert QuorumNotReached(findings.length, terms.quorum);
        _requireFindings(receipt.pool, receiptHash, receipt.workKey, reason, findings, terms.validatorBond);

        uint256 vetoUntil = block.timestamp + terms.vetoWindow;
        // The lock comes first because it returns the amount. StakeManager is part of this deployment, and `lock` calls
        // only PoolRegistry.
        // slither-disable-next-line reentrancy-no-eth,reentrancy-events
        Hold memory held = STAKES.lock(receipt.pool, receipt.contributor, false);
        _cases[key] = Case(held.amount, uint64(vetoUntil), CaseState.Locked, reason, held.span);

        emit CaseOpened(
            receiptHash, receipt.pool, receipt.node, receipt.contributor, reason, held.amount, vetoUntil
        );
    }

    /// @inheritdoc ISlashingCourt
    function veto(Accusation calldata accusation) external {
        Case storage open = _requireOpen(accusation);
        if (msg.sender != POOLS.arbiterOf(accusation.pool)) revert NotArbiter(accusation.pool, msg.sender);
        if (block.timestamp >= open.vetoUntil) revert WindowClosed(open.vetoUntil);

        open.state = CaseState.Vetoed;

        emit CaseVetoed(accusation.receiptHash, accusation.pool, accusation.node);

        STAKES.release(accusation.pool, accusation.contributor, Hold(open.amount, open.span));
    }

    /// @inheritdoc ISlashingCourt
    function execute(Accusation calldata accusation) external {
        Case storage open = _requireOpen(accusation);
        if (block.timestamp < open.vetoUntil) revert WindowOpen(open.vetoUntil);
        if (block.timestamp >= open.vetoUntil + GRACE) revert WindowClosed(open.vetoUntil + GRACE);

        open.state = CaseState.Slashed;
        uint96 amount = open.amount;

        emit CaseExecuted(
            accusation.receiptHash, accusation.pool, accusation.node, accusation.contributor, amount
        );

        STAKES.slash(accusation.pool, accusation.contributor, amount);
    }

    /// @inheritdoc ISlashingCourt
    function lapse(Accusation calldata accusation) external {
        Case storage open = _requireOpen(accusation);
        if (block.timestamp < open.vetoUntil + GRACE) revert WindowOpen(open.vetoUntil + GRACE);

        open.state = CaseState.Lapsed;

        emit CaseLapsed(accusation.receiptHash, accusation.pool, accusation.node);

        STAKES.release(accusation.pool, accusation.contributor, Hold(open.amount, open.span));
    }

    /// @inheritdoc ISlashingCourt
    function slashSigner(Accusation calldata accusation, bytes32 workKey, Finding calldata finding) external {
        bytes32 key = keccak256(abi.encode(accusation));
        Case storage overturned = _cases[key];
        if (overturned.state != CaseState.Vetoed) {
            revert WrongCaseState(accusation.receiptHash, overturned.state);
        }
        _requireSignature(accusation.pool, accusation.receiptHash, workKey, _REJECT, overturned.reason, finding);

        uint256 amount = _slashValidator(key, accusation.pool, finding.validator, false);

        emit SignerSlashed(accusation.receiptHash, accusation.pool, finding.validator, amount);
    }

    /// @inheritdoc ISlashingCourt
    function slashFalseAccept(Accusation calldata accusation, bytes32 workKey, Finding calldata finding) external {
        bytes32 key = keccak256(abi.encode(accusation));
        Case storage executed = _cases[key];
        if (executed.state != CaseState.Slashed) revert WrongCaseState(accusation.receiptHash, executed.state);
        uint8 reason = executed.reason;
        if (reason == _REPLAYED_PROOF || reason == _EQUIVOCATION) revert NotReplayable(reason);
        _requireSignature(accusation.pool, accusation.receiptHash, workKey, _ACCEPT, _NO_REASON, finding);

        uint256 amount = _slashValidator(key, accusation.pool, finding.validator, true);

        emit FalseAcceptSlashed(accusation.receiptHash, accusation.pool, finding.validator, amount);
    }

    /// @inheritdoc ISlashingCourt
    function slashAttester(EpochHeader calldata header, Attestation calldata attestation) external {
        bytes32 headerHash = CoveyTypes.hashHeader(header);
        if (!LEDGER.wasRefuted(headerHash)) revert NotRefuted(headerHash);
        address validator = ECDSA.recover(LEDGER.digestHeader(header), attestation.r, attestation.vs);

        uint256 amount = _slashValidator(headerHash, header.pool, validator, false);

        emit AttesterSlashed(headerHash, header.pool, validator, amount);
    }

    /// @inheritdoc ISlashingCourt
    function slashForEquivocation(
        Receipt calldata a,
        bytes calldata signatureA,
        Receipt calldata b,
        bytes calldata signatureB
    ) external {
        bool isSameSlot = a.pool == b.pool && a.task == b.task && a.lease == b.lease && a.node == b.node
            && a.policyVersion == b.policyVersion;
        if (!isSameSlot || a.contributor != b.contributor || a.workKey == b.workKey) revert NotEquivocation();
        _requireLiable(a, CoveyTypes.hashReceipt(a), signatureA);
        _requireLiable(b, CoveyTypes.hashReceipt(b), signatureB);
        bytes32 slot = keccak256(abi.encode(a.pool, a.task, a.lease, a.node));
        if (_equivocations[slot]) revert AlreadySlashed();

        _equivocations[slot] = true;
        // The event needs the returned amount. StakeManager is part of this deployment, and the flag is already set.
        // slither-disable-next-line reentrancy-events
        uint96 amount = STAKES.lock(a.pool, a.contributor, true).amount;

        emit EquivocationSlashed(a.pool, a.node, a.contributor, a.task, a.lease, amount);

        STAKES.slash(a.pool, a.contributor, amount);
    }

    /// @inheritdoc ISlashingCourt
    function getCase(Accusation calldata accusation) external view returns (Case memory) {
        return _cases[keccak256(abi.encode(accusation))];
    }

    /// @inheritdoc ISlashingCourt
    function digestReceipt(Receipt calldata receipt) external view returns (bytes32) {
        return _hashTypedDataV4(CoveyTypes.hashReceipt(receipt));
    }

    /// @inheritdoc ISlashingCourt
    function digestVerdict(Verdict calldata verdict) external view returns (bytes32) {
        return _hashTypedDataV4(CoveyTypes.hashVerdict(verdict));
    }

    /// @inheritdoc ISlashingCourt
    function hashReceipt(Receipt calldata receipt) external pure returns (bytes32) {
        return CoveyTypes.hashReceipt(receipt);
    }

    /// @inheritdoc ISlashingCourt
    function hashVerdict(Verdict calldata verdict) external pure returns (bytes32) {
        return CoveyTypes.hashVerdict(verdict);
    }

    /// @dev Slashes a validator once for a case or a header. Reverts if it has nothing to lose, so that it can be
    /// slashed later.
    function _slashValidator(bytes32 key, uint256 pool, address validator, bool isFalseAccept)
        private
        returns (uint256 amount)
    {
        if (_slashedSigners[key][validator]) revert AlreadySlashed();

        _slashedSigners[key][validator] = true;
        // The events need the returned amount. StakeManager is part of this deployment, and the flag is already set.
        // slither-disable-next-line reentrancy-events
        amount = STAKES.slashValidator(pool, validator, isFalseAccept);
        if (amount == 0) revert NothingToSlash();
    }

    /// @dev Returns a case. Reverts unless it is locked.
    function _requireOpen(Accusation calldata accusation) private view returns (Case storage open) {
        open = _cases[keccak256(abi.encode(accusation))];
        if (open.state != CaseState.Locked) revert WrongCaseState(accusation.receiptHash, open.state);
    }

    /// @dev Reverts unless the node signed the receipt and the contributor is liable for the node.
    function _requireLiable(Receipt calldata receipt, bytes32 receiptHash, bytes calldata signature) private view {
        if (ECDSA.recoverCalldata(_hashTypedDataV4(receiptHash), signature) != receipt.node) {
            revert InvalidSignature(receipt.node);
        }
        if (!NODES.isLiable(receipt.pool, receipt.node, receipt.contributor)) {
            revert NotLiable(receipt.node, receipt.contributor);
        }
    }

    /// @dev Reverts unless every finding is valid and its validator is active and has enough stake to lose.
    // A pool has at most MAX_VALIDATORS, and a caller that sends more findings pays the gas itself.
    // slither-disable-next-line calls-loop
    function _requireFindings(
        uint256 pool,
        bytes32 receiptHash,
        bytes32 workKey,
        uint8 reason,
        Finding[] calldata findings,
        uint256 requiredBond
    ) private view {
        address last = address(0);
        for (uint256 i = 0; i < findings.length; ++i) {
            Finding calldata finding = findings[i];
            address validator = finding.validator;
            if (block.timestamp > finding.deadline) revert FindingExpired(i);
            if (validator <= last) revert UnorderedValidators(i);
            STAKES.requireBonded(pool, validator, requiredBond);
            _requireSignature(pool, receiptHash, workKey, _REJECT, reason, finding);
            last = validator;
        }
    }

    /// @dev Reverts unless the validator signed this outcome with severity "hard" on the receipt for this reason.
    function _requireSignature(
        uint256 pool,
        bytes32 receiptHash,
        bytes32 workKey,
        uint8 outcome,
        uint8 reason,
        Finding calldata finding
    ) private view {
        // Struct hash of Verdict, with fixed severity.
        bytes32 structHash = keccak256(
            abi.encode(
                CoveyTypes.VERDICT_TYPEHASH,
                pool,
                receiptHash,
                workKey,
                finding.validator,
                outcome,
                reason,
                _HARD,
                finding.units,
                finding.evidenceHash,
                finding.deadline
            )
        );
        bytes32 digest = _hashTypedDataV4(structHash);
        if (ECDSA.recoverCalldata(digest, finding.signature) != finding.validator) {
            revert InvalidSignature(finding.validator);
        }
    }
}
// slither-disable-end timestamp
