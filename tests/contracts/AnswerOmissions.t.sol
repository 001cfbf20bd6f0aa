// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Receipt, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";
import {ChallengeState, IEpochLedger, Inclusion, InclusionPromise} from
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
        challenge(makePromise(0));
        vm.expectEmit();
        emit IEpochLedger.OmissionAnswered(pool, receiptHash, 0, trainer);
        send(answer);
        assertEq(trainer.balance, BOND);
        vm.warp(START + 10);
        vm.expectRevert(wrongState(ChallengeState.Answered));
        ledger.resolveOmission(receipt);
        assertEq(stakes.stakeOf(pool, BondKind.OPERATOR, operator), 1000);
        refuse(abi.encodeWithSelector(IEpochLedger.AlreadyChallenged.selector, receiptHash), makePromise(0));
    }

    function test_WhenTwoAreShown_OneTransactionAnswersBothAndEarnsBothBonds() public {
        (Receipt[2] memory both, Answer memory answer) = postTwo();
        challenge(both[0], makePromise(both[0], 0));
        challenge(both[1], makePromise(both[1], 0));
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
        challenge(both[1], makePromise(both[1], 0));
        send(answer);
        assertEq(trainer.balance, BOND);
        assertTrue(stateOf(both[0]) == ChallengeState.None);
        challenge(both[0], makePromise(both[0], 0));
        send(answer);
        assertEq(trainer.balance, 2 * BOND);
        assertTrue(stateOf(both[0]) == ChallengeState.Answered);
    }

    function test_WhenOneIsShownTwice_ItEarnsOneBond() public {
        (Receipt[2] memory both, Answer memory answer) = postTwo();
        challenge(both[0], makePromise(both[0], 0));
        challenge(both[1], makePromise(both[1], 0));
        answer.shown[1] = answer.shown[0];
        send(answer);
        assertEq(trainer.balance, BOND);
        assertTrue(stateOf(both[1]) == ChallengeState.Open);
    }

    function test_WhenNothingIsOpen_ItReverts() public {
        Answer memory answer = postLeaf(makeLeaf(receipt));
        refuse(nothing, answer);
        challenge(makePromise(0));
        send(answer);
        refuse(nothing, answer);
        answer.shown = new Inclusion[](0);
        refuse(nothing, answer);
    }

    /// The first window closes at 10, the second at 15.
    function test_WhenAWindowHasPassed_ThatOneIsSkipped() public {
        (Receipt[2] memory both, Answer memory answer) = postTwo();
        challenge(both[0], makePromise(both[0], 0));
        vm.warp(START + 5);
        challenge(both[1], makePromise(both[1], 0));
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
        challenge(makePromise(0));
        answer.header.workRoot = ledger.hashWorkLeaf(answer.shown[0].leaf);
        refuse(abi.encodeWithSelector(IEpochLedger.WrongHeader.selector), answer);
        answer.record.headerHash = ledger.hashHeader(answer.header);
        refuse(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 0), answer);
    }

    function test_WhenTheLeafIsNotInTheTree_ItReverts() public {
        Answer memory answer = postLeaf(makeLeaf(receipt));
        challenge(makePromise(0));
        answer.shown[0].leaf.outcome = 1;
        refuse(wrongLeaf(), answer);
    }

    /// Each tree holds a leaf that differs from the receipt in one field.
    function test_WhenAnyFieldOfTheLeafDiffers_ItReverts() public {
        challengeWhenIdle();
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
        challengeWhenIdle();
        uint256 first = pool;
        pool = makePool(makeTerms());
        Answer memory answer = postLeaf(makeLeaf(receipt));
        pool = first;
        refuse(wrongLeaf(), answer);
    }

    function test_WhenTheAnsweringEpochIsDisabled_TheReceiptCanBeChallengedAgain() public {
        Answer memory answer = postLeaf(makeLeaf(receipt));
        InclusionPromise memory given = makePromise(0);
        challenge(given);
        send(answer);
        vm.prank(arbiter);
        ledger.disableEpoch(pool, answer.record);
        challenge(given);
        refuse(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 0), answer);
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    /// Challenges once the receipt is overdue because the operator has posted nothing.
    function challengeWhenIdle() internal {
        vm.warp(START + 121);
        challenge(makePromise(0));
    }
}
