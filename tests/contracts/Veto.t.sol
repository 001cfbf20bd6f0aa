// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Accusation, CaseState, ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {Fixture} from "./Fixture.sol";

contract VetoTest is Fixture {
    function test_WhenVetoed_ItFreesTheStakeForGood() public {
        Accusation memory accused = openCase(1);
        vm.expectEmit();
        emit ISlashingCourt.CaseVetoed(accused.receiptHash, pool, node);
        vm.prank(arbiter);
        court.veto(accused);
        assertTrue(court.getCase(accused).state == CaseState.Vetoed);
        assertEq(stakes.lockedOf(pool, contributor), 0);
        assertEq(stakeOf(contributor), 100);

        bytes memory reason = abi.encodeWithSelector(
            ISlashingCourt.WrongCaseState.selector, accused.receiptHash, CaseState.Vetoed
        );
        vm.expectRevert(reason);
        vm.prank(arbiter);
        court.veto(accused);
        vm.warp(START + 10);
        vm.expectRevert(reason);
        court.execute(accused);
        vm.warp(START + 10 + 1 days);
        vm.expectRevert(reason);
        court.lapse(accused);
    }

    /// The cap of a span is four cases. Four vetoed cases take nothing, so they do not use it up.
    function test_WhenManyAreVetoed_TheNextStillOpens() public {
        for (uint256 task = 1; task <= 4; ++task) {
            Accusation memory vetoed = openCase(task);
            vm.prank(arbiter);
            court.veto(vetoed);
        }
        Accusation memory accused = openCase(5);
        assertEq(court.getCase(accused).amount, 60);
        vm.warp(START + 10);
        court.execute(accused);
        assertEq(token.balanceOf(stakes.BURN()), 60);
    }

    function test_WhenCallerIsNotArbiter_ItReverts() public {
        Accusation memory accused = openCase(1);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.NotArbiter.selector, pool, operator));
        vm.prank(operator);
        court.veto(accused);
    }

    function test_WhenTheWindowHasPassed_ItReverts() public {
        Accusation memory accused = openCase(1);
        vm.warp(START + 10);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.WindowClosed.selector, START + 10));
        vm.prank(arbiter);
        court.veto(accused);
    }

    function test_WhenTheAccusationIsAltered_ItReverts() public {
        Accusation memory accused = openCase(1);
        bytes memory reason = abi.encodeWithSelector(
            ISlashingCourt.WrongCaseState.selector, accused.receiptHash, CaseState.None
        );
        accused.contributor = stranger;
        vm.expectRevert(reason);
        vm.prank(arbiter);
        court.veto(accused);
        accused.contributor = contributor;
        accused.pool = 2;
        vm.expectRevert(reason);
        vm.prank(arbiter);
        court.veto(accused);
    }
}
