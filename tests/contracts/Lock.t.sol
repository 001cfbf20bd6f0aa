// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {BondKind, IStakeManager, Lock, Unbonding} from "../../contracts/interfaces/IStakeManager.sol";
import {World} from "./World.sol";

/// lock, slash, release, releaseExpired, slashNow and payFromOperator; this test has the court's and ledger's roles.
contract LockTest is World {
    uint256 internal constant CASE = 77;
    address internal constant BURN = 0x000000000000000000000000000000000000dEaD;

    function setUp() public override {
        super.setUp();
        stakes.grantRole(stakes.COURT_ROLE(), address(this));
        stakes.grantRole(stakes.LEDGER_ROLE(), address(this));
    }

    function unbond(uint256 amount) internal {
        vm.prank(contributor);
        stakes.unbond(pool, BondKind.CONTRIBUTOR, amount);
    }

    function test_Lock_BacksTheCaseAndStopsWithdrawal() public {
        unbond(100);
        vm.expectEmit();
        emit IStakeManager.StakeLocked(CASE, pool, contributor, 60);
        assertEq(stakes.lock(pool, contributor, 60, CASE), 60);
        Lock memory held = stakes.getLock(CASE);
        assertEq(held.pool, pool);
        assertEq(held.account, contributor);
        assertEq(held.amount, 60);
        assertEq(held.expiresAt, START + 10 + 1 days);
        assertEq(stakes.lockedOf(pool, contributor), 60);
        vm.warp(START + 20);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.StakeIsLocked.selector, 60));
        vm.prank(contributor);
        stakes.withdraw(pool, BondKind.CONTRIBUTOR);
    }

    function test_Lock_TakesWhatIsFreeAndNoMore() public {
        assertEq(stakes.lock(pool, contributor, 60, CASE), 60);
        assertEq(stakes.lock(pool, contributor, 60, CASE + 1), 40);
        assertEq(stakes.lock(pool, contributor, 60, CASE + 2), 0);
        assertEq(stakes.lockedOf(pool, contributor), 100);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.LockExists.selector, CASE));
        stakes.lock(pool, contributor, 1, CASE);
    }

    function test_Lock_ReachesNoOtherPoolAndNoOtherKind() public {
        bond(contributor, BondKind.VALIDATOR, 500);
        assertEq(stakes.lock(pool, contributor, 1000, CASE), 100);
        uint256 other = makePool();
        assertEq(stakes.lock(other, contributor, 1000, CASE + 1), 0);
    }

    function test_Slash_BurnsBondedStakeFirstThenNewestUnbonding() public {
        unbond(30);
        vm.warp(START + 5);
        unbond(50);
        stakes.lock(pool, contributor, 60, CASE);

        vm.expectEmit();
        emit IStakeManager.StakeSlashed(pool, contributor, BondKind.CONTRIBUTOR, 60);
        assertEq(stakes.slash(CASE), 60);

        assertEq(token.balanceOf(BURN), 60);
        assertEq(stakes.stakeOf(pool, BondKind.CONTRIBUTOR, contributor), 0);
        Unbonding[] memory leaving = stakes.unbondingsOf(pool, BondKind.CONTRIBUTOR, contributor);
        assertEq(leaving.length, 2);
        assertEq(leaving[0].amount, 30);
        assertEq(leaving[1].amount, 10);
        assertEq(stakes.lockedOf(pool, contributor), 0);
        vm.warp(START + 25);
        vm.prank(contributor);
        stakes.withdraw(pool, BondKind.CONTRIBUTOR);
        assertEq(token.balanceOf(contributor), 40);
        assertEq(token.balanceOf(address(stakes)), 0);
    }

    function test_Slash_RefusesTwiceAndAfterExpiry() public {
        stakes.lock(pool, contributor, 60, CASE);
        stakes.lock(pool, contributor, 10, CASE + 1);
        stakes.slash(CASE);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NoLock.selector, CASE));
        stakes.slash(CASE);
        vm.warp(START + 10 + 1 days);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.LockExpired.selector, START + 10 + 1 days));
        stakes.slash(CASE + 1);
    }

    function test_Release_FreesTheStake() public {
        stakes.lock(pool, contributor, 60, CASE);
        vm.expectEmit();
        emit IStakeManager.StakeReleased(CASE, pool, contributor, 60);
        stakes.release(CASE);
        assertEq(stakes.lockedOf(pool, contributor), 0);
        assertEq(stakes.stakeOf(pool, BondKind.CONTRIBUTOR, contributor), 100);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NoLock.selector, CASE));
        stakes.release(CASE);
    }

    function test_ReleaseExpired_ByAnyoneAfterGrace() public {
        stakes.lock(pool, contributor, 60, CASE);
        vm.warp(START + 9 + 1 days);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.LockNotExpired.selector, START + 10 + 1 days));
        stakes.releaseExpired(CASE);
        vm.warp(START + 10 + 1 days);
        vm.prank(stranger);
        stakes.releaseExpired(CASE);
        assertEq(stakes.lockedOf(pool, contributor), 0);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NoLock.selector, CASE));
        stakes.releaseExpired(CASE);
    }

    function test_SlashNow_LeavesWhatBacksAnotherCase() public {
        stakes.lock(pool, contributor, 60, CASE);
        assertEq(stakes.slashNow(pool, contributor, 60), 40);
        assertEq(stakes.slash(CASE), 60);
        assertEq(token.balanceOf(BURN), 100);
        assertEq(stakes.slashNow(pool, contributor, 60), 0);
    }

    function test_PayFromOperator_PaysUpToTheBondUnbondingIncluded() public {
        bond(operator, BondKind.OPERATOR, 50);
        vm.prank(operator);
        stakes.unbond(pool, BondKind.OPERATOR, 20);
        vm.expectEmit();
        emit IStakeManager.BondPaid(pool, operator, contributor, 40);
        assertEq(stakes.payFromOperator(pool, contributor, 40), 40);
        assertEq(stakes.payFromOperator(pool, contributor, 40), 10);
        assertEq(stakes.payFromOperator(pool, contributor, 40), 0);
        assertEq(token.balanceOf(contributor), 50);
        assertEq(stakes.stakeOf(pool, BondKind.OPERATOR, operator), 0);
    }

    function test_RoleVerbs_RefuseEverybodyElse() public {
        stakes.lock(pool, contributor, 60, CASE);
        vm.expectRevert();
        vm.prank(operator);
        stakes.lock(pool, contributor, 60, CASE + 1);
        vm.expectRevert();
        vm.prank(arbiter);
        stakes.slash(CASE);
        vm.expectRevert();
        vm.prank(contributor);
        stakes.release(CASE);
        vm.expectRevert();
        vm.prank(operator);
        stakes.slashNow(pool, contributor, 1);
        vm.expectRevert();
        vm.prank(operator);
        stakes.payFromOperator(pool, stranger, 1);
    }

    function test_Slash_NeverTakesMoreThanStaked(uint256 leaving, uint256 first, uint256 second) public {
        leaving = bound(leaving, 1, 100);
        unbond(leaving);
        uint256 a = stakes.lock(pool, contributor, first % 150, CASE);
        uint256 b = stakes.lock(pool, contributor, second % 150, CASE + 1);
        stakes.slash(CASE);
        stakes.slash(CASE + 1);
        assertTrue(a + b <= 100);
        assertEq(token.balanceOf(BURN), a + b);
        assertEq(token.balanceOf(address(stakes)), 100 - a - b);
        vm.warp(START + 20);
        if (a + b < 100) {
            uint256 rest = 100 - a - b;
            uint256 bonded = stakes.stakeOf(pool, BondKind.CONTRIBUTOR, contributor);
            if (bonded < rest) {
                vm.prank(contributor);
                stakes.withdraw(pool, BondKind.CONTRIBUTOR);
            }
            assertEq(token.balanceOf(contributor) + bonded, rest);
        }
    }
}
