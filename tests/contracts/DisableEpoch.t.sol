// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochRecord, IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {Fixture} from "./Fixture.sol";

contract DisableEpochTest is Fixture {
    bytes32 internal constant REWARD = keccak256("reward");

    function disable(EpochRecord memory record) internal {
        vm.prank(arbiter);
        ledger.disableEpoch(pool, record, true);
    }

    function test_WhenDisabled_ItDisablesLaterEpochsAndReleasesTheirEscrow() public {
        EpochRecord memory stands = post(REWARD, 100);
        vm.warp(START + 5);
        EpochRecord memory falls = post(REWARD, 20);
        vm.warp(START + 6);
        EpochRecord memory fallsToo = post(REWARD, 3);
        vm.expectEmit();
        emit IEpochLedger.EpochDisabled(pool, 1);
        vm.expectEmit();
        emit IEpochLedger.EpochDisabled(pool, 2);
        disable(falls);

        assertTrue(ledger.isPosted(pool, stands));
        assertTrue(!ledger.isPosted(pool, falls));
        assertTrue(!ledger.isPosted(pool, fallsToo));
        assertEq(ledger.owedOf(pool), 300);
        assertEq(ledger.epochsOf(pool), 3);
        // The next epoch begins a new chain of headers, so nothing that was signed on top of these can be posted.
        assertEq(ledger.headOf(pool), bytes32(0));
        assertTrue(ledger.wasRefuted(falls.headerHash));
        assertTrue(!ledger.wasRefuted(fallsToo.headerHash) && !ledger.wasRefuted(stands.headerHash));

        vm.warp(START + 7);
        EpochRecord memory next = post(REWARD, 7);
        assertEq(next.epoch, 3);
        assertEq(next.cumulative, 321);
        assertTrue(ledger.isPosted(pool, next));
    }

    function test_WhenALaterEpochWasDisabledBefore_ItReleasesTheRest() public {
        EpochRecord memory first = post(REWARD, 1);
        vm.warp(START + 1);
        EpochRecord memory second = post(REWARD, 2);
        disable(second);
        vm.warp(START + 2);
        EpochRecord memory third = post(REWARD, 4);
        assertEq(ledger.owedOf(pool), 3 + 12);
        disable(first);
        assertEq(ledger.owedOf(pool), 0);
        assertTrue(!ledger.isPosted(pool, third));
    }

    function test_WhenCallerIsNotArbiter_ItReverts() public {
        EpochRecord memory record = post(REWARD, 1);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.NotArbiter.selector, pool, operator));
        vm.prank(operator);
        ledger.disableEpoch(pool, record, true);
    }

    function test_WhenUnknownOrAlreadyDisabled_ItReverts() public {
        EpochRecord memory record = post(REWARD, 1);
        record.reward += 1;
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 0));
        disable(record);
        record.reward -= 1;
        disable(record);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 0));
        disable(record);
    }

    function test_WhenTheWindowHasPassed_ItReverts() public {
        EpochRecord memory record = post(REWARD, 1);
        vm.warp(START + 10);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WindowClosed.selector, START + 10));
        disable(record);
        vm.warp(START + 9);
        disable(record);
    }
}
