// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPayouts} from "../../contracts/interfaces/IPayouts.sol";
import {BondKind, IStakeManager, Unbonding} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

contract UnbondTest is Fixture {
    function test_WhenCalledTwice_ItStartsTwoUnbondings() public {
        vm.expectEmit();
        emit IStakeManager.StakeUnbonded(pool, contributor, BondKind.CONTRIBUTOR, 30, START + 20);
        unbond(30);
        vm.warp(START + 5);
        unbond(20);
        assertEq(stakeOf(contributor), 50);
        assertEq(stakes.getBalance(pool, BondKind.CONTRIBUTOR, contributor).leaving, 50);
        Unbonding[] memory leaving = stakes.unbondingsOf(pool, BondKind.CONTRIBUTOR, contributor);
        assertEq(leaving.length, 2);
        assertEq(leaving[0].amount, 30);
        assertEq(leaving[0].availableAt, START + 20);
        assertEq(leaving[1].amount, 20);
        assertEq(leaving[1].availableAt, START + 25);
    }

    function test_WhenTheBondIsTheOperators_OnlyTheOperatorUnbonds() public {
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NotOperator.selector, pool, stranger));
        vm.prank(stranger);
        stakes.unbond(pool, BondKind.OPERATOR, 1000);
    }

    function test_WhenAmountIsZeroOrTooLarge_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        unbond(0);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.InsufficientStake.selector, 101, 100));
        unbond(101);
        vm.expectRevert(
            abi.encodeWithSelector(IStakeManager.InsufficientStake.selector, type(uint256).max, 100)
        );
        unbond(type(uint256).max);
    }

    function test_WhenSixteenAreUnderWay_ItReverts() public {
        for (uint256 i = 0; i < 16; ++i) {
            unbond(1);
        }
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.TooManyUnbondings.selector));
        unbond(1);
        vm.warp(START + 20);
        withdraw();
        unbond(84);
        assertEq(token.balanceOf(contributor), 16);
    }
}
