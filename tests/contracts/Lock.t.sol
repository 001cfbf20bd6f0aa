// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind, Hold, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of StakeManager.lock and release, called as the court.
contract LockTest is Fixture {
    uint32 internal constant SPAN = uint32(START / 20);

    function lock(uint256 to, bool isHeavy) internal returns (uint256) {
        vm.prank(address(court));
        return stakes.lock(to, contributor, isHeavy).amount;
    }

    function release(uint96 amount, uint32 span) internal {
        vm.prank(address(court));
        stakes.release(pool, contributor, Hold(amount, span));
    }

    function makeStrictPool(uint16 lightSlashBps, uint8 strikes, uint8 maxSlashes) internal returns (uint256) {
        PoolTerms memory terms = makeTerms();
        terms.lightSlashBps = lightSlashBps;
        terms.strikes = strikes;
        terms.maxSlashes = maxSlashes;
        uint256 strict = makePool(terms);
        bondIn(strict, contributor, BondKind.CONTRIBUTOR, 1000);
        return strict;
    }

    function test_WhenLocked_ItBacksTheCaseAndCountsAStrike() public {
        assertEq(lock(pool, false), 60);
        assertEq(stakes.lockedOf(pool, contributor), 60);
        assertEq(stakes.getExposure(pool, contributor).strikes, 1);
        assertEq(stakeOf(contributor), 100);
    }

    function test_WhenLessIsFree_ItLocksTheRest() public {
        assertEq(lock(pool, false), 60);
        assertEq(lock(pool, false), 40);
        assertEq(stakes.lockedOf(pool, contributor), 100);
    }

    /// Otherwise the case would use up its receipt, and take nothing once the other stake is free again.
    function test_WhenNothingIsFree_ItReverts() public {
        lock(pool, false);
        lock(pool, false);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NoFreeStake.selector));
        vm.prank(address(court));
        stakes.lock(pool, contributor, false);
        assertEq(stakes.getExposure(pool, contributor).strikes, 2);
    }

    function test_WhenAPoolSlashesNothing_ItLocksNothing() public {
        assertEq(lock(makeStrictPool(0, 1, 4), false), 0);
    }

    function test_WhenStakeIsUnbonding_ItLocksThatToo() public {
        unbond(100);
        assertEq(lock(pool, false), 60);
    }

    function test_ItReachesNoOtherPoolAndNoOtherKind() public {
        bond(contributor, BondKind.VALIDATOR, 500);
        assertEq(lock(pool, false) + lock(pool, false), 100);
        uint256 other = makePool(makeTerms());
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NoFreeStake.selector));
        vm.prank(address(court));
        stakes.lock(other, contributor, false);
    }

    /// The first two cases take a quarter of 60 if they are light, and all of it if they are heavy. Later ones take
    /// all.
    function test_WhenStrikesAreLeft_ItTakesTheLightPart() public {
        uint256 strict = makeStrictPool(2500, 2, 4);
        assertEq(lock(strict, false), 15);
        assertEq(lock(strict, true), 60);
        assertEq(lock(strict, false), 60);
        assertEq(stakes.getExposure(strict, contributor).strikes, 3);
    }

    /// 60 x 3,333 / 10,000 is 19.998. Rounding never takes more.
    function test_WhenTheLightPartIsFractional_ItRoundsDown() public {
        assertEq(lock(makeStrictPool(3333, 1, 4), false), 19);
    }

    function test_WhenTheCapIsReached_ItRevertsUntilTheNextSpan() public {
        uint256 strict = makeStrictPool(5000, 1, 2);
        assertEq(lock(strict, false), 30);
        assertEq(lock(strict, false), 60);
        assertEq(lock(strict, false), 30);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.SlashCapReached.selector, START + 20));
        vm.prank(address(court));
        stakes.lock(strict, contributor, false);
        vm.warp(START + 19);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.SlashCapReached.selector, START + 20));
        vm.prank(address(court));
        stakes.lock(strict, contributor, true);
        vm.warp(START + 20);
        assertEq(lock(strict, false), 60);
        assertEq(stakes.getExposure(strict, contributor).taken, 60);
    }

    function test_WhenLocked_ItCountsInTheSpanOfItsTime() public {
        vm.warp(START + 19);
        vm.prank(address(court));
        uint32 first = stakes.lock(pool, contributor, true).span;
        vm.warp(START + 20);
        vm.prank(address(court));
        uint32 second = stakes.lock(pool, contributor, true).span;
        assertEq(first, SPAN);
        assertEq(second, SPAN + 1);
        assertEq(stakes.getExposure(pool, contributor).takenIn, SPAN + 1);
    }

    function test_WhenReleased_ItFreesStakeAndTakesTheStrikeBack() public {
        lock(pool, false);
        release(60, SPAN);
        assertEq(stakes.lockedOf(pool, contributor), 0);
        assertEq(stakes.getExposure(pool, contributor).strikes, 0);
        assertEq(stakes.getExposure(pool, contributor).taken, 0);
        assertEq(stakeOf(contributor), 100);
    }

    /// Two cases of 60 reach the cap of 120 for one span. Releasing one of them makes room for 60.
    function test_WhenReleasedInItsSpan_TheCapHasRoomAgain() public {
        uint256 strict = makeStrictPool(10_000, 0, 2);
        lock(strict, false);
        lock(strict, false);
        vm.prank(address(court));
        stakes.release(strict, contributor, Hold(60, SPAN));
        assertEq(lock(strict, false), 60);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.SlashCapReached.selector, START + 20));
        vm.prank(address(court));
        stakes.lock(strict, contributor, false);
    }

    /// A case of the previous span has not used the cap of this one.
    function test_WhenReleasedInALaterSpan_ThatSpansCapStays() public {
        bond(contributor, BondKind.CONTRIBUTOR, 100);
        lock(pool, false);
        vm.warp(START + 20);
        lock(pool, false);
        release(60, SPAN);
        assertEq(stakes.lockedOf(pool, contributor), 60);
        assertEq(stakes.getExposure(pool, contributor).taken, 60);
        release(60, SPAN + 1);
        assertEq(stakes.getExposure(pool, contributor).taken, 0);
    }

    function test_WhenCallerIsNotTheCourt_ItReverts() public {
        address[3] memory callers = [operator, arbiter, address(ledger)];
        for (uint256 i = 0; i < 3; ++i) {
            bytes memory reason = abi.encodeWithSelector(IStakeManager.NotCourt.selector, callers[i]);
            vm.expectRevert(reason);
            vm.prank(callers[i]);
            stakes.lock(pool, contributor, true);
            vm.expectRevert(reason);
            vm.prank(callers[i]);
            stakes.release(pool, contributor, Hold(0, SPAN));
            vm.expectRevert(reason);
            vm.prank(callers[i]);
            stakes.slash(pool, contributor, 0);
            vm.expectRevert(reason);
            vm.prank(callers[i]);
            stakes.slashValidator(pool, validators[0], false);
        }
    }
}
