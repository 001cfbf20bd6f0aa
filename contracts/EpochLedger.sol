// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {CoveyTypes} from "./CoveyTypes.sol";
import {Attestation, EpochHeader} from "./interfaces/ICoveyTypes.sol";
import {EpochRecord, IEpochLedger, Settlement} from "./interfaces/IEpochLedger.sol";
import {INodeRegistry} from "./interfaces/INodeRegistry.sol";
import {IPoolRegistry, PostingTerms} from "./interfaces/IPoolRegistry.sol";
import {Omissions} from "./Omissions.sol";
import {Payouts} from "./Payouts.sol";
import {StakeManager} from "./StakeManager.sol";

// Windows last seconds to days, as each pool chooses. A block producer can shift the block time by seconds at most.
// slither-disable-start timestamp
/// @title EpochLedger
/// @notice Posts and disables epochs and pays claims against them.
/// @dev See IEpochLedger for the rules. Funding, refunds and payment are in Escrow; the records of epochs and omission
/// challenges are in Omissions.
contract EpochLedger is Omissions {
    /// @inheritdoc IEpochLedger
    mapping(uint256 pool => bytes32) public headOf;
    /// @inheritdoc IEpochLedger
    mapping(bytes32 headerHash => bool) public wasRefuted;

    /// @dev Reverts unless StakeManager names this contract as its ledger.
    constructor(IPoolRegistry pools, INodeRegistry nodes, StakeManager stakes)
        EIP712("Covey", "3")
        Payouts(pools)
        Omissions(nodes, stakes)
    {
        if (stakes.LEDGER() != address(this)) revert WrongDeployment();
    }

    /// @inheritdoc IEpochLedger
    function post(EpochHeader calldata header, Attestation[] calldata attestations) external {
        uint256 pool = header.pool;
        Settlement memory settlement = _settlements[pool];
        PostingTerms memory terms = POOLS.getPostingTerms(pool, settlement.lastPostedAt);
        _requirePosting(pool, terms, settlement.lastPostedAt);
        if (header.units > terms.epochUnits) revert TooManyUnits(header.units, terms.epochUnits);
        if (header.epoch != settlement.epochs) revert WrongEpoch(settlement.epochs, header.epoch);
        if (header.previousHash != headOf[pool]) revert WrongPreviousHash(headOf[pool], header.previousHash);
        uint256 availableAt = uint256(settlement.lastPostedAt) + terms.epochLength;
        if (block.timestamp < availableAt) revert EpochTooEarly(availableAt);
        uint256 reward =
            CoveyTypes.computeReward(header.units, terms.rewardPerMillion) + _computeFees(pool, header.verdicts);
        uint256 available = settlement.funded - settlement.posted;
        if (reward > available) revert InsufficientEscrow(pool, reward, available);

        bytes32 headerHash = CoveyTypes.hashHeader(header);
        if (terms.headerQuorum > 0) {
            bytes32 digest = _hashTypedDataV4(headerHash);
            STAKES.requireAttested(pool, digest, attestations, terms.validatorBond, terms.headerQuorum);
        }

        EpochRecord memory record = EpochRecord({
            headerHash: headerHash,
            rewardRoot: header.rewardRoot,
            epoch: header.epoch,
            finalAt: uint64(block.timestamp + terms.challengeWindow + terms.vetoWindow),
            reward: uint96(reward),
            cumulative: uint96(settlement.posted + reward)
        });
        headOf[pool] = headerHash;
        _setRecord(pool, record);
        _settlements[pool] =
            Settlement(record.cumulative, settlement.funded, settlement.epochs + 1, uint40(block.timestamp));

        emit EpochPosted(pool, header.epoch, header, record.finalAt, record.reward, record.cumulative);
    }

    /// @inheritdoc IEpochLedger
    function disableEpoch(uint256 pool, EpochRecord calldata record, bool isFalse) external {
        if (msg.sender != POOLS.arbiterOf(pool)) revert NotArbiter(pool, msg.sender);
        _requireRecord(pool, record);
        uint256 closedAt = record.finalAt - POOLS.getSlashingTerms(pool).vetoWindow;
        if (block.timestamp >= closedAt) revert WindowClosed(closedAt);

        Settlement storage settlement = _settlements[pool];
        settlement.posted = record.cumulative - record.reward;
        if (isFalse) wasRefuted[record.headerHash] = true;
        delete headOf[pool];
        for (uint64 epoch = record.epoch; epoch < settlement.epochs; ++epoch) {
            if (_dropRecord(pool, epoch)) emit EpochDisabled(pool, epoch);
        }
    }

    /// @inheritdoc IEpochLedger
    function claim(
        uint256 pool,
        EpochRecord calldata record,
        address contributor,
        uint256 cumulative,
        bytes32[] calldata proof
    ) external nonReentrant {
        _requireRecord(pool, record);
        if (block.timestamp < record.finalAt) revert NotFinal(record.finalAt);
        bytes32 leaf = CoveyTypes.hashRewardLeaf(block.chainid, address(this), pool, contributor, cumulative);
        if (!MerkleProof.verifyCalldata(proof, record.rewardRoot, leaf)) revert InvalidProof();

        _payUpTo(pool, record.epoch, record.cumulative, contributor, cumulative);
    }

    /// @dev Reverts unless the pool was started and is not closed, and the caller is the signer or the signer is idle.
    function _requirePosting(uint256 pool, PostingTerms memory terms, uint256 lastPostedAt) private view {
        if (terms.startedAt == 0) revert PoolNotStarted(pool);
        if (block.timestamp >= terms.closesAt) revert PoolClosed(terms.closesAt);
        if (msg.sender == terms.signer) return;
        if (terms.headerQuorum == 0) revert NotSigner(pool, msg.sender);
        uint256 idleAt = Math.max(lastPostedAt, terms.startedAt) + terms.epochLength + terms.challengeWindow;
        if (block.timestamp < idleAt) revert SignerNotIdle(idleAt);
    }
}
// slither-disable-end timestamp
