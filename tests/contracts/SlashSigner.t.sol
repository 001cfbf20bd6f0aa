// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt} from "../../contracts/interfaces/ICoveyTypes.sol";
import {Accusation, CaseState, Finding, ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of SlashingCourt.slashSigner: a vetoed case costs the validators that signed it.
contract SlashSignerTest is Fixture {
    Receipt internal receipt;
    Accusation internal accused;

    function setUp() public override {
        super.setUp();
        receipt = makeReceipt(1, keccak256(abi.encode(1)));
        accused = openCase(1);
    }

    function veto() internal {
        vm.prank(arbiter);
        court.veto(accused);
    }

    function bondOf(uint256 i) internal view returns (uint256) {
        return stakes.stakeOf(pool, BondKind.VALIDATOR, validators[i]);
    }

    function test_WhenTheCaseWasVetoed_ItBurnsEachSignersBondOnce() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        veto();
        vm.expectEmit();
        emit ISlashingCourt.SignerSlashed(accused.receiptHash, pool, validators[0], 15);
        vm.prank(stranger);
        court.slashSigner(accused, receipt.workKey, findings[0]);
        court.slashSigner(accused, receipt.workKey, findings[1]);
        assertEq(bondOf(0), 5);
        assertEq(bondOf(1), 5);
        assertEq(bondOf(2), 20);
        assertEq(token.balanceOf(stakes.BURN()), 30);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.AlreadySlashed.selector));
        court.slashSigner(accused, receipt.workKey, findings[0]);
    }

    /// The unbonding window is longer than the veto window, so a signer cannot withdraw in time.
    function test_WhenTheSignerIsUnbonding_ItStillPays() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        vm.prank(validators[0]);
        stakes.unbond(pool, BondKind.VALIDATOR, 20);
        vm.warp(START + 9);
        veto();
        court.slashSigner(accused, receipt.workKey, findings[0]);
        vm.warp(START + 20);
        vm.prank(validators[0]);
        stakes.withdraw(pool, BondKind.VALIDATOR);
        assertEq(token.balanceOf(validators[0]), 5);
    }

    function test_WhenTheSignerWasReplaced_ItStillPays() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        vm.prank(operator);
        pools.replaceValidator(pool, validators[0], stranger);
        veto();
        court.slashSigner(accused, receipt.workKey, findings[0]);
        assertEq(bondOf(0), 5);
    }

    function test_WhenNoBondIsLeft_ItRevertsAndCanBeRetried() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        vm.prank(validators[0]);
        stakes.unbond(pool, BondKind.VALIDATOR, 20);
        vm.warp(START + 9);
        veto();
        vm.warp(START + 20);
        vm.prank(validators[0]);
        stakes.withdraw(pool, BondKind.VALIDATOR);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.NothingToSlash.selector));
        court.slashSigner(accused, receipt.workKey, findings[0]);
        bond(validators[0], BondKind.VALIDATOR, 20);
        court.slashSigner(accused, receipt.workKey, findings[0]);
        assertEq(bondOf(0), 5);
    }

    function test_WhenTheCaseWasNotVetoed_ItReverts() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        bytes4 selector = ISlashingCourt.WrongCaseState.selector;
        vm.expectRevert(abi.encodeWithSelector(selector, accused.receiptHash, CaseState.Locked));
        court.slashSigner(accused, receipt.workKey, findings[0]);
        vm.warp(START + 10);
        court.execute(accused);
        vm.expectRevert(abi.encodeWithSelector(selector, accused.receiptHash, CaseState.Slashed));
        court.slashSigner(accused, receipt.workKey, findings[0]);
    }

    function test_WhenTheValidatorDidNotSign_ItReverts() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        veto();
        findings[0].validator = validators[2];
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, validators[2]));
        court.slashSigner(accused, receipt.workKey, findings[0]);
        findings[0].validator = validators[0];
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, validators[0]));
        court.slashSigner(accused, keccak256("another"), findings[0]);
    }
}
