// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Attestation, EpochHeader, Receipt, WorkLeaf} from "../../../contracts/interfaces/ICoveyTypes.sol";
import {ChallengeState, EpochRecord} from "../../../contracts/interfaces/IEpochLedger.sol";
import {Fixture} from "../Fixture.sol";

/// State that LedgerHandler keeps itself and compares with the ledger. The roots of the first pool promise what its
/// epochs are worth. Those of the second pool promise any amount. It needs attestations of two validators, and pays 7
/// for each of at most 10 verdicts in an epoch.
abstract contract LedgerModel is Fixture {
    struct Epoch {
        uint256 pool;
        EpochRecord record;
        EpochHeader header;
        bool isDisabled;
        /// Cumulative rewards that the root promises, and those of the previous epoch.
        uint256[2] promised;
        uint256[2] before;
        uint256 task;
    }

    uint256 internal constant BOND = 0.001 ether;
    uint256 internal constant TASKS = 4;
    string public broken;
    uint256[2] internal both;
    address[2] internal payees;
    Epoch[] internal epochs;
    mapping(uint256 pool => uint256) internal funded;
    mapping(uint256 pool => uint256) internal paid;
    mapping(uint256 pool => uint256) internal refunded;
    mapping(uint256 pool => uint256) internal count;
    mapping(uint256 pool => bytes32) internal head;
    mapping(uint256 pool => mapping(address payee => uint256)) internal paidTo;
    mapping(uint256 pool => uint256[2]) internal promisedNow;
    uint256 internal openChallenges;
    /// Number of bonds of upheld challenges that were not withdrawn yet.
    uint256 internal credits;
    mapping(uint256 task => uint256 epoch) internal answeredBy;
    mapping(uint256 task => bool) internal isNetted;

    function leafOf(uint256 of_, uint256 i, uint256 cumulative) internal view returns (bytes32) {
        return ledger.hashRewardLeaf(block.chainid, address(ledger), of_, payees[i], cumulative);
    }

    function rootOf(uint256 of_, uint256[2] memory promised) internal view returns (bytes32) {
        (bytes32 a, bytes32 b) = (leafOf(of_, 0, promised[0]), leafOf(of_, 1, promised[1]));
        return a < b ? keccak256(bytes.concat(a, b)) : keccak256(bytes.concat(b, a));
    }

    function proofOf(Epoch memory epoch, uint256 i) internal view returns (bytes32[] memory proof) {
        proof = new bytes32[](1);
        proof[0] = leafOf(epoch.pool, 1 - i, epoch.promised[1 - i]);
    }

    function makeTask(uint256 task) internal view returns (Receipt memory receipt, WorkLeaf memory leaf) {
        receipt = makeReceipt(task, keccak256(abi.encode(task)));
        receipt.deadline = uint64(START + 10);
        leaf = WorkLeaf(
            court.hashReceipt(receipt), receipt.workKey, node, contributor, task, 4, 1, 1, 0, 50, keccak256("evidence")
        );
    }

    /// Only the second pool pays for verdicts.
    function rewardOf(EpochHeader memory header) internal pure returns (uint256) {
        return uint256(header.units) * 3 + uint256(header.verdicts) * 7;
    }

    /// Time from which anyone can post to the second pool with a quorum, which is 11 s after its newest epoch.
    function idleFromOf(uint256 of_) internal view returns (uint256) {
        uint256 postedAt = ledger.getSettlement(of_).lastPostedAt;
        return (postedAt > START ? postedAt : START) + 11;
    }

    /// Attestations of the first `signers` validators.
    function attestBy(EpochHeader memory header, uint256 signers) internal view returns (Attestation[] memory made) {
        made = new Attestation[](signers);
        for (uint256 i = 0; i < signers; ++i) {
            made[i] = attest(header, validatorKeys[i]);
        }
    }

    /// Reward of all epochs of a pool that are not disabled.
    function standingOf(uint256 of_) internal view returns (uint256 sum) {
        for (uint256 i = 0; i < epochs.length; ++i) {
            if (epochs[i].pool == of_ && !epochs[i].isDisabled) sum += rewardOf(epochs[i].header);
        }
    }

    /// Reward of all epochs of a pool that are final and not disabled.
    function finalOf(uint256 of_) internal view returns (uint256 sum) {
        for (uint256 i = 0; i < epochs.length; ++i) {
            bool counts = epochs[i].pool == of_ && !epochs[i].isDisabled && block.timestamp >= epochs[i].record.finalAt;
            if (counts) sum += rewardOf(epochs[i].header);
        }
    }

    function noteDisabled(uint256 which) internal {
        uint256 of_ = epochs[which].pool;
        promisedNow[of_] = epochs[which].before;
        head[of_] = 0;
        for (uint256 i = which; i < epochs.length; ++i) {
            if (epochs[i].pool == of_) epochs[i].isDisabled = true;
        }
    }

    /// Records a header, which must continue the chain of headers of its pool, or begin one after a disabled epoch.
    function noteHeader(EpochHeader memory header) internal {
        bool follows = header.epoch == count[header.pool] && header.previousHash == head[header.pool];
        if (!follows) broken = "the chain of headers has a gap";
        head[header.pool] = ledger.hashHeader(header);
        ++count[header.pool];
    }

    /// Whether a promise is overdue: its time has passed, or the pool ended 20 s ago.
    function isOverdue(uint64 dueBy) internal view returns (bool) {
        uint256 closesAt = pools.closesAt(pool);
        bool isClosing = closesAt != type(uint256).max && block.timestamp >= closesAt - 80;
        return block.timestamp > dueBy || isClosing;
    }

    function stateOf(uint256 task) internal view returns (ChallengeState) {
        (Receipt memory receipt,) = makeTask(task);
        return ledger.getChallenge(court.hashReceipt(receipt)).state;
    }
}
