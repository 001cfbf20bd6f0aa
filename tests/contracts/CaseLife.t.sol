// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {CaseState, ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {World} from "./World.sol";

/// veto, execute and lapse.
contract CaseLifeTest is World {
    uint256 internal constant EXPIRY = START + 10 + 1 days;

    function state(uint256 caseId, CaseState expected) internal view {
        assertTrue(court.getCase(caseId).state == expected);
    }

    function closed(uint256 caseId, CaseState current) internal {
        bytes memory reason = abi.encodeWithSelector(ISlashingCourt.WrongCaseState.selector, caseId, current);
        vm.expectRevert(reason);
        vm.prank(arbiter);
        court.veto(caseId);
        vm.expectRevert(reason);
        court.execute(caseId);
        vm.expectRevert(reason);
        court.lapse(caseId);
    }

    function test_Veto_FreesTheStakeForGood() public {
        uint256 id = openCase(1);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.NotArbiter.selector, pool, operator));
        vm.prank(operator);
        court.veto(id);
        vm.expectEmit();
        emit ISlashingCourt.CaseVetoed(id, pool, node);
        vm.prank(arbiter);
        court.veto(id);
        state(id, CaseState.Vetoed);
        assertEq(stakes.lockedOf(pool, contributor), 0);
        assertEq(stakes.stakeOf(pool, BondKind.CONTRIBUTOR, contributor), 100);
        closed(id, CaseState.Vetoed);
    }

    function test_Veto_RefusesAfterItsWindow() public {
        uint256 id = openCase(1);
        vm.warp(START + 10);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.WindowClosed.selector, START + 10));
        vm.prank(arbiter);
        court.veto(id);
    }

    function test_Execute_BurnsByAnyoneAfterTheVetoWindow() public {
        uint256 id = openCase(1);
        vm.warp(START + 9);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.WindowOpen.selector, START + 10));
        court.execute(id);
        vm.warp(START + 10);
        vm.expectEmit();
        emit ISlashingCourt.CaseExecuted(id, pool, node, contributor, 60);
        vm.prank(stranger);
        court.execute(id);
        state(id, CaseState.Slashed);
        assertEq(token.balanceOf(stakes.BURN()), 60);
        assertEq(token.balanceOf(stranger), 0);
        assertEq(stakes.stakeOf(pool, BondKind.CONTRIBUTOR, contributor), 40);
        closed(id, CaseState.Slashed);
    }

    function test_Execute_ReachesStakeThatIsUnbonding() public {
        vm.prank(contributor);
        stakes.unbond(pool, BondKind.CONTRIBUTOR, 100);
        uint256 id = openCase(1);
        vm.warp(START + 20);
        vm.expectRevert();
        vm.prank(contributor);
        stakes.withdraw(pool, BondKind.CONTRIBUTOR);
        court.execute(id);
        vm.prank(contributor);
        stakes.withdraw(pool, BondKind.CONTRIBUTOR);
        assertEq(token.balanceOf(contributor), 40);
    }

    function test_Execute_TwoCasesTakeEachTheirCapAndNoMoreThanThereIs() public {
        uint256 first = openCase(1);
        uint256 second = openCase(2);
        assertEq(court.getCase(second).amount, 40);
        vm.warp(START + 10);
        court.execute(first);
        court.execute(second);
        assertEq(token.balanceOf(stakes.BURN()), 100);
        assertEq(token.balanceOf(address(stakes)), 0);
    }

    function test_Execute_RefusesAfterTheLockExpired() public {
        uint256 id = openCase(1);
        vm.warp(EXPIRY);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.WindowClosed.selector, EXPIRY));
        court.execute(id);
    }

    function test_Lapse_ByAnyoneFreesTheStake() public {
        uint256 id = openCase(1);
        vm.warp(EXPIRY - 1);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.WindowOpen.selector, EXPIRY));
        court.lapse(id);
        vm.warp(EXPIRY);
        vm.expectEmit();
        emit ISlashingCourt.CaseLapsed(id, pool, node);
        vm.prank(stranger);
        court.lapse(id);
        state(id, CaseState.Lapsed);
        assertEq(stakes.lockedOf(pool, contributor), 0);
        closed(id, CaseState.Lapsed);
    }

    function test_Lapse_WorksAfterTheStakeWasReleasedAlready() public {
        uint256 id = openCase(1);
        vm.warp(EXPIRY);
        stakes.releaseExpired(id);
        court.lapse(id);
        state(id, CaseState.Lapsed);
    }

    function test_UnknownCase_Refused() public {
        closed(99, CaseState.None);
    }
}
