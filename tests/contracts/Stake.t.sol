// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {BondKind, IStakeManager, Unbonding} from "../../contracts/interfaces/IStakeManager.sol";
import {World} from "./World.sol";

/// stake, unbond and withdraw.
contract StakeTest is World {
    function unbond(uint256 amount) internal {
        vm.prank(contributor);
        stakes.unbond(pool, BondKind.CONTRIBUTOR, amount);
    }

    function withdraw() internal {
        vm.prank(contributor);
        stakes.withdraw(pool, BondKind.CONTRIBUTOR);
    }

    function test_Stake_CountsByPoolKindAndAccount() public {
        token.mint(stranger, 7);
        vm.prank(stranger);
        token.approve(address(stakes), 7);
        vm.expectEmit();
        emit IStakeManager.Staked(pool, stranger, BondKind.VALIDATOR, 7);
        vm.prank(stranger);
        stakes.stake(pool, BondKind.VALIDATOR, 7);

        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, stranger), 7);
        assertEq(stakes.stakeOf(pool, BondKind.CONTRIBUTOR, stranger), 0);
        assertEq(stakes.stakeOf(pool, BondKind.CONTRIBUTOR, contributor), 100);
        assertEq(stakes.stakeOf(pool + 1, BondKind.VALIDATOR, stranger), 0);
        assertEq(token.balanceOf(address(stakes)), 107);
    }

    function test_Stake_RefusesNothingUnknownAndEnded() public {
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.ZeroAmount.selector));
        stakes.stake(pool, BondKind.CONTRIBUTOR, 0);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.PoolNotOpen.selector, 99));
        stakes.stake(99, BondKind.CONTRIBUTOR, 1);
        vm.prank(operator);
        pools.endPool(pool);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.PoolNotOpen.selector, pool));
        stakes.stake(pool, BondKind.CONTRIBUTOR, 1);
    }

    function test_Unbond_StartsSeveralWaysOut() public {
        vm.expectEmit();
        emit IStakeManager.StakeUnbonded(pool, contributor, BondKind.CONTRIBUTOR, 30, START + 20);
        unbond(30);
        vm.warp(START + 5);
        unbond(20);
        assertEq(stakes.stakeOf(pool, BondKind.CONTRIBUTOR, contributor), 50);
        Unbonding[] memory leaving = stakes.unbondingsOf(pool, BondKind.CONTRIBUTOR, contributor);
        assertEq(leaving.length, 2);
        assertEq(leaving[0].amount, 30);
        assertEq(leaving[0].availableAt, START + 20);
        assertEq(leaving[1].amount, 20);
        assertEq(leaving[1].availableAt, START + 25);
    }

    function test_Unbond_RefusesNothingAndTooMuch() public {
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.ZeroAmount.selector));
        unbond(0);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.InsufficientStake.selector, 101, 100));
        unbond(101);
    }

    function test_Unbond_RefusesMoreWaysOutThanSlashingCanWalk() public {
        for (uint256 i = 0; i < 16; ++i) {
            unbond(1);
        }
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.TooManyUnbondings.selector));
        unbond(1);
        vm.warp(START + 20);
        withdraw();
        unbond(1);
        assertEq(token.balanceOf(contributor), 16);
    }

    function test_Withdraw_PaysOnlyWhatHasMatured() public {
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
        assertEq(token.balanceOf(address(stakes)), 50);
    }

    function test_Withdraw_WorksAfterThePoolHasEnded() public {
        vm.prank(operator);
        pools.endPool(pool);
        unbond(100);
        vm.warp(START + 20);
        withdraw();
        assertEq(token.balanceOf(contributor), 100);
    }

    function test_Withdraw_ConservesStake(uint256 first, uint256 second, uint256 wait) public {
        first = bound(first, 1, 99);
        second = bound(second, 1, 100 - first);
        unbond(first);
        vm.warp(START + 7);
        unbond(second);
        vm.warp(START + 20 + bound(wait, 0, 14));
        withdraw();
        uint256 left = stakes.stakeOf(pool, BondKind.CONTRIBUTOR, contributor);
        Unbonding[] memory leaving = stakes.unbondingsOf(pool, BondKind.CONTRIBUTOR, contributor);
        for (uint256 i = 0; i < leaving.length; ++i) {
            left += leaving[i].amount;
        }
        assertEq(left + token.balanceOf(contributor), 100);
        assertEq(token.balanceOf(address(stakes)), left);
    }
}
