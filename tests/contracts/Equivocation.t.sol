// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt} from "../../contracts/interfaces/ICoveyTypes.sol";
import {ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {BondKind, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

contract EquivocationTest is Fixture {
    Receipt internal a;
    Receipt internal b;

    function setUp() public override {
        super.setUp();
        a = makeReceipt(1, keccak256("one"));
        b = makeReceipt(1, keccak256("two"));
    }

    function refuse() internal {
        bytes memory first = signReceipt(a);
        bytes memory second = signReceipt(b);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.NotEquivocation.selector));
        court.slashForEquivocation(a, first, b, second);
    }

    function test_WhenTwoReceiptsContradict_ItSlashesAtOnceAndOnce() public {
        bytes memory first = signReceipt(a);
        bytes memory second = signReceipt(b);
        vm.expectEmit();
        emit ISlashingCourt.EquivocationSlashed(pool, node, contributor, 1, 9, 60);
        vm.prank(stranger);
        court.slashForEquivocation(a, first, b, second);
        assertEq(token.balanceOf(stakes.BURN()), 60);
        assertEq(stakeOf(contributor), 40);
        assertEq(token.balanceOf(stranger), 0);

        bytes memory reason = abi.encodeWithSelector(ISlashingCourt.AlreadySlashed.selector);
        vm.expectRevert(reason);
        court.slashForEquivocation(b, second, a, first);
        b.workKey = keccak256("three");
        second = signReceipt(b);
        vm.expectRevert(reason);
        court.slashForEquivocation(a, first, b, second);
    }

    function test_WhenInTheOtherOrder_ItSlashesToo() public {
        court.slashForEquivocation(b, signReceipt(b), a, signReceipt(a));
        assertEq(token.balanceOf(stakes.BURN()), 60);
    }

    function test_WhenReceiptsDoNotContradict_ItReverts() public {
        b.workKey = a.workKey;
        b.units = 51;
        refuse();
        b = makeReceipt(2, keccak256("two"));
        refuse();
        b = makeReceipt(1, keccak256("two"));
        b.lease = 10;
        refuse();
        b = makeReceipt(1, keccak256("two"));
        b.policyVersion = 5;
        refuse();
        b = makeReceipt(1, keccak256("two"));
        b.pool = 2;
        refuse();
        b = makeReceipt(1, keccak256("two"));
        b.contributor = stranger;
        refuse();
        b = makeReceipt(1, keccak256("two"));
        b.node = stranger;
        refuse();
    }

    function test_WhenASignatureIsForged_ItReverts() public {
        bytes memory first = signReceipt(a);
        bytes memory forged = sign(STRANGER_KEY, court.digestReceipt(b));
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, node));
        court.slashForEquivocation(a, first, b, forged);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, node));
        court.slashForEquivocation(a, first, b, first);
    }

    function test_WhenTheContributorNeverVouched_ItReverts() public {
        a.contributor = stranger;
        b.contributor = stranger;
        bytes memory first = signReceipt(a);
        bytes memory second = signReceipt(b);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.NotLiable.selector, node, stranger));
        court.slashForEquivocation(a, first, b, second);
    }

    function test_WhenACaseHoldsStake_ItTakesTheRest() public {
        openCase(3);
        court.slashForEquivocation(a, signReceipt(a), b, signReceipt(b));
        assertEq(token.balanceOf(stakes.BURN()), 40);
        assertEq(stakeOf(contributor), 60);
        assertEq(stakes.lockedOf(pool, contributor), 60);
    }

    /// A contributor that reports itself while none of its stake is free gains no immunity.
    function test_WhenNoStakeIsFree_ItRevertsAndCanBeRetried() public {
        openCase(3);
        openCase(4);
        bytes memory first = signReceipt(a);
        bytes memory second = signReceipt(b);
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NoFreeStake.selector));
        court.slashForEquivocation(a, first, b, second);
        bond(contributor, BondKind.CONTRIBUTOR, 60);
        court.slashForEquivocation(a, first, b, second);
        assertEq(token.balanceOf(stakes.BURN()), 60);
    }
}
