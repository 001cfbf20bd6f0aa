// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Address} from "@openzeppelin/contracts/utils/Address.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {EpochHeader, Receipt, WorkLeaf} from "./interfaces/ICoveyTypes.sol";
import {Challenge, ChallengeState, InclusionPromise, PostedEpoch} from "./interfaces/IEpochLedger.sol";
import {IPoolRegistry, PoolState, PoolTerms} from "./interfaces/IPoolRegistry.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {LedgerHashes} from "./LedgerHashes.sol";

/// The prose is in IEpochLedger.
contract EpochLedger is LedgerHashes, ReentrancyGuard {
    struct Settlement {
        PostedEpoch[] epochs;
        uint256 units;
        /// Units up to the newest final epoch that anyone has claimed against.
        uint256 finalUnits;
        uint256 claimed;
        mapping(address contributor => uint256) claimedOf;
    }

    uint256 public constant MAX_OPEN_EPOCHS = 256;
    uint256 public constant OMISSION_BOND = 0.001 ether;

    IPoolRegistry public immutable POOLS;
    IStakeManager public immutable STAKES;

    uint256 public challengeCount;
    mapping(bytes32 receiptHash => uint256) public challengeOf;
    mapping(uint256 pool => Settlement) private _settlements;
    mapping(uint256 challengeId => Challenge) private _challenges;

    constructor(IPoolRegistry pools, IStakeManager stakes) EIP712("Covey", "1") {
        POOLS = pools;
        STAKES = stakes;
    }

    function post(uint256 pool, bytes32 workRoot, bytes32 rewardRoot, uint64 leafCount, uint64 units, bytes32 dataHash)
        external
        returns (uint64 epoch)
    {
        if (msg.sender != POOLS.operatorOf(pool)) revert NotOperator(pool, msg.sender);
        if (POOLS.stateOf(pool) < PoolState.Active) revert PoolNotStarted(pool);
        Settlement storage settlement = _settlements[pool];
        epoch = uint64(settlement.epochs.length);
        _requireRoom(pool, epoch);

        bytes32 previousHash = epoch == 0 ? bytes32(0) : settlement.epochs[epoch - 1].headerHash;
        bytes32 headerHash = CoveyTypes.hashHeader(
            EpochHeader(pool, epoch, workRoot, rewardRoot, leafCount, units, dataHash, previousHash)
        );
        settlement.units += units;
        settlement.epochs.push(
            PostedEpoch(headerHash, rewardRoot, uint64(block.timestamp), units, uint120(settlement.units), false)
        );

        emit EpochPosted(pool, epoch, headerHash, workRoot, rewardRoot, leafCount, units, dataHash, previousHash);

        POOLS.reserve(pool, _priceOf(pool, units));
    }

    function disableEpoch(uint256 pool, uint64 epoch) external {
        PoolTerms memory terms = POOLS.getTerms(pool);
        if (msg.sender != terms.arbiter) revert NotArbiter(pool, msg.sender);
        PostedEpoch storage named = _requireEpoch(pool, epoch);
        if (named.isDisabled) revert EpochIsDisabled(epoch);
        uint256 closedAt = uint256(named.postedAt) + terms.challengeWindow;
        if (block.timestamp >= closedAt) revert WindowClosed(closedAt);

        Settlement storage settlement = _settlements[pool];
        uint256 units = 0;
        for (uint256 i = epoch; i < settlement.epochs.length; ++i) {
            PostedEpoch storage fallen = settlement.epochs[i];
            if (fallen.isDisabled) continue;
            fallen.isDisabled = true;
            units += fallen.units;
            emit EpochDisabled(pool, uint64(i), fallen.headerHash);
        }
        settlement.units -= units;

        POOLS.unreserve(pool, _priceOf(pool, units));
    }

    function claim(uint256 pool, uint64 epoch, address contributor, uint256 cumulative, bytes32[] calldata proof)
        external
        nonReentrant
    {
        PostedEpoch storage posted = _requireEpoch(pool, epoch);
        if (posted.isDisabled) revert EpochIsDisabled(epoch);
        uint256 finalAt = _finalAt(pool, posted);
        if (block.timestamp < finalAt) revert NotFinal(finalAt);
        bytes32 leaf = CoveyTypes.hashRewardLeaf(block.chainid, address(this), pool, contributor, cumulative);
        if (!MerkleProof.verifyCalldata(proof, posted.rewardRoot, leaf)) revert InvalidProof();
        Settlement storage settlement = _settlements[pool];
        uint256 before = settlement.claimedOf[contributor];
        if (cumulative <= before) revert NothingToClaim();
        uint256 amount = cumulative - before;
        uint256 finalUnits = Math.max(settlement.finalUnits, posted.cumulativeUnits);
        uint256 available = _priceOf(pool, finalUnits) - settlement.claimed;
        if (amount > available) revert RewardExceedsUnits(amount, available);

        settlement.finalUnits = finalUnits;
        settlement.claimed += amount;
        settlement.claimedOf[contributor] = cumulative;

        emit RewardClaimed(pool, epoch, contributor, amount);

        POOLS.payOut(pool, contributor, amount);
    }

    function challengeOmission(Receipt calldata receipt, InclusionPromise calldata given)
        external
        payable
        returns (uint256 challengeId)
    {
        if (msg.value != OMISSION_BOND) revert WrongBond(OMISSION_BOND, msg.value);
        bytes32 receiptHash = CoveyTypes.hashReceipt(receipt);
        if (!_isChallengeable(receiptHash)) revert AlreadyChallenged(receiptHash);
        address operator = POOLS.operatorOf(receipt.pool);
        bytes32 digest = digestCountersignature(receiptHash, given.blockNumber, given.latestEpoch);
        // The zero address stands for a pool that does not exist, and signs nothing.
        if (!SignatureChecker.isValidSignatureNow(operator, digest, given.signature)) revert InvalidSignature(operator);
        PoolTerms memory terms = POOLS.getTerms(receipt.pool);
        bool isStalled = block.timestamp > uint256(receipt.deadline) + terms.challengeWindow + terms.vetoWindow;
        if (_settlements[receipt.pool].epochs.length <= given.latestEpoch && !isStalled) revert NotOverdue();

        challengeId = ++challengeCount;
        challengeOf[receiptHash] = challengeId;
        _challenges[challengeId] = Challenge({
            pool: receipt.pool,
            challenger: msg.sender,
            contributor: receipt.contributor,
            answerBy: uint64(block.timestamp + terms.challengeWindow),
            state: ChallengeState.Open,
            answeredBy: 0,
            amount: uint256(receipt.units) * terms.rewardPerUnit,
            identity: _identify(
                receiptHash, receipt.workKey, receipt.node, receipt.contributor, receipt.task, receipt.policyVersion
            )
        });

        emit OmissionChallenged(challengeId, receipt.pool, receipt.contributor, receiptHash);
    }

    function answerOmission(
        uint256 challengeId,
        EpochHeader calldata header,
        WorkLeaf calldata leaf,
        bytes32[] calldata proof
    ) external nonReentrant {
        Challenge storage open = _requireOpen(challengeId);
        if (block.timestamp >= open.answerBy) revert WindowClosed(open.answerBy);
        PostedEpoch storage posted = _requireEpoch(open.pool, header.epoch);
        if (posted.isDisabled) revert EpochIsDisabled(header.epoch);
        if (CoveyTypes.hashHeader(header) != posted.headerHash) revert WrongHeader();
        bytes32 identity =
            _identify(leaf.receiptHash, leaf.workKey, leaf.node, leaf.contributor, leaf.task, leaf.policyVersion);
        if (identity != open.identity) revert WrongLeaf();
        if (!MerkleProof.verifyCalldata(proof, header.workRoot, CoveyTypes.hashWorkLeaf(leaf))) revert InvalidProof();

        open.state = ChallengeState.Answered;
        open.answeredBy = header.epoch;

        emit OmissionAnswered(challengeId, open.pool, header.epoch, msg.sender);

        Address.sendValue(payable(msg.sender), OMISSION_BOND);
    }

    function resolveOmission(uint256 challengeId) external nonReentrant {
        Challenge storage open = _requireOpen(challengeId);
        if (block.timestamp < open.answerBy) revert WindowOpen(open.answerBy);

        open.state = ChallengeState.Upheld;

        uint256 paid = STAKES.payFromOperator(open.pool, open.contributor, open.amount);
        emit OmissionUpheld(challengeId, open.pool, open.contributor, paid);
        Address.sendValue(payable(open.challenger), OMISSION_BOND);
    }

    function epochsOf(uint256 pool) external view returns (uint64) {
        return uint64(_settlements[pool].epochs.length);
    }

    function getEpoch(uint256 pool, uint64 epoch) external view returns (PostedEpoch memory) {
        return _requireEpoch(pool, epoch);
    }

    function isFinal(uint256 pool, uint64 epoch) external view returns (bool) {
        PostedEpoch storage posted = _requireEpoch(pool, epoch);
        return !posted.isDisabled && block.timestamp >= _finalAt(pool, posted);
    }

    function claimedOf(uint256 pool, address contributor) external view returns (uint256) {
        return _settlements[pool].claimedOf[contributor];
    }

    function unitsOf(uint256 pool) external view returns (uint256) {
        return _settlements[pool].units;
    }

    function getChallenge(uint256 challengeId) external view returns (Challenge memory) {
        return _challenges[challengeId];
    }

    function _requireEpoch(uint256 pool, uint64 epoch) private view returns (PostedEpoch storage) {
        if (epoch >= _settlements[pool].epochs.length) revert UnknownEpoch(pool, epoch);
        return _settlements[pool].epochs[epoch];
    }

    function _requireOpen(uint256 challengeId) private view returns (Challenge storage open) {
        open = _challenges[challengeId];
        if (open.state != ChallengeState.Open) revert WrongChallengeState(challengeId, open.state);
    }

    // Once for each receipt, unless the epoch that answered was disabled since.
    function _isChallengeable(bytes32 receiptHash) private view returns (bool) {
        Challenge storage earlier = _challenges[challengeOf[receiptHash]];
        if (earlier.state == ChallengeState.None) return true;
        if (earlier.state != ChallengeState.Answered) return false;
        return _settlements[earlier.pool].epochs[earlier.answeredBy].isDisabled;
    }

    function _requireRoom(uint256 pool, uint256 next) private view {
        if (next < MAX_OPEN_EPOCHS) return;
        PostedEpoch storage oldest = _settlements[pool].epochs[next - MAX_OPEN_EPOCHS];
        if (!oldest.isDisabled && block.timestamp < _finalAt(pool, oldest)) revert TooManyOpenEpochs();
    }

    function _finalAt(uint256 pool, PostedEpoch storage posted) private view returns (uint256) {
        PoolTerms memory terms = POOLS.getTerms(pool);
        return uint256(posted.postedAt) + terms.challengeWindow + terms.vetoWindow;
    }

    function _priceOf(uint256 pool, uint256 units) private view returns (uint256) {
        return units * POOLS.getTerms(pool).rewardPerUnit;
    }
}
