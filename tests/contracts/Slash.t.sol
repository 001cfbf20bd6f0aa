// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {BondKind, IStakeManager, Unbonding} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of StakeManager.slash, called as the court, and of payFromOperator, called as the ledger.
contract SlashTest is Fixture {
    address internal constant BURN = 0x000000000000000000000000000000000000dEaD;

    function lock() internal returns (uint96) {
        vm.prank(address(court));
        return stakes.lock(pool, contributor, true).amount;
    }

    function slash(uint96 amount) internal {
        vm.prank(address(court));
        stakes.slash(pool, contributor, amount);
    }

    function test_WhenSlashed_ItBurnsBondedStakeThenTheNewestUnbonding() public {
        unbond(30);
        vm.warp(START + 5);
        unbond(50);
        uint96 amount = lock();

        vm.expectEmit();
        emit IStakeManager.StakeSlashed(pool, contributor, BondKind.CONTRIBUTOR, 60);
        slash(amount);

        assertEq(token.balanceOf(BURN), 60);
        assertEq(stakeOf(contributor), 0);
        Unbonding[] memory leaving = stakes.unbondingsOf(pool, BondKind.CONTRIBUTOR, contributor);
        assertEq(leaving.length, 2);
        assertEq(leaving[0].amount, 30);
        assertEq(leaving[1].amount, 10);
        assertEq(stakes.lockedOf(pool, contributor), 0);
        vm.warp(START + 25);
        withdraw();
        assertEq(token.balanceOf(contributor), 40);
        assertEq(token.balanceOf(address(stakes)), 1060);
    }

    function test_WhenAWholeUnbondingIsTaken_ItIsRemoved() public {
        unbond(50);
        vm.warp(START + 5);
        unbond(45);
        slash(lock());
        // 60 are burned: the 5 that are bonded, 45 of the newest unbonding, 10 of the older one.
        Unbonding[] memory leaving = stakes.unbondingsOf(pool, BondKind.CONTRIBUTOR, contributor);
        assertEq(leaving.length, 1);
        assertEq(leaving[0].amount, 40);
    }

    function test_WhenMoreThanLocked_ItReverts() public {
        uint96 amount = lock();
        vm.expectRevert(abi.encodeWithSignature("Panic(uint256)", 0x11));
        vm.prank(address(court));
        stakes.slash(pool, contributor, amount + 1);
    }

    function test_WhateverIsLeaving_ItNeverTakesMoreThanStaked(uint256 leaving, uint256 cases) public {
        leaving = bound(leaving, 0, 100);
        cases = bound(cases, 1, 3);
        if (leaving > 0) unbond(leaving);
        uint256 taken = 0;
        for (uint256 i = 0; i < (cases < 3 ? cases : 2); ++i) {
            uint96 amount = lock();
            slash(amount);
            taken += amount;
        }
        assertEq(taken, cases == 1 ? 60 : 100);
        assertEq(token.balanceOf(BURN), taken);
        vm.warp(START + 20);
        uint256 bonded = stakeOf(contributor);
        if (bonded + taken < 100) withdraw();
        assertEq(token.balanceOf(contributor) + bonded + taken, 100);
    }

    function pay(uint256 amount) internal returns (uint256) {
        vm.prank(address(ledger));
        return stakes.payFromOperator(pool, contributor, amount);
    }

    /// Of a bond of 1,000, 970 are unbonding. 40 are paid and 40 burned, then half of the other 920 is paid and half
    /// burned.
    function test_WhenTheOperatorPays_AtMostHalfOfTheBondIsPaid() public {
        vm.prank(operator);
        stakes.unbond(pool, BondKind.OPERATOR, 970);
        vm.expectEmit();
        emit IStakeManager.BondPaid(pool, operator, contributor, 40);
        vm.expectEmit();
        emit IStakeManager.StakeSlashed(pool, operator, BondKind.OPERATOR, 40);
        assertEq(pay(40), 40);
        assertEq(token.balanceOf(BURN), 40);
        assertEq(pay(600), 460);
        assertEq(token.balanceOf(BURN), 500);
        assertEq(pay(type(uint256).max), 0);
        assertEq(token.balanceOf(contributor), 500);
        assertEq(stakes.stakeOf(pool, BondKind.OPERATOR, operator), 0);
    }

    /// An operator that omits the work of an accomplice burns as much of its bond as the accomplice receives.
    function test_WhateverIsAsked_ItBurnsAsMuchAsItPays(uint256 amount, uint256 leaving, uint256 more) public {
        bond(operator, BondKind.OPERATOR, bound(more, 1, 1000));
        uint256 total = stakes.stakeOf(pool, BondKind.OPERATOR, operator);
        vm.prank(operator);
        stakes.unbond(pool, BondKind.OPERATOR, bound(leaving, 1, total));
        uint256 paid = pay(amount);
        assertEq(paid, amount < total / 2 ? amount : total / 2);
        assertEq(token.balanceOf(contributor), paid);
        assertEq(token.balanceOf(BURN), paid);
        assertEq(token.balanceOf(address(stakes)), 160 + total - 2 * paid);
    }

    function test_WhenCallerIsNotTheLedger_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NotLedger.selector, address(court)));
        vm.prank(address(court));
        stakes.payFromOperator(pool, stranger, 1);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NotLedger.selector, operator));
        vm.prank(operator);
        stakes.payFromOperator(pool, stranger, 1);
    }
}
