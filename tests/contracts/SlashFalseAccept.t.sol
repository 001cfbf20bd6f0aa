// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt, Verdict} from "../../contracts/interfaces/ICoveyTypes.sol";
import {Accusation, CaseState, Finding, ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {BondKind, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of SlashingCourt.slashFalseAccept: an executed case costs a validator that accepted after a whole replay 20.
contract SlashFalseAcceptTest is Fixture {
    Receipt internal receipt;
    Accusation internal accused;

    function setUp() public override {
        super.setUp();
        receipt = makeReceipt(1, keccak256(abi.encode(1)));
        accused = openCase(1);
    }

    function accept(uint256 i, uint8 severity) internal view returns (Finding memory) {
        Verdict memory verdict = makeVerdict(receipt, i);
        (verdict.outcome, verdict.reason, verdict.severity, verdict.units) = (1, 0, severity, 50);
        return makeFinding(verdict, validatorKeys[i]);
    }

    function execute() internal {
        vm.warp(START + 10);
        court.execute(accused);
    }

    function refuse(bytes memory reason, Finding memory finding) internal {
        vm.expectRevert(reason);
        court.slashFalseAccept(accused, receipt.workKey, finding);
    }

    function forged(uint256 i) internal view returns (bytes memory) {
        return abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, validators[i]);
    }

    function test_WhenTheCaseWasExecuted_ItBurnsTheBondOnce() public {
        Finding memory finding = accept(2, 2);
        execute();
        vm.expectEmit();
        emit ISlashingCourt.FalseAcceptSlashed(accused.receiptHash, pool, validators[2], 20);
        vm.prank(stranger);
        court.slashFalseAccept(accused, receipt.workKey, finding);
        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, validators[2]), 0);
        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, validators[0]), 20);
        assertEq(token.balanceOf(stakes.BURN()), 80);
        refuse(abi.encodeWithSelector(ISlashingCourt.AlreadySlashed.selector), finding);
    }

    function test_WhenTheValidatorIsUnbonding_ItStillPays() public {
        vm.prank(validators[2]);
        stakes.unbond(pool, BondKind.VALIDATOR, 20);
        Finding memory finding = accept(2, 2);
        execute();
        court.slashFalseAccept(accused, receipt.workKey, finding);
        assertEq(stakes.backingOf(pool, BondKind.VALIDATOR, validators[2]), 0);
    }

    /// A validator that has repeated a part of the work may honestly have missed the rest.
    function test_WhenOnlyAPartWasRepeated_ItReverts() public {
        Finding memory finding = accept(2, 0);
        execute();
        refuse(forged(2), finding);
    }

    function test_WhenTheVerdictIsAnother_ItReverts() public {
        Finding memory finding = accept(2, 2);
        Finding[] memory rejects = makeFindings(receipt, 2);
        execute();
        refuse(forged(0), rejects[0]);
        finding.validator = validators[1];
        refuse(forged(1), finding);
        finding.validator = validators[2];
        vm.expectRevert(forged(2));
        court.slashFalseAccept(accused, keccak256("another file"), finding);
    }

    /// A replay of one submission cannot show that another has the same proof (8), or contradicts it (9).
    function test_WhenAReplayCannotShowTheReason_ItReverts() public {
        for (uint8 reason = 8; reason < 10; ++reason) {
            receipt = makeReceipt(reason, keccak256(abi.encode(reason)));
            bytes memory signature = signReceipt(receipt);
            Finding[] memory findings = new Finding[](2);
            for (uint256 i = 0; i < 2; ++i) {
                Verdict memory verdict = makeVerdict(receipt, i);
                verdict.reason = reason;
                findings[i] = makeFinding(verdict, validatorKeys[i]);
            }
            bond(contributor, BondKind.CONTRIBUTOR, 100);
            court.propose(receipt, signature, reason, findings);
            accused = Accusation(court.hashReceipt(receipt), pool, node, contributor);
            Finding memory finding = accept(2, 2);
            vm.warp(block.timestamp + 10);
            court.execute(accused);
            refuse(abi.encodeWithSelector(ISlashingCourt.NotReplayable.selector, reason), finding);
        }
    }

    function test_WhenTheCaseWasNotExecuted_ItReverts() public {
        Finding memory finding = accept(2, 2);
        bytes4 selector = ISlashingCourt.WrongCaseState.selector;
        refuse(abi.encodeWithSelector(selector, accused.receiptHash, CaseState.Locked), finding);
        vm.prank(arbiter);
        court.veto(accused);
        refuse(abi.encodeWithSelector(selector, accused.receiptHash, CaseState.Vetoed), finding);
    }

    function test_WhenNoBondIsLeft_ItRevertsAndCanBeRetried() public {
        vm.prank(validators[2]);
        stakes.unbond(pool, BondKind.VALIDATOR, 20);
        Finding memory finding = accept(2, 2);
        execute();
        vm.warp(START + 20);
        vm.prank(validators[2]);
        stakes.withdraw(pool, BondKind.VALIDATOR);
        refuse(abi.encodeWithSelector(ISlashingCourt.NothingToSlash.selector), finding);
        bond(validators[2], BondKind.VALIDATOR, 7);
        court.slashFalseAccept(accused, receipt.workKey, finding);
        assertEq(stakes.stakeOf(pool, BondKind.VALIDATOR, validators[2]), 0);
    }

    function test_WhenCallerIsNotTheCourt_StakeManagerReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IStakeManager.NotCourt.selector, address(this)));
        stakes.slashValidator(pool, validators[2], true);
    }
}
