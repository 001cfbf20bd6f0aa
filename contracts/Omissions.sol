// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Address} from "@openzeppelin/contracts/utils/Address.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {Escrow} from "./Escrow.sol";
import {EpochHeader, Receipt, WorkLeaf} from "./interfaces/ICoveyTypes.sol";
import {Challenge, ChallengeState, EpochRecord, IEpochLedger, Inclusion, InclusionPromise, Settlement} from
    "./interfaces/IEpochLedger.sol";
import {INodeRegistry} from "./interfaces/INodeRegistry.sol";
import {PostingTerms} from "./interfaces/IPoolRegistry.sol";
import {ISlashingCourt} from "./interfaces/ISlashingCourt.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {StakeManager} from "./StakeManager.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title Omissions
/// @notice Part of EpochLedger that keeps the records of epochs and decides omission challenges: either a promised
/// receipt is in an epoch, or the operator pays.
abstract contract Omissions is Escrow {
    /// @notice Bond of a challenger, in wei.
    uint256 public constant OMISSION_BOND = 0.001 ether;
    /// @notice Number of epochs that are kept of each pool; the same as PoolRegistry.KEPT_EPOCHS.
    uint256 public constant KEPT_EPOCHS = 256;
    /// @notice Number of epochs after its due epoch in which a receipt can be challenged.
    uint256 public constant CHALLENGE_SPAN = KEPT_EPOCHS / 4;

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
        PostingTerms memory terms = POOLS.getPostingTerms(pool);
        bytes32 digest = digestCountersignature(receiptHash, given.signedAt, given.latestEpoch);
        // ECDSA only, because the answer of an ERC-1271 wallet could change, and a promise must stay valid. A pool that
        // does not exist has the zero address as its operator, for which no key can sign.
        if (ECDSA.recoverCalldata(digest, given.signature) != terms.operator) revert InvalidSignature(terms.operator);
        _requireNode(receipt, nodeSignature);
        _requireOverdue(receipt, given.latestEpoch, terms);
        if (!_isChallengeable(pool, receiptHash)) revert AlreadyChallenged(receiptHash);

        _challenges[receiptHash] =
            Challenge(msg.sender, uint40(block.timestamp + terms.challengeWindow), ChallengeState.Open, 0);

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

        uint256 answers = 0;
        for (uint256 i = 0; i < inclusions.length; ++i) {
            if (_answer(header, inclusions[i])) ++answers;
        }
        if (answers == 0) revert NothingToAnswer();

        Address.sendValue(payable(msg.sender), answers * OMISSION_BOND);
    }

    /// @inheritdoc IEpochLedger
    function resolveOmission(Receipt calldata receipt) external nonReentrant {
        bytes32 receiptHash = CoveyTypes.hashReceipt(receipt);
        Challenge storage open = _challenges[receiptHash];
        if (open.state != ChallengeState.Open) revert WrongChallengeState(receiptHash, open.state);
        if (block.timestamp < open.answerBy) revert WindowOpen(open.answerBy);

        open.state = ChallengeState.Upheld;
        // Credited instead of sent, because a challenger that refuses ether would block the contributor's payment.
        etherOf[open.challenger] += OMISSION_BOND;

        uint256 due = CoveyTypes.computeReward(receipt.units, POOLS.getPostingTerms(receipt.pool).rewardPerMillion);
        uint256 paid = STAKES.payFromOperator(receipt.pool, receipt.contributor, due);
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

    /// @dev Reverts unless the record is kept and not disabled.
    function _requireRecord(uint256 pool, EpochRecord calldata record) internal view {
        if (!_isPosted(pool, record)) revert UnknownEpoch(pool, record.epoch);
    }

    /// @dev Answers one challenge. Returns false if it is not open or its window has passed.
    function _answer(EpochHeader calldata header, Inclusion calldata shown) private returns (bool isAnswered) {
        Receipt calldata receipt = shown.receipt;
        WorkLeaf calldata leaf = shown.leaf;
        bytes32 receiptHash = CoveyTypes.hashReceipt(receipt);
        Challenge storage open = _challenges[receiptHash];
        if (open.state != ChallengeState.Open || block.timestamp >= open.answerBy) return false;
        bool isSameWork = receipt.pool == header.pool && leaf.receiptHash == receiptHash
            && leaf.workKey == receipt.workKey && leaf.node == receipt.node && leaf.contributor == receipt.contributor
            && leaf.task == receipt.task && leaf.policyVersion == receipt.policyVersion;
        bytes32 leafHash = CoveyTypes.hashWorkLeaf(leaf);
        if (!isSameWork || !MerkleProof.verifyCalldata(shown.proof, header.workRoot, leafHash)) {
            revert WrongLeaf(receiptHash);
        }

        open.state = ChallengeState.Answered;
        open.answeredBy = uint24(header.epoch);

        emit OmissionAnswered(header.pool, receiptHash, header.epoch, msg.sender);

        return true;
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

    /// @dev Reverts unless the receipt is overdue and it is not too late to challenge it.
    function _requireOverdue(Receipt calldata receipt, uint64 latestEpoch, PostingTerms memory terms) private view {
        Settlement memory settlement = _settlements[receipt.pool];
        uint256 bothWindows = uint256(terms.challengeWindow) + terms.vetoWindow;
        uint256 idleFrom = Math.max(receipt.deadline, uint256(settlement.lastPostedAt) + terms.epochLength);
        bool isOverdue = settlement.epochs > latestEpoch || block.timestamp > idleFrom + bothWindows
            || block.timestamp >= terms.closesAt - 4 * bothWindows;
        if (!isOverdue) revert NotOverdue();
        if (settlement.epochs > uint256(latestEpoch) + 1 + CHALLENGE_SPAN) revert TooLate();
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
}
// slither-disable-end timestamp
