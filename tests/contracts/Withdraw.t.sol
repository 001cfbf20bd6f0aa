// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {BondKind, IStakeManager, Unbonding} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

contract WithdrawTest is Fixture {
    function test_WhenSomeHasMatured_ItPaysThat() public {
        unbond(30);
        vm.warp(START + 5);
        unbond(20);
        vm.warp(START + 19);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NothingToWithdraw.selector));
        withdraw();
        vm.warp(START + 20);
        vm.expectEmit();
        emit IStakeManager.StakeWithdrawn(pool, contributor, BondKind.CONTRIBUTOR, 30);
        withdraw();
        assertEq(token.balanceOf(contributor), 30);
        Unbonding[] memory leaving = stakes.unbondingsOf(pool, BondKind.CONTRIBUTOR, contributor);
        assertEq(leaving.length, 1);
        assertEq(leaving[0].amount, 20);
        vm.warp(START + 25);
        withdraw();
        assertEq(token.balanceOf(contributor), 50);
        assertEq(stakeOf(contributor), 50);
    }

    function test_WhenThePoolHasEnded_ItPaysContributorsAndValidators() public {
        vm.prank(operator);
        pools.endPool(pool);
        unbond(100);
        vm.prank(validators[0]);
        stakes.unbond(pool, BondKind.VALIDATOR, 20);
        vm.warp(START + 20);
        withdraw();
        vm.prank(validators[0]);
        stakes.withdraw(pool, BondKind.VALIDATOR);
        assertEq(token.balanceOf(contributor), 100);
        assertEq(token.balanceOf(validators[0]), 20);
    }

    function test_WhenThePoolIsClosed_AnyoneReturnsTheBondThatWasNotUnbonded() public {
        vm.prank(operator);
        stakes.unbond(pool, BondKind.OPERATOR, 400);
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 100);
        vm.expectEmit();
        emit IStakeManager.StakeWithdrawn(pool, operator, BondKind.OPERATOR, 1000);
        vm.prank(stranger);
        stakes.withdraw(pool, BondKind.OPERATOR);
        assertEq(token.balanceOf(operator), 1000);
        assertEq(stakes.unbondingsOf(pool, BondKind.OPERATOR, operator).length, 0);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NothingToWithdraw.selector));
        stakes.withdraw(pool, BondKind.OPERATOR);
    }

    function test_WhenTheOperatorLeaves_ItWaitsUntilThePoolIsClosed() public {
        vm.prank(operator);
        stakes.unbond(pool, BondKind.OPERATOR, 1000);
        vm.warp(START + 50);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.PoolNotClosed.selector, type(uint256).max));
        vm.prank(operator);
        stakes.withdraw(pool, BondKind.OPERATOR);
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 149);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.PoolNotClosed.selector, START + 150));
        vm.prank(operator);
        stakes.withdraw(pool, BondKind.OPERATOR);
        vm.warp(START + 150);
        vm.prank(operator);
        stakes.withdraw(pool, BondKind.OPERATOR);
        assertEq(token.balanceOf(operator), 1000);
    }

    function test_WhenACaseIsOpen_ItReverts() public {
        unbond(100);
        openCase(1);
        vm.warp(START + 20);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.StakeIsLocked.selector, 60));
        withdraw();
    }

    function test_WhateverIsUnbonded_ItConservesStake(uint256 first, uint256 second, uint256 wait) public {
        first = bound(first, 1, 99);
        second = bound(second, 1, 100 - first);
        unbond(first);
        vm.warp(START + 7);
        unbond(second);
        vm.warp(START + 20 + bound(wait, 0, 14));
        withdraw();
        uint256 left = stakeOf(contributor);
        Unbonding[] memory leaving = stakes.unbondingsOf(pool, BondKind.CONTRIBUTOR, contributor);
        for (uint256 i = 0; i < leaving.length; ++i) {
            left += leaving[i].amount;
        }
        assertEq(left + token.balanceOf(contributor), 100);
        assertEq(token.balanceOf(address(stakes)), left + 1060);
    }
}
