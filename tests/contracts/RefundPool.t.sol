// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochRecord, IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {IPayouts} from "../../contracts/interfaces/IPayouts.sol";
import {Fixture} from "./Fixture.sol";

contract RefundPoolTest is Fixture {
    function refund() internal {
        vm.prank(operator);
        ledger.refundPool(pool);
    }

    function test_WhenClosed_ItReturnsWhatNoEpochPromised() public {
        post(keccak256("reward"), 1000);
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 100);
        vm.expectEmit();
        emit IEpochLedger.PoolRefunded(pool, operator, 997_000);
        refund();
        assertEq(token.balanceOf(operator), 997_000);
        assertEq(ledger.escrowOf(pool), 3000);
        assertEq(ledger.owedOf(pool), 3000);

        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        refund();
    }

    function test_WhenAPromisedRewardIsUnclaimed_ItStaysClaimable() public {
        bytes32 leaf = ledger.hashRewardLeaf(block.chainid, address(ledger), pool, contributor, 3000);
        EpochRecord memory record = post(leaf, 1000);
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 100);
        refund();
        ledger.claim(pool, record, contributor, 3000, new bytes32[](0));
        assertEq(token.balanceOf(contributor), 3000);
        assertEq(token.balanceOf(address(ledger)), 0);
    }

    function test_WhenNotClosed_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.PoolNotClosed.selector, type(uint256).max));
        refund();
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 99);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.PoolNotClosed.selector, START + 100));
        refund();
    }

    function test_WhenAnyoneCalls_ThePaymentGoesToTheOperator() public {
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 100);
        vm.prank(stranger);
        ledger.refundPool(pool);
        assertEq(token.balanceOf(operator), 1_000_000);
        assertEq(token.balanceOf(stranger), 0);
    }
}
