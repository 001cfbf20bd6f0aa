// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Address} from "@openzeppelin/contracts/utils/Address.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {Escrow} from "./Escrow.sol";
import {EpochHeader, Receipt, WorkLeaf} from "./interfaces/ICoveyTypes.sol";
import {Challenge, ChallengeState, EpochRecord, IEpochLedger, Inclusion, InclusionPromise} from
    "./interfaces/IEpochLedger.sol";
import {INodeRegistry} from "./interfaces/INodeRegistry.sol";
import {PromiseTerms} from "./interfaces/IPoolRegistry.sol";
import {ISlashingCourt} from "./interfaces/ISlashingCourt.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {StakeManager} from "./StakeManager.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title Omissions
/// @notice Part of EpochLedger that keeps the records of epochs and decides omission challenges: either a promised
/// receipt is in an epoch, or the operator pays.
abstract contract Omissions is Escrow {
    using SafeCast for uint256;

    /// @notice Bond of a challenger, in wei.
    uint256 public constant OMISSION_BOND = 0.001 ether;
    /// @notice Number of epochs that are kept of each pool; the same as PoolRegistry.KEPT_EPOCHS.
    uint256 public constant KEPT_EPOCHS = 256;
    /// @notice Longest time from the signing of a promise until it is due, and from then until it can no longer be
    /// challenged, in minimum lengths of an epoch.
    uint256 public constant PROMISED_EPOCHS = KEPT_EPOCHS / 4;

    /// @notice Registry of the nodes.
    INodeRegistry public immutable NODES;
    /// @notice Contract that holds the operators' bonds.
    IStakeManager public immutable STAKES;
    /// @notice Contract in whose EIP-712 domain nodes sign receipts.
    ISlashingCourt public immutable COURT;

    /// @inheritdoc IEpochLedger
    mapping(address challenger => uint256) public etherOf;
    /// @dev Hashes of the newest records, in a ring that is indexed by the epoch modulo KEPT_EPOCHS.
    mapping(uint256 pool => mapping(uint256 slot => bytes32)) private _records;
    /// @dev Challenges by receipt hash.
    mapping(bytes32 receiptHash => Challenge) private _challenges;

    constructor(INodeRegistry nodes, StakeManager stakes) {
        NODES = nodes;
        STAKES = stakes;
        COURT = ISlashingCourt(stakes.COURT());
    }

    /// @inheritdoc IEpochLedger
    function challengeOmission(
        Receipt calldata receipt,
        bytes calldata nodeSignature,
        InclusionPromise calldata given
    ) external payable {
        if (msg.value != OMISSION_BOND) revert WrongBond(OMISSION_BOND, msg.value);
        uint256 pool = receipt.pool;
        bytes32 receiptHash = CoveyTypes.hashReceipt(receipt);
        PromiseTerms memory terms = POOLS.getPromiseTerms(pool, given.signedAt);
        bytes32 digest = digestCountersignature(receiptHash, given.signedAt, given.dueBy);
        // ECDSA only, because the answer of an ERC-1271 wallet could change, and a promise must stay valid. A pool that
        // does not exist has the zero address as its signer, for which no key can sign.
        if (ECDSA.recoverCalldata(digest, given.signature) != terms.signer) revert InvalidSignature(terms.signer);
        _requireNode(receipt, nodeSignature);
        if (receipt.units > terms.epochUnits) revert TooManyUnits(receipt.units, terms.epochUnits);
        _requireOverdue(given, terms);
        if (!_isChallengeable(pool, receiptHash)) revert AlreadyChallenged(receiptHash);

        Challenge storage opened = _challenges[receiptHash];
        opened.challenger = msg.sender;
        opened.answerBy = uint40(block.timestamp + terms.challengeWindow);
        opened.state = ChallengeState.Open;
        opened.answeredBy = 0;

        emit OmissionChallenged(pool, receiptHash, receipt.contributor);
    }

    /// @inheritdoc IEpochLedger
    function answerOmissions(
        EpochRecord calldata record,
        EpochHeader calldata header,
        Inclusion[] calldata inclusions
    ) external nonReentrant {
        _requireRecord(header.pool, record);
        if (CoveyTypes.hashHeader(header) != record.headerHash) revert WrongHeader();

        uint256 earned = 0;
        bool isAnyDone = false;
        for (uint256 i = 0; i < inclusions.length; ++i) {
            (bool isDone, uint256 bond) = _show(record, header, inclusions[i]);
            isAnyDone = isAnyDone || isDone;
            earned += bond;
        }
        if (!isAnyDone) revert NothingToAnswer();

        if (earned > 0) Address.sendValue(payable(msg.sender), earned);
    }

    /// @inheritdoc IEpochLedger
    function resolveOmission(Receipt calldata receipt) external nonReentrant {
        bytes32 receiptHash = CoveyTypes.hashReceipt(receipt);
        Challenge storage shown = _challenges[receiptHash];
        bool isUpheld = shown.state == ChallengeState.Upheld;
        if (isUpheld) {
            uint256 closedAt = shown.answerBy + POOLS.unbondWindowOf(receipt.pool);
            if (block.timestamp > closedAt) revert TooLate(closedAt);
        } else {
            if (shown.state != ChallengeState.Open) revert WrongChallengeState(receiptHash, shown.state);
            if (block.timestamp < shown.answerBy) revert WindowOpen(shown.answerBy);

            shown.state = ChallengeState.Upheld;
            // Credited instead of sent, because a challenger that refuses ether would block the contributor's payment.
            etherOf[shown.challenger] += OMISSION_BOND;
        }

        // A time that has passed, so its price never changes, however late the node has set its deadline.
        uint256 pricedAt = Math.min(receipt.deadline, shown.answerBy);
        uint256 due = CoveyTypes.computeReward(receipt.units, POOLS.priceAt(receipt.pool, pricedAt));
        address payee = payeeOf(receipt.pool, receipt.contributor);
        uint256 paid = STAKES.payFromOperator(receipt.pool, payee, Math.saturatingSub(due, shown.paid));
        if (isUpheld && paid == 0) revert ZeroAmount();
        shown.paid += paid.toUint96();

        emit OmissionUpheld(receipt.pool, receiptHash, receipt.contributor, paid);
    }

    /// @inheritdoc IEpochLedger
    function withdrawEther() external {
        uint256 amount = etherOf[msg.sender];
        if (amount == 0) revert ZeroAmount();

        etherOf[msg.sender] = 0;

        emit EtherWithdrawn(msg.sender, amount);

        Address.sendValue(payable(msg.sender), amount);
    }

    /// @inheritdoc IEpochLedger
    function getChallenge(bytes32 receiptHash) external view returns (Challenge memory) {
        return _challenges[receiptHash];
    }

    /// @inheritdoc IEpochLedger
    function isPosted(uint256 pool, EpochRecord calldata record) external view returns (bool) {
        return _isPosted(pool, record);
    }

    /// @inheritdoc IEpochLedger
    function epochsOf(uint256 pool) public view returns (uint64) {
        return _settlements[pool].epochs;
    }

    /// @dev Stores the hash of a record. It overwrites the record that is KEPT_EPOCHS older.
    function _setRecord(uint256 pool, EpochRecord memory record) internal {
        _records[pool][record.epoch % KEPT_EPOCHS] = keccak256(abi.encode(record));
    }

    /// @dev Deletes the record of an epoch, and returns whether there was one.
    function _dropRecord(uint256 pool, uint64 epoch) internal returns (bool isDropped) {
        isDropped = _records[pool][epoch % KEPT_EPOCHS] != 0;
        if (isDropped) delete _records[pool][epoch % KEPT_EPOCHS];
    }

    /// @dev Fees for the verdicts of an epoch. They never change, because their terms are fixed at creation.
    function _computeFees(uint256 pool, uint32 verdicts) internal view returns (uint256) {
        if (verdicts == 0) return 0;
        // Only netting calls this in a loop, for inclusions that the caller pays for.
        // slither-disable-next-line calls-loop
        (uint256 fee, uint256 most) = POOLS.getVerdictTerms(pool);
        if (verdicts > most) revert TooManyVerdicts(verdicts, most);
        return fee * verdicts;
    }

    /// @dev Reverts unless the record is kept and not disabled.
    function _requireRecord(uint256 pool, EpochRecord calldata record) internal view {
        if (!_isPosted(pool, record)) revert UnknownEpoch(pool, record.epoch);
    }

    /// @dev Answers an open challenge, or deducts what an upheld one has paid. Returns whether it did either, and the
    /// bond that the caller earns.
    function _show(EpochRecord calldata record, EpochHeader calldata header, Inclusion calldata shown)
        private
        returns (bool isDone, uint256 bond)
    {
        bytes32 receiptHash = CoveyTypes.hashReceipt(shown.receipt);
        Challenge storage challenge = _challenges[receiptHash];
        if (challenge.state == ChallengeState.Open && block.timestamp < challenge.answerBy) {
            _requireLeaf(header, shown, receiptHash);

            challenge.state = ChallengeState.Answered;
            challenge.answeredBy = uint40(header.epoch);

            emit OmissionAnswered(header.pool, receiptHash, header.epoch, msg.sender);

            return (true, OMISSION_BOND);
        }
        // A disabled epoch pays nothing, and a final one can no longer be disabled.
        if (challenge.state == ChallengeState.Upheld && block.timestamp >= record.finalAt) {
            _requireLeaf(header, shown, receiptHash);

            uint256 amount = Math.min(challenge.paid, _shareOf(record, header, shown.leaf.units));
            challenge.state = ChallengeState.Answered;
            challenge.answeredBy = uint40(header.epoch);
            deductionOf[header.pool][shown.receipt.contributor] += amount;

            emit OmissionNetted(header.pool, receiptHash, shown.receipt.contributor, amount);

            return (true, 0);
        }
    }

    /// @dev Whether the hash of the record is stored.
    function _isPosted(uint256 pool, EpochRecord calldata record) private view returns (bool) {
        return _records[pool][record.epoch % KEPT_EPOCHS] == keccak256(abi.encode(record));
    }

    /// @dev Reverts unless the node signed the receipt and was ever bound to the contributor. Otherwise an operator
    /// could promise invented work, for which no contributor's machine ever signed.
    function _requireNode(Receipt calldata receipt, bytes calldata signature) private view {
        if (ECDSA.recoverCalldata(COURT.digestReceipt(receipt), signature) != receipt.node) {
            revert InvalidSignature(receipt.node);
        }
        if (!NODES.wasBound(receipt.pool, receipt.node, receipt.contributor)) {
            revert NeverBound(receipt.node, receipt.contributor);
        }
    }

    /// @dev Reverts unless the promise is overdue and it is not too late to challenge it.
    function _requireOverdue(InclusionPromise calldata given, PromiseTerms memory terms) private view {
        uint256 span = PROMISED_EPOCHS * terms.epochLength;
        if (given.dueBy > given.signedAt + span) revert PromiseTooLong(given.dueBy, given.signedAt + span);
        uint256 bothWindows = uint256(terms.challengeWindow) + terms.vetoWindow;
        bool isOverdue = block.timestamp > given.dueBy || block.timestamp >= terms.closesAt - 4 * bothWindows;
        if (!isOverdue) revert NotOverdue(given.dueBy);
        if (block.timestamp > given.dueBy + span) revert TooLate(given.dueBy + span);
        // Two windows are left to answer and to resolve, before the operator can withdraw its bond.
        uint256 closedAt = terms.closesAt - 2 * uint256(terms.challengeWindow);
        if (block.timestamp >= closedAt) revert WindowClosed(closedAt);
    }

    /// @dev A receipt can be challenged once, and again if the epoch that answered was disabled since.
    function _isChallengeable(uint256 pool, bytes32 receiptHash) private view returns (bool) {
        Challenge storage earlier = _challenges[receiptHash];
        if (earlier.state == ChallengeState.None) return true;
        if (earlier.state != ChallengeState.Answered) return false;
        return _records[pool][earlier.answeredBy % KEPT_EPOCHS] == 0;
    }

    /// @dev What the epoch pays for some of its units, without the fees of validators. A header with fewer units than
    /// one of its leaves pays no more.
    function _shareOf(EpochRecord calldata record, EpochHeader calldata header, uint64 units)
        private
        view
        returns (uint256)
    {
        if (units == 0) return 0;
        uint256 reward = record.reward - _computeFees(header.pool, header.verdicts);
        return reward * units / Math.max(header.units, units);
    }

    /// @dev Reverts unless the leaf is that of the receipt, and the proof shows it under the work root.
    function _requireLeaf(EpochHeader calldata header, Inclusion calldata shown, bytes32 receiptHash) private pure {
        Receipt calldata receipt = shown.receipt;
        WorkLeaf calldata leaf = shown.leaf;
        bool isSameWork = receipt.pool == header.pool && leaf.receiptHash == receiptHash
            && leaf.workKey == receipt.workKey && leaf.node == receipt.node && leaf.contributor == receipt.contributor
            && leaf.task == receipt.task && leaf.policyVersion == receipt.policyVersion;
        bytes32 leafHash = CoveyTypes.hashWorkLeaf(leaf);
        if (!isSameWork || !MerkleProof.verifyCalldata(shown.proof, header.workRoot, leafHash)) {
            revert WrongLeaf(receiptHash);
        }
    }
}
// slither-disable-end timestamp
