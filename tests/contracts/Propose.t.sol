// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt, Verdict} from "../../contracts/interfaces/ICoveyTypes.sol";
import {Accusation, Case, CaseState, Finding, ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {BondKind, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

contract ProposeTest is Fixture {
    Receipt internal receipt;
    bytes internal nodeSignature;

    function setUp() public override {
        super.setUp();
        receipt = makeReceipt(1, keccak256("file"));
        nodeSignature = signReceipt(receipt);
    }

    function refuse(bytes memory reason, Finding[] memory findings) internal {
        vm.expectRevert(reason);
        court.propose(receipt, nodeSignature, 7, findings);
        assertEq(stakes.lockedOf(pool, contributor), 0);
    }

    function forged(address account) internal pure returns (bytes memory) {
        return abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, account);
    }

    function test_WhenAQuorumSigned_ItLocksStake() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        bytes32 receiptHash = court.hashReceipt(receipt);
        vm.expectEmit();
        emit ISlashingCourt.CaseOpened(receiptHash, pool, node, contributor, 7, 60, START + 10);
        vm.prank(stranger);
        court.propose(receipt, nodeSignature, 7, findings);

        Case memory opened = court.getCase(accuse(receipt));
        assertEq(opened.amount, 60);
        assertEq(opened.vetoUntil, START + 10);
        assertTrue(opened.state == CaseState.Locked);
        assertEq(opened.reason, 7);
        assertEq(stakes.lockedOf(pool, contributor), 60);
        assertEq(token.balanceOf(stranger), 0);
    }

    function test_WhenAllSigned_ItLocksTheSame() public {
        court.propose(receipt, nodeSignature, 7, makeFindings(receipt, 3));
        assertEq(stakes.lockedOf(pool, contributor), 60);
    }

    function test_WhenTheReceiptHadItsCase_ItReverts() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        court.propose(receipt, nodeSignature, 7, findings);
        bytes memory reason =
            abi.encodeWithSelector(ISlashingCourt.CaseExists.selector, court.hashReceipt(receipt));
        vm.expectRevert(reason);
        court.propose(receipt, nodeSignature, 7, findings);
        Accusation memory accused = accuse(receipt);
        vm.prank(arbiter);
        court.veto(accused);
        refuse(reason, findings);
    }

    function test_WhenFewerThanAQuorumSigned_ItReverts() public {
        Finding[] memory one = makeFindings(receipt, 1);
        refuse(abi.encodeWithSelector(ISlashingCourt.QuorumNotReached.selector, 1, 2), one);
        Finding[] memory twice = new Finding[](2);
        (twice[0], twice[1]) = (one[0], one[0]);
        refuse(abi.encodeWithSelector(ISlashingCourt.UnorderedValidators.selector, 1), twice);
    }

    function test_WhenFindingsAreNotInOrder_ItReverts() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        (findings[0], findings[1]) = (findings[1], findings[0]);
        refuse(abi.encodeWithSelector(ISlashingCourt.UnorderedValidators.selector, 1), findings);
    }

    function test_WhenTheVerdictIsAboutOtherWork_ItReverts() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        for (uint256 i = 0; i < 4; ++i) {
            Verdict memory verdict = makeVerdict(receipt, 1);
            if (i == 0) verdict.pool = 2;
            if (i == 1) verdict.receiptHash = keccak256("another");
            if (i == 2) verdict.workKey = keccak256("another");
            if (i == 3) verdict.reason = 8;
            findings[1] = makeFinding(verdict, validatorKeys[1]);
            refuse(forged(validators[1]), findings);
        }
    }

    function test_WhenTheVerdictIsNotAHardReject_ItReverts(uint8 outcome, uint8 severity) public {
        Verdict memory verdict = makeVerdict(receipt, 0);
        (verdict.outcome, verdict.severity) = (outcome, severity);
        Finding[] memory findings = makeFindings(receipt, 2);
        findings[0] = makeFinding(verdict, validatorKeys[0]);
        if (outcome != 2 || severity != 2) vm.expectRevert(forged(validators[0]));
        court.propose(receipt, nodeSignature, 7, findings);
    }

    function test_WhenAVerdictExpired_ItReverts() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        Verdict memory verdict = makeVerdict(receipt, 1);
        verdict.deadline = uint64(START - 1);
        findings[1] = makeFinding(verdict, validatorKeys[1]);
        refuse(abi.encodeWithSelector(ISlashingCourt.FindingExpired.selector, 1), findings);
        findings[1].deadline = uint64(START);
        refuse(forged(validators[1]), findings);
    }

    function test_WhenTheSignerIsNotAValidator_ItReverts() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        Verdict memory verdict = makeVerdict(receipt, 1);
        verdict.validator = address(type(uint160).max);
        findings[1] = makeFinding(verdict, STRANGER_KEY);
        bytes4 selector = IStakeManager.NotValidator.selector;
        refuse(abi.encodeWithSelector(selector, pool, verdict.validator), findings);
    }

    function test_WhenASignersBondIsTooSmall_ItReverts() public {
        Finding[] memory findings = makeFindings(receipt, 2);
        leave(1);
        vm.warp(START + 20);
        vm.prank(validators[1]);
        stakes.withdraw(pool, BondKind.VALIDATOR);
        refuse(abi.encodeWithSelector(IStakeManager.BondTooSmall.selector, validators[1], 19, 20), findings);
        bond(validators[1], BondKind.VALIDATOR, 1);
        court.propose(receipt, nodeSignature, 7, findings);
    }

    /// A signer that unbonds everything can still be slashed, so its verdict still counts.
    function test_WhenASignerIsUnbonding_ItsVerdictCounts() public {
        leave(20);
        court.propose(receipt, nodeSignature, 7, makeFindings(receipt, 2));
        assertEq(stakes.lockedOf(pool, contributor), 60);
    }

    /// Its stake could be gone before the arbiter has vetoed, so its verdict costs it nothing.
    function test_WhenTheStakeOfASignerLeavesSoon_ItReverts() public {
        leave(20);
        Finding[] memory findings = makeFindings(receipt, 2);
        vm.warp(START + 1);
        refuse(abi.encodeWithSelector(IStakeManager.BondTooSmall.selector, validators[1], 0, 20), findings);
        // Stake that is added counts at once.
        bond(validators[1], BondKind.VALIDATOR, 20);
        court.propose(receipt, nodeSignature, 7, findings);
    }

    function leave(uint256 amount) internal {
        vm.prank(validators[1]);
        stakes.unbond(pool, BondKind.VALIDATOR, amount);
    }

    function test_WhenTheNodeDidNotSign_ItReverts() public {
        nodeSignature = sign(STRANGER_KEY, court.digestReceipt(receipt));
        refuse(forged(node), makeFindings(receipt, 2));
    }

    function test_WhenTheContributorNeverVouched_ItReverts() public {
        receipt.contributor = stranger;
        nodeSignature = signReceipt(receipt);
        Finding[] memory findings = makeFindings(receipt, 2);
        refuse(abi.encodeWithSelector(ISlashingCourt.NotLiable.selector, node, stranger), findings);
    }

    function test_WhenTheNodeWasJustRemoved_ItStillReachesTheContributor() public {
        vm.prank(contributor);
        nodes.removeNode(pool, node);
        Finding[] memory findings = makeFindings(receipt, 2);
        vm.warp(START + 21);
        refuse(abi.encodeWithSelector(ISlashingCourt.NotLiable.selector, node, contributor), findings);
        vm.warp(START + 20);
        court.propose(receipt, nodeSignature, 7, findings);
        assertEq(stakes.lockedOf(pool, contributor), 60);
    }
}
