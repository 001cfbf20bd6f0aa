// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochHeader} from "../../contracts/interfaces/ICoveyTypes.sol";
import {IEpochLedger, PostedEpoch} from "../../contracts/interfaces/IEpochLedger.sol";
import {IPoolRegistry} from "../../contracts/interfaces/IPoolRegistry.sol";
import {World} from "./World.sol";

/// post and disableEpoch.
contract PostTest is World {
    bytes32 internal constant WORK = keccak256("work");
    bytes32 internal constant REWARD = keccak256("reward");
    bytes32 internal constant DATA = keccak256("data");

    function post(uint64 units) internal returns (uint64) {
        vm.prank(operator);
        return ledger.post(pool, WORK, REWARD, 3, units, DATA);
    }

    function hashOf(uint64 epoch, uint64 units, bytes32 previousHash) internal view returns (bytes32) {
        return ledger.hashHeader(EpochHeader(pool, epoch, WORK, REWARD, 3, units, DATA, previousHash));
    }

    function test_Post_ChainsHeadersAndReservesTheReward() public {
        bytes32 first = hashOf(0, 100, 0);
        vm.expectEmit();
        emit IEpochLedger.EpochPosted(pool, 0, first, WORK, REWARD, 3, 100, DATA, 0);
        post(100);
        vm.warp(START + 4);
        bytes32 second = hashOf(1, 11, first);
        vm.expectEmit();
        emit IEpochLedger.EpochPosted(pool, 1, second, WORK, REWARD, 3, 11, DATA, first);
        assertEq(post(11), 1);

        assertEq(ledger.epochsOf(pool), 2);
        PostedEpoch memory kept = ledger.getEpoch(pool, 1);
        assertEq(kept.headerHash, second);
        assertEq(kept.rewardRoot, REWARD);
        assertEq(kept.postedAt, START + 4);
        assertEq(kept.units, 11);
        assertEq(kept.cumulativeUnits, 111);
        assertTrue(!kept.isDisabled);
        assertEq(pools.owedOf(pool), 333);
    }

    function test_Post_RefusesOthersIdlePoolsAndMoreThanFunded() public {
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.NotOperator.selector, pool, stranger));
        vm.prank(stranger);
        ledger.post(pool, WORK, REWARD, 3, 1, DATA);
        vm.prank(operator);
        uint256 created = pools.createPool(makeTerms(), validators, PARAMS);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.PoolNotStarted.selector, created));
        vm.prank(operator);
        ledger.post(created, WORK, REWARD, 3, 1, DATA);
        post(333_333);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.InsufficientEscrow.selector, pool, 3, 1));
        post(1);
    }

    function test_Post_WorksAfterTheEnd() public {
        vm.prank(operator);
        pools.endPool(pool);
        post(5);
        assertEq(ledger.unitsOf(pool), 5);
    }

    function test_Post_LeavesNoMoreOpenThanDisablingCanWalk() public {
        for (uint256 i = 0; i < 256; ++i) {
            post(1);
        }
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.TooManyOpenEpochs.selector));
        post(1);
        vm.prank(arbiter);
        ledger.disableEpoch(pool, 0);
        assertEq(ledger.unitsOf(pool), 0);
        assertEq(post(1), 256);
    }

    function test_IsFinal_AfterBothWindows() public {
        post(1);
        vm.warp(START + 19);
        assertTrue(!ledger.isFinal(pool, 0));
        vm.warp(START + 20);
        assertTrue(ledger.isFinal(pool, 0));
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 1));
        ledger.isFinal(pool, 1);
    }

    function test_DisableEpoch_FellsAllAfterItAndFreesTheEscrow() public {
        post(100);
        vm.warp(START + 5);
        post(20);
        post(3);
        vm.expectEmit();
        emit IEpochLedger.EpochDisabled(pool, 1, ledger.getEpoch(pool, 1).headerHash);
        vm.expectEmit();
        emit IEpochLedger.EpochDisabled(pool, 2, ledger.getEpoch(pool, 2).headerHash);
        vm.prank(arbiter);
        ledger.disableEpoch(pool, 1);

        assertTrue(!ledger.getEpoch(pool, 0).isDisabled);
        assertTrue(ledger.getEpoch(pool, 1).isDisabled);
        assertTrue(ledger.getEpoch(pool, 2).isDisabled);
        assertEq(ledger.unitsOf(pool), 100);
        assertEq(pools.owedOf(pool), 300);
        vm.warp(START + 1000);
        assertTrue(!ledger.isFinal(pool, 1));

        bytes32 previous = ledger.getEpoch(pool, 2).headerHash;
        assertEq(post(7), 3);
        assertEq(ledger.getEpoch(pool, 3).headerHash, hashOf(3, 7, previous));
        assertEq(ledger.getEpoch(pool, 3).cumulativeUnits, 107);
    }

    function test_DisableEpoch_RefusesOthersTwiceAndLate() public {
        post(1);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.NotArbiter.selector, pool, operator));
        vm.prank(operator);
        ledger.disableEpoch(pool, 0);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 1));
        vm.prank(arbiter);
        ledger.disableEpoch(pool, 1);
        vm.warp(START + 10);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WindowClosed.selector, START + 10));
        vm.prank(arbiter);
        ledger.disableEpoch(pool, 0);
        vm.warp(START + 9);
        vm.prank(arbiter);
        ledger.disableEpoch(pool, 0);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.EpochIsDisabled.selector, 0));
        vm.prank(arbiter);
        ledger.disableEpoch(pool, 0);
    }
}
