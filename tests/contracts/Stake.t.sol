// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {IPayouts} from "../../contracts/interfaces/IPayouts.sol";
import {BondKind, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of StakeManager.stake.
contract StakeTest is Fixture {
    function test_WhenApproved_ItCountsByPoolKindAndAccount() public {
        token.mint(stranger, 7);
        vm.prank(stranger);
        token.approve(address(stakes), 7);
        vm.expectEmit();
        emit IStakeManager.Staked(pool, stranger, BondKind.VALIDATOR, 7);
        vm.prank(stranger);
        stakes.stake(pool, BondKind.VALIDATOR, 7);

        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, stranger), 7);
        assertEq(stakeOf(stranger), 0);
        assertEq(stakeOf(contributor), 100);
        assertEq(stakes.stakeOf(pool + 1, BondKind.VALIDATOR, stranger), 0);
        assertEq(token.balanceOf(address(stakes)), 100 + 1000 + 60 + 7);
    }

    function test_WhenAmountIsZeroOrPoolIsNotOpen_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        stakes.stake(pool, BondKind.CONTRIBUTOR, 0);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.PoolNotOpen.selector, 99));
        stakes.stake(99, BondKind.CONTRIBUTOR, 1);
        vm.prank(operator);
        pools.endPool(pool);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.PoolNotOpen.selector, pool));
        stakes.stake(pool, BondKind.CONTRIBUTOR, 1);
    }

    function test_WhenAnotherAccountBondsAsOperator_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NotOperator.selector, pool, stranger));
        vm.prank(stranger);
        stakes.stake(pool, BondKind.OPERATOR, 1);
    }

    function test_WhenAmountDoesNotFit_ItReverts() public {
        uint256 amount = uint256(type(uint128).max) + 1;
        vm.expectRevert(abi.encodeWithSelector(SafeCast.SafeCastOverflowedUintDowncast.selector, 128, amount));
        stakes.stake(pool, BondKind.CONTRIBUTOR, amount);
    }
}
