// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Accusation, CaseState, ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of SlashingCourt.execute and lapse.
contract ExecuteTest is Fixture {
    uint256 internal constant EXPIRY = START + 10 + 1 days;

    function test_WhenTheVetoWindowHasPassed_AnyoneCanBurnTheStake() public {
        Accusation memory accused = openCase(1);
        vm.warp(START + 9);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.WindowOpen.selector, START + 10));
        court.execute(accused);
        vm.warp(START + 10);
        vm.expectEmit();
        emit ISlashingCourt.CaseExecuted(accused.receiptHash, pool, node, contributor, 60);
        vm.prank(stranger);
        court.execute(accused);
        assertTrue(court.getCase(accused).state == CaseState.Slashed);
        assertEq(token.balanceOf(stakes.BURN()), 60);
        assertEq(token.balanceOf(stranger), 0);
        assertEq(stakeOf(contributor), 40);

        vm.expectRevert(
            abi.encodeWithSelector(
                ISlashingCourt.WrongCaseState.selector, accused.receiptHash, CaseState.Slashed
            )
        );
        court.execute(accused);
    }

    function test_WhenStakeIsUnbonding_ItIsSlashedToo() public {
        unbond(100);
        Accusation memory accused = openCase(1);
        vm.warp(START + 20);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.StakeIsLocked.selector, 60));
        withdraw();
        court.execute(accused);
        withdraw();
        assertEq(token.balanceOf(contributor), 40);
    }

    function test_WhenTwoCasesAreOpen_TogetherTheyTakeAtMostTheStake() public {
        Accusation memory first = openCase(1);
        Accusation memory second = openCase(2);
        assertEq(court.getCase(second).amount, 40);
        vm.warp(START + 10);
        court.execute(first);
        court.execute(second);
        assertEq(token.balanceOf(stakes.BURN()), 100);
        assertEq(token.balanceOf(address(stakes)), 1060);
    }

    function test_WhenTheGracePeriodHasPassed_ItRevertsAndAnyoneCanLapseTheCase() public {
        Accusation memory accused = openCase(1);
        vm.warp(EXPIRY - 1);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.WindowOpen.selector, EXPIRY));
        court.lapse(accused);
        vm.warp(EXPIRY);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.WindowClosed.selector, EXPIRY));
        court.execute(accused);
        vm.expectEmit();
        emit ISlashingCourt.CaseLapsed(accused.receiptHash, pool, node);
        vm.prank(stranger);
        court.lapse(accused);
        assertTrue(court.getCase(accused).state == CaseState.Lapsed);
        assertEq(stakes.lockedOf(pool, contributor), 0);
        assertEq(stakes.getExposure(pool, contributor).strikes, 0);
        assertEq(stakes.getExposure(pool, contributor).taken, 0);

        vm.expectRevert(
            abi.encodeWithSelector(ISlashingCourt.WrongCaseState.selector, accused.receiptHash, CaseState.Lapsed)
        );
        court.lapse(accused);
    }

    function test_WhenThereIsNoCase_ItReverts() public {
        Accusation memory accused = accuse(makeReceipt(9, keccak256("none")));
        bytes memory reason =
            abi.encodeWithSelector(ISlashingCourt.WrongCaseState.selector, accused.receiptHash, CaseState.None);
        vm.expectRevert(reason);
        court.execute(accused);
        vm.expectRevert(reason);
        court.lapse(accused);
    }
}
