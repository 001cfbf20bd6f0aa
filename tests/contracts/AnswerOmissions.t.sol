// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";
import {ChallengeState, EpochRecord, IEpochLedger, Inclusion, InclusionPromise} from
    "../../contracts/interfaces/IEpochLedger.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {OmissionFixture} from "./OmissionFixture.sol";

contract AnswerOmissionsTest is OmissionFixture {
    bytes internal nothing = abi.encodeWithSelector(IEpochLedger.NothingToAnswer.selector);

    function wrongLeaf() internal view returns (bytes memory) {
        return abi.encodeWithSelector(IEpochLedger.WrongLeaf.selector, receiptHash);
    }

    /// Posts an epoch with the leaves of two receipts.
    function postTwo() internal returns (Receipt[2] memory both, Answer memory answer) {
        both = [makeReceipt(1, keccak256("file")), makeReceipt(2, keccak256("another"))];
        WorkLeaf[2] memory leaves = [makeLeaf(both[0]), makeLeaf(both[1])];
        bytes32[2] memory hashes = [ledger.hashWorkLeaf(leaves[0]), ledger.hashWorkLeaf(leaves[1])];
        answer = postRoot(hashPair(hashes[0], hashes[1]));
        answer.shown = new Inclusion[](2);
        for (uint256 i = 0; i < 2; ++i) {
            bytes32[] memory proof = new bytes32[](1);
            proof[0] = hashes[1 - i];
            answer.shown[i] = Inclusion(both[i], leaves[i], proof);
        }
    }

    function test_WhenTheLeafIsShown_TheCallerEarnsTheBond() public {
        Answer memory answer = postLeaf(makeLeaf(receipt));
        challenge(makePromise(DUE));
        vm.expectEmit();
        emit IEpochLedger.OmissionAnswered(pool, receiptHash, 0, trainer);
        send(answer);
        assertEq(trainer.balance, BOND);
        vm.warp(START + 10);
        vm.expectRevert(wrongState(ChallengeState.Answered));
        ledger.resolveOmission(receipt);
        assertEq(stakes.stakeOf(pool, BondKind.OPERATOR, operator), 1000);
        refuse(abi.encodeWithSelector(IEpochLedger.AlreadyChallenged.selector, receiptHash), makePromise(DUE));
    }

    function test_WhenTwoAreShown_OneTransactionAnswersBothAndEarnsBothBonds() public {
        (Receipt[2] memory both, Answer memory answer) = postTwo();
        challenge(both[0], makePromise(both[0], DUE));
        challenge(both[1], makePromise(both[1], DUE));
        send(answer);
        assertEq(trainer.balance, 2 * BOND);
        assertEq(address(ledger).balance, 0);
        for (uint256 i = 0; i < 2; ++i) {
            assertTrue(stateOf(both[i]) == ChallengeState.Answered);
            assertEq(ledger.getChallenge(court.hashReceipt(both[i])).answeredBy, 0);
        }
    }

    /// One of the two was answered before, or never challenged.
    function test_WhenOneIsNotOpen_TheOthersAreStillAnswered() public {
        (Receipt[2] memory both, Answer memory answer) = postTwo();
        challenge(both[1], makePromise(both[1], DUE));
        send(answer);
        assertEq(trainer.balance, BOND);
        assertTrue(stateOf(both[0]) == ChallengeState.None);
        challenge(both[0], makePromise(both[0], DUE));
        send(answer);
        assertEq(trainer.balance, 2 * BOND);
        assertTrue(stateOf(both[0]) == ChallengeState.Answered);
    }

    function test_WhenOneIsShownTwice_ItEarnsOneBond() public {
        (Receipt[2] memory both, Answer memory answer) = postTwo();
        challenge(both[0], makePromise(both[0], DUE));
        challenge(both[1], makePromise(both[1], DUE));
        answer.shown[1] = answer.shown[0];
        send(answer);
        assertEq(trainer.balance, BOND);
        assertTrue(stateOf(both[1]) == ChallengeState.Open);
    }

    function test_WhenNothingIsOpen_ItReverts() public {
        Answer memory answer = postLeaf(makeLeaf(receipt));
        refuse(nothing, answer);
        challenge(makePromise(DUE));
        send(answer);
        refuse(nothing, answer);
        answer.shown = new Inclusion[](0);
        refuse(nothing, answer);
    }

    /// The first window closes at 10, the second at 15.
    function test_WhenAWindowHasPassed_ThatOneIsSkipped() public {
        (Receipt[2] memory both, Answer memory answer) = postTwo();
        challenge(both[0], makePromise(both[0], DUE));
        vm.warp(START + 5);
        challenge(both[1], makePromise(both[1], DUE));
        vm.warp(START + 10);
        send(answer);
        assertTrue(stateOf(both[0]) == ChallengeState.Open);
        assertTrue(stateOf(both[1]) == ChallengeState.Answered);
        refuse(nothing, answer);
        ledger.resolveOmission(both[0]);
        assertEq(token.balanceOf(contributor), 150);
    }

    function test_WhenHeaderAndRecordDiffer_ItReverts() public {
        Answer memory answer = postLeaf(makeLeaf(receipt));
        challenge(makePromise(DUE));
        answer.header.workRoot = ledger.hashWorkLeaf(answer.shown[0].leaf);
        refuse(abi.encodeWithSelector(IEpochLedger.WrongHeader.selector), answer);
        answer.record.headerHash = ledger.hashHeader(answer.header);
        refuse(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 0), answer);
    }

    function test_WhenTheLeafIsNotInTheTree_ItReverts() public {
        Answer memory answer = postLeaf(makeLeaf(receipt));
        challenge(makePromise(DUE));
        answer.shown[0].leaf.outcome = 1;
        refuse(wrongLeaf(), answer);
    }

    /// Each tree holds a leaf that differs from the receipt in one field.
    function test_WhenAnyFieldOfTheLeafDiffers_ItReverts() public {
        challenge(makePromise(DUE));
        for (uint256 i = 0; i < 6; ++i) {
            WorkLeaf memory leaf = makeLeaf(receipt);
            if (i == 0) leaf.receiptHash = keccak256("another");
            if (i == 1) leaf.workKey = keccak256("another");
            if (i == 2) leaf.node = stranger;
            if (i == 3) leaf.contributor = stranger;
            if (i == 4) leaf.task = 2;
            if (i == 5) leaf.policyVersion = 5;
            vm.warp(block.timestamp + 1);
            refuse(wrongLeaf(), postLeaf(leaf));
        }
        vm.warp(block.timestamp + 1);
        send(postLeaf(makeLeaf(receipt)));
    }

    /// Both pools have the same operator, which includes the leaf in an epoch of the wrong pool.
    function test_WhenTheEpochBelongsToAnotherPool_ItReverts() public {
        challenge(makePromise(DUE));
        uint256 first = pool;
        pool = makePool(makeTerms());
        Answer memory answer = postLeaf(makeLeaf(receipt));
        pool = first;
        refuse(wrongLeaf(), answer);
    }

    function test_WhenTheAnsweringEpochIsDisabled_TheReceiptCanBeChallengedAgain() public {
        Answer memory answer = postLeaf(makeLeaf(receipt));
        InclusionPromise memory given = makePromise(DUE);
        challenge(given);
        send(answer);
        vm.prank(arbiter);
        ledger.disableEpoch(pool, answer.record, true);
        challenge(given);
        refuse(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 0), answer);
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    /// Challenges the receipt, and lets the challenge be upheld.
    function uphold() internal {
        challenge(makePromise(DUE));
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
    }

    /// Posts an epoch that pays 50 units for the receipt to the contributor, who is the only one in it.
    function postPaid(uint64 units) internal returns (Answer memory answer) {
        WorkLeaf memory leaf = makeLeaf(receipt);
        (leaf.outcome, leaf.reason, leaf.units) = (1, 0, units);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = OTHER_LEAF;
        bytes32 workRoot = hashPair(ledger.hashWorkLeaf(leaf), OTHER_LEAF);
        bytes32 rewardRoot = ledger.hashRewardLeaf(block.chainid, address(ledger), pool, contributor, 300);
        answer.header = makeHeader(workRoot, rewardRoot, 100);
        answer.record = postHeader(answer.header);
        answer.shown = new Inclusion[](1);
        answer.shown[0] = Inclusion(receipt, leaf, proof);
    }

    function claimAll(Answer memory answer) internal {
        ledger.claim(pool, answer.record, contributor, 300, new bytes32[](0));
    }

    /// The bond has paid 150, and the epoch pays 150 for the receipt and 150 for other work.
    function test_WhenAnUpheldReceiptIsInAnEpoch_TheNextClaimPaysTheRest() public {
        uphold();
        Answer memory answer = postPaid(50);
        vm.warp(answer.record.finalAt);
        vm.expectEmit();
        emit IEpochLedger.OmissionNetted(pool, receiptHash, contributor, 150);
        send(answer);
        assertEq(trainer.balance, 0);
        assertEq(ledger.deductionOf(pool, contributor), 150);
        vm.expectEmit();
        emit IEpochLedger.RewardClaimed(pool, 0, contributor, 150);
        claimAll(answer);
        assertEq(token.balanceOf(contributor), 300);
        assertEq(ledger.deductionOf(pool, contributor), 0);
        assertEq(ledger.claimedOf(pool, contributor), 300);
        // What the bond has paid for returns to the operator's free escrow.
        assertEq(ledger.owedOf(pool), 0);
        assertEq(ledger.escrowOf(pool), 1_000_000 - 150);
        assertEq(token.balanceOf(address(ledger)), 1_000_000 - 150);
        assertEq(ledger.getSettlement(pool).funded - ledger.getSettlement(pool).posted, 1_000_000 - 300 + 150);
        refuse(nothing, answer);
    }

    /// The contributor claims first. Its next epoch pays the less.
    function test_WhenTheRewardWasClaimedBefore_ALaterClaimPaysTheRest() public {
        uphold();
        Answer memory answer = postPaid(50);
        vm.warp(answer.record.finalAt);
        claimAll(answer);
        assertEq(token.balanceOf(contributor), 450);
        send(answer);
        bytes32 rewardRoot = ledger.hashRewardLeaf(block.chainid, address(ledger), pool, contributor, 500);
        EpochRecord memory later = postHeader(makeHeader(keccak256("work"), rewardRoot, 100));
        vm.warp(later.finalAt);
        ledger.claim(pool, later, contributor, 500, new bytes32[](0));
        assertEq(token.balanceOf(contributor), 500);
    }

    /// The whole claim may be paid already. Then no token moves.
    function test_WhenTheDeductionIsLarger_TheRestIsKeptForTheNextClaim() public {
        uphold();
        Answer memory answer = postPaid(50);
        vm.warp(answer.record.finalAt);
        send(answer);
        bytes32 rewardRoot = ledger.hashRewardLeaf(block.chainid, address(ledger), pool, contributor, 100);
        EpochRecord memory later = postHeader(makeHeader(keccak256("work"), rewardRoot, 100));
        vm.warp(later.finalAt);
        ledger.claim(pool, later, contributor, 100, new bytes32[](0));
        assertEq(token.balanceOf(contributor), 150);
        assertEq(ledger.deductionOf(pool, contributor), 50);
    }

    /// The arbiter can disable the epoch until it is final, and then it pays nothing.
    function test_WhenTheEpochIsNotFinal_NothingIsDeducted() public {
        uphold();
        Answer memory answer = postPaid(50);
        vm.warp(answer.record.finalAt - 1);
        refuse(nothing, answer);
        vm.warp(answer.record.finalAt);
        answer.shown[0].leaf.outcome = 2;
        refuse(wrongLeaf(), answer);
    }

    /// The epoch pays 20 of 50 units, so the contributor keeps what the bond has paid for the others.
    function test_WhenTheEpochPaysLess_OnlyThatIsDeducted() public {
        uphold();
        Answer memory answer = postPaid(20);
        vm.warp(answer.record.finalAt);
        send(answer);
        assertEq(ledger.deductionOf(pool, contributor), 60);
        refuse(nothing, answer);
    }

    /// A rejected leaf has no units, so the epoch pays nothing for it, and nothing is deducted.
    function test_WhenTheEpochPaysNothing_NothingIsDeducted() public {
        uphold();
        Answer memory answer = postLeaf(makeLeaf(receipt));
        vm.warp(answer.record.finalAt);
        vm.expectEmit();
        emit IEpochLedger.OmissionNetted(pool, receiptHash, contributor, 0);
        send(answer);
        assertEq(ledger.deductionOf(pool, contributor), 0);
        refuse(nothing, answer);
    }

    /// The bond was too small. Once the receipt is in a final epoch, what the operator bonds later pays nothing for it.
    function test_WhenAPartlyPaidReceiptIsInAnEpoch_TheBondPaysNoMore() public {
        vm.prank(address(ledger));
        stakes.payFromOperator(pool, trainer, 450);
        uphold();
        assertEq(token.balanceOf(contributor), 50);
        Answer memory answer = postPaid(50);
        vm.warp(answer.record.finalAt);
        send(answer);
        assertEq(ledger.deductionOf(pool, contributor), 50);
        bond(operator, BondKind.OPERATOR, 1000);
        vm.expectRevert(wrongState(ChallengeState.Answered));
        ledger.resolveOmission(receipt);
        refuse(abi.encodeWithSelector(IEpochLedger.AlreadyChallenged.selector, receiptHash), makePromise(DUE));
    }

    /// A header may name fewer units than its leaves have. The epoch pays for those of the header alone.
    function test_WhenTheLeafHasMoreUnitsThanTheHeader_TheEpochsRewardIsTheMost() public {
        receipt.units = 150;
        receiptHash = court.hashReceipt(receipt);
        uphold();
        Answer memory answer = postPaid(1_000_000);
        vm.warp(answer.record.finalAt);
        send(answer);
        assertEq(ledger.deductionOf(pool, contributor), 300);
    }
}
