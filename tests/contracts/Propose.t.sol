// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt, Verdict} from "../../contracts/interfaces/ICoveyTypes.sol";
import {Case, CaseState, ISlashingCourt} from "../../contracts/interfaces/ISlashingCourt.sol";
import {World} from "./World.sol";

contract ProposeTest is World {
    Receipt internal receipt;
    bytes internal nodeSignature;

    function setUp() public override {
        super.setUp();
        receipt = makeReceipt(1, keccak256("file"));
        nodeSignature = signReceipt(receipt);
    }

    function propose(Verdict[] memory verdicts) internal {
        court.propose(receipt, nodeSignature, verdicts, signVerdicts(verdicts));
    }

    function expect(bytes memory reason, Verdict[] memory verdicts) internal {
        bytes[] memory signatures = signVerdicts(verdicts);
        vm.expectRevert(reason);
        court.propose(receipt, nodeSignature, verdicts, signatures);
    }

    function test_Propose_LocksStakeOfWhoSigned() public {
        (Verdict[] memory verdicts, bytes[] memory signatures) = makeVerdicts(receipt, 2);
        vm.expectEmit();
        emit ISlashingCourt.CaseOpened(1, pool, node, contributor, court.hashReceipt(receipt), 7, 60);
        vm.prank(stranger);
        assertEq(court.propose(receipt, nodeSignature, verdicts, signatures), 1);

        Case memory opened = court.getCase(1);
        assertEq(opened.pool, pool);
        assertEq(opened.node, node);
        assertEq(opened.contributor, contributor);
        assertEq(opened.receiptHash, court.hashReceipt(receipt));
        assertEq(opened.reason, 7);
        assertTrue(opened.state == CaseState.Locked);
        assertEq(opened.vetoUntil, START + 10);
        assertEq(opened.expiresAt, START + 10 + 1 days);
        assertEq(opened.amount, 60);
        assertEq(court.caseOf(court.hashReceipt(receipt)), 1);
        assertEq(stakes.lockedOf(pool, contributor), 60);
    }

    function test_Propose_OnceForEachReceipt() public {
        (Verdict[] memory verdicts,) = makeVerdicts(receipt, 2);
        propose(verdicts);
        expect(abi.encodeWithSelector(ISlashingCourt.CaseExists.selector, 1), verdicts);
        vm.prank(arbiter);
        court.veto(1);
        expect(abi.encodeWithSelector(ISlashingCourt.CaseExists.selector, 1), verdicts);
    }

    function test_Propose_OneMaliciousValidatorLocksNothing() public {
        (Verdict[] memory verdicts,) = makeVerdicts(receipt, 1);
        expect(abi.encodeWithSelector(ISlashingCourt.QuorumNotReached.selector, 1, 2), verdicts);
        Verdict[] memory twice = new Verdict[](2);
        twice[0] = verdicts[0];
        twice[1] = verdicts[0];
        bytes[] memory signatures = new bytes[](2);
        signatures[0] = sign(validatorKeys[0], court.digestVerdict(twice[0]));
        signatures[1] = signatures[0];
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.UnorderedValidators.selector, 1));
        court.propose(receipt, nodeSignature, twice, signatures);
        assertEq(stakes.lockedOf(pool, contributor), 0);
    }

    function test_Propose_RefusesVerdictsOnOtherWork() public {
        bytes memory reason = abi.encodeWithSelector(ISlashingCourt.VerdictMismatch.selector, 1);
        (Verdict[] memory verdicts,) = makeVerdicts(receipt, 2);
        verdicts[1].pool = 2;
        expect(reason, verdicts);
        verdicts[1] = makeVerdict(receipt, 1);
        verdicts[1].receiptHash = keccak256("another");
        expect(reason, verdicts);
        verdicts[1] = makeVerdict(receipt, 1);
        verdicts[1].workKey = keccak256("another");
        expect(reason, verdicts);
        verdicts[1] = makeVerdict(receipt, 1);
        verdicts[1].reason = 8;
        expect(reason, verdicts);
    }

    function test_Propose_RefusesWhatIsNoHardReject(uint8 outcome, uint8 severity) public {
        (Verdict[] memory verdicts, bytes[] memory signatures) = makeVerdicts(receipt, 2);
        verdicts[0].outcome = outcome;
        verdicts[0].severity = severity;
        signatures[0] = sign(validatorKeys[0], court.digestVerdict(verdicts[0]));
        if (outcome != 2 || severity != 2) {
            vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.NotHardReject.selector, 0));
        }
        court.propose(receipt, nodeSignature, verdicts, signatures);
    }

    function test_Propose_RefusesExpiredAndUnsignedVerdicts() public {
        (Verdict[] memory verdicts, bytes[] memory signatures) = makeVerdicts(receipt, 2);
        verdicts[1].deadline = uint64(START - 1);
        expect(abi.encodeWithSelector(ISlashingCourt.VerdictExpired.selector, 1), verdicts);
        verdicts[1] = makeVerdict(receipt, 1);
        verdicts[1].units = 1;
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, validators[1]));
        court.propose(receipt, nodeSignature, verdicts, signatures);
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.LengthMismatch.selector, 2, 1));
        court.propose(receipt, nodeSignature, verdicts, new bytes[](1));
    }

    function test_Propose_RefusesReplacedValidators() public {
        (Verdict[] memory verdicts,) = makeVerdicts(receipt, 2);
        vm.prank(operator);
        pools.replaceValidator(pool, validators[0], stranger);
        expect(abi.encodeWithSelector(ISlashingCourt.NotValidator.selector, pool, validators[0]), verdicts);
    }

    function test_Propose_RefusesReceiptsThatTheNodeDidNotSign() public {
        (Verdict[] memory verdicts, bytes[] memory signatures) = makeVerdicts(receipt, 2);
        bytes memory forged = sign(STRANGER_KEY, court.digestReceipt(receipt));
        vm.expectRevert(abi.encodeWithSelector(ISlashingCourt.InvalidSignature.selector, node));
        court.propose(receipt, forged, verdicts, signatures);
    }

    function test_Propose_RefusesContributorsWhoAreNotLiable() public {
        receipt.contributor = stranger;
        nodeSignature = signReceipt(receipt);
        (Verdict[] memory verdicts,) = makeVerdicts(receipt, 2);
        expect(abi.encodeWithSelector(ISlashingCourt.NotLiable.selector, node, stranger), verdicts);
    }

    function test_Propose_ReachesAContributorWhoHasJustRemovedItsNode() public {
        vm.prank(contributor);
        nodes.removeNode(pool, node);
        (Verdict[] memory verdicts,) = makeVerdicts(receipt, 2);
        vm.warp(START + 21);
        expect(abi.encodeWithSelector(ISlashingCourt.NotLiable.selector, node, contributor), verdicts);
        vm.warp(START + 20);
        propose(verdicts);
        assertEq(stakes.lockedOf(pool, contributor), 60);
    }
}
