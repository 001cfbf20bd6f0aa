// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochHeader, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";
import {EpochRecord, IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {OmissionFixture} from "./OmissionFixture.sol";

/// A pool that pays 7 for each verdict, for at most 10 verdicts in one epoch.
contract VerdictFeesTest is OmissionFixture {
    function makeTerms() internal view override returns (PoolTerms memory terms) {
        terms = super.makeTerms();
        terms.verdictFee = 7;
        terms.epochVerdicts = 10;
    }

    function postVerdicts(bytes32 workRoot, bytes32 rewardRoot, uint64 units, uint32 verdicts)
        internal
        returns (EpochHeader memory header, EpochRecord memory record)
    {
        header = makeHeader(workRoot, rewardRoot, units);
        header.verdicts = verdicts;
        uint96 reward = uint96(units) * 3 + uint96(verdicts) * 7;
        uint96 cumulative = ledger.getSettlement(pool).posted + reward;
        bytes32 headerHash = ledger.hashHeader(header);
        uint64 finalAt = uint64(block.timestamp + 20);
        record = EpochRecord(headerHash, rewardRoot, header.epoch, finalAt, reward, cumulative);
        vm.expectEmit();
        emit IEpochLedger.EpochPosted(pool, header.epoch, header, finalAt, reward, cumulative);
        vm.prank(operator);
        ledger.post(header, none);
    }

    function test_AnEpoch_ReservesTheFees() public {
        postVerdicts(keccak256("work"), keccak256("reward"), 5, 10);
        assertEq(ledger.owedOf(pool), 85);
    }

    function test_WithTooManyVerdicts_ItReverts() public {
        EpochHeader memory header = makeHeader(keccak256("work"), keccak256("reward"), 5);
        header.verdicts = 11;
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.TooManyVerdicts.selector, 11, 10));
        vm.prank(operator);
        ledger.post(header, none);
    }

    function test_WhenTheEscrowCannotPayTheFees_ItReverts() public {
        post(keccak256("reward"), 333_333);
        vm.warp(START + 1);
        EpochHeader memory header = makeHeader(keccak256("work"), keccak256("reward"), 0);
        header.verdicts = 1;
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.InsufficientEscrow.selector, pool, 7, 1));
        vm.prank(operator);
        ledger.post(header, none);
    }

    function test_AValidator_ClaimsItsFees() public {
        bytes32 leaf = ledger.hashRewardLeaf(block.chainid, address(ledger), pool, validators[1], 21);
        (, EpochRecord memory record) = postVerdicts(keccak256("work"), leaf, 0, 3);
        vm.warp(START + 20);
        ledger.claim(pool, record, validators[1], 21, new bytes32[](0));
        assertEq(token.balanceOf(validators[1]), 21);
        assertEq(ledger.owedOf(pool), 0);
    }

    /// The bond paid 150 for the receipt. The epoch pays 450 for work and 70 for verdicts. Of its 150 units, 20 are those
    /// of the receipt, so 60 is deducted. With the fees it would be 69.
    function test_NettingAnOmission_LeavesTheFeesOut() public {
        challenge(makePromise(DUE));
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
        WorkLeaf memory leaf = makeLeaf(receipt);
        leaf.units = 20;
        bytes32 root = hashPair(ledger.hashWorkLeaf(leaf), OTHER_LEAF);
        Answer memory answer;
        (answer.header, answer.record) = postVerdicts(root, keccak256("reward"), 150, 10);
        answer.shown = show(leaf);
        vm.warp(block.timestamp + 20);
        send(answer);
        assertEq(ledger.deductionOf(pool, contributor), 60);
    }
}
