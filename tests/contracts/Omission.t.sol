// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Challenge, ChallengeState, IEpochLedger, InclusionPromise} from
    "../../contracts/interfaces/IEpochLedger.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {OmissionFixture} from "./OmissionFixture.sol";

interface VmCode {
    function etch(address target, bytes calldata code) external;
}

/// Tests of EpochLedger.challengeOmission, resolveOmission and withdrawEther.
contract OmissionTest is OmissionFixture {
    function test_WhenNobodyAnswers_TheOperatorsBondPaysTheContributor() public {
        postWithout();
        InclusionPromise memory given = makePromise(0);
        vm.expectEmit();
        emit IEpochLedger.OmissionChallenged(pool, receiptHash, contributor);
        challenge(given);
        assertEq(stranger.balance, 1 ether - BOND);
        Challenge memory open = ledger.getChallenge(receiptHash);
        assertEq(open.challenger, stranger);
        assertEq(open.answerBy, START + 10);
        assertTrue(open.state == ChallengeState.Open);

        vm.warp(START + 9);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WindowOpen.selector, START + 10));
        ledger.resolveOmission(receipt);
        vm.warp(START + 10);
        vm.expectEmit();
        emit IEpochLedger.OmissionUpheld(pool, receiptHash, contributor, 150);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
        // The same amount is burned.
        assertEq(stakes.stakeOf(pool, BondKind.OPERATOR, operator), 700);
        assertEq(token.balanceOf(stakes.BURN()), 150);
        assertEq(ledger.etherOf(stranger), BOND);
        vm.expectEmit();
        emit IEpochLedger.EtherWithdrawn(stranger, BOND);
        vm.prank(stranger);
        ledger.withdrawEther();
        assertEq(stranger.balance, 1 ether);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.ZeroAmount.selector));
        vm.prank(stranger);
        ledger.withdrawEther();

        vm.expectRevert(wrongState(ChallengeState.Upheld));
        ledger.resolveOmission(receipt);
        refuse(abi.encodeWithSelector(IEpochLedger.AlreadyChallenged.selector, receiptHash), given);
    }

    /// The challenger is the token contract, which refuses ether.
    function test_WhenTheChallengerRefusesEther_TheContributorIsPaid() public {
        postWithout();
        InclusionPromise memory given = makePromise(0);
        bytes memory signature = signReceipt(receipt);
        vm.deal(address(token), BOND);
        vm.prank(address(token));
        ledger.challengeOmission{value: BOND}(receipt, signature, given);
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
        assertEq(ledger.etherOf(address(token)), BOND);
    }

    /// The answer of an ERC-1271 wallet could change, so only the key's signature counts.
    function test_WhenTheOperatorHasCode_ItsSignatureStillCounts() public {
        postWithout();
        InclusionPromise memory given = makePromise(0);
        VmCode(address(vm)).etch(operator, hex"00");
        challenge(given);
        assertTrue(ledger.getChallenge(receiptHash).state == ChallengeState.Open);
    }

    function test_WhenTheBondIsTooSmall_ItPaysHalfOfItAndNothingFromEscrow() public {
        receipt.units = 400;
        postWithout();
        challenge(makePromise(0));
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 500);
        assertEq(token.balanceOf(stakes.BURN()), 500);
        assertEq(ledger.escrowOf(pool), 1_000_000);
    }

    function test_WhenTheOperatorStopped_ReceiptsFallDueWithoutAnEpoch() public {
        InclusionPromise memory given = makePromise(0);
        vm.warp(START + 120);
        refuse(abi.encodeWithSelector(IEpochLedger.NotOverdue.selector), given);
        vm.warp(START + 121);
        challenge(given);
        vm.warp(START + 131);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    /// The operator posted at 115 and can post again from 116 on. Both windows after that end at 136.
    function test_WhenTheOperatorPostsOnTime_ItWaitsForThePromisedEpoch() public {
        InclusionPromise memory given = makePromise(1);
        vm.warp(START + 115);
        post(keccak256("reward"), 0);
        vm.warp(START + 136);
        refuse(abi.encodeWithSelector(IEpochLedger.NotOverdue.selector), given);
        vm.warp(START + 137);
        challenge(given);
    }

    /// The deadline is far away and no epoch was posted. The receipt is overdue 20 s (`unbondWindow`) after the end.
    function test_WhenThePoolHasEnded_EveryPromiseFallsDue() public {
        receipt.deadline = uint64(START + 10_000);
        receiptHash = court.hashReceipt(receipt);
        InclusionPromise memory given = makePromise(7);
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 19);
        refuse(abi.encodeWithSelector(IEpochLedger.NotOverdue.selector), given);
        vm.warp(START + 20);
        challenge(given);
        vm.warp(START + 30);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    function test_WhenTheBondOrThePromiseIsWrong_ItReverts() public {
        postWithout();
        InclusionPromise memory given = makePromise(0);
        bytes memory signature = signReceipt(receipt);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WrongBond.selector, BOND, 1));
        vm.prank(stranger);
        ledger.challengeOmission{value: 1}(receipt, signature, given);
        bytes memory forged = abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, operator);
        given.latestEpoch = 1;
        refuse(forged, given);
        given.latestEpoch = 0;
        receipt.units = 51;
        refuse(forged, given);
        receipt.pool = 99;
        refuse(abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, address(0)), given);
    }

    /// An operator could promise a receipt that it invented, but no node of the contributor has signed it.
    function test_WhenTheNodeDidNotSign_ItReverts() public {
        postWithout();
        bytes memory unsigned = abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, node);
        refuse(unsigned, makePromise(0), OPERATOR_KEY);
        bytes memory signature = signReceipt(receipt);
        receipt.units = 51;
        InclusionPromise memory given = makePromise(0);
        vm.expectRevert(unsigned);
        vm.prank(stranger);
        ledger.challengeOmission{value: BOND}(receipt, signature, given);
    }

    function test_WhenTheContributorNeverVouchedForTheNode_ItReverts() public {
        postWithout();
        receipt.contributor = stranger;
        bytes memory reason = abi.encodeWithSelector(IEpochLedger.NeverBound.selector, node, stranger);
        refuse(reason, makePromise(0));
        receipt = makeReceipt(1, keccak256("file"));
        receipt.node = vm.addr(0xBAD);
        reason = abi.encodeWithSelector(IEpochLedger.NeverBound.selector, receipt.node, contributor);
        refuse(reason, makePromise(0), 0xBAD);
    }

    /// A binding counts in its own pool only.
    function test_WhenTheNodeIsBoundInAnotherPool_ItReverts() public {
        receipt.pool = makePool(makeTerms());
        vm.warp(START + 121);
        refuse(abi.encodeWithSelector(IEpochLedger.NeverBound.selector, node, contributor), makePromise(0));
    }

    /// Liability ends 20 s after the removal, and the promise falls due at 121.
    function test_WhenTheNodeWasRemovedLongAgo_TheContributorIsStillPaid() public {
        vm.prank(contributor);
        nodes.removeNode(pool, node);
        vm.warp(START + 121);
        assertTrue(!nodes.isLiable(pool, node, contributor));
        challenge(makePromise(0));
        vm.warp(START + 131);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    /// The receipt was due in epoch 0. It can be challenged while at most 64 later epochs were posted, 65 in all.
    function test_WhenManyEpochsHavePassed_ItIsTooLate() public {
        InclusionPromise memory given = makePromise(0);
        for (uint256 i = 0; i < 66; ++i) {
            vm.warp(START + i);
            post(keccak256("reward"), 0);
        }
        refuse(abi.encodeWithSelector(IEpochLedger.TooLate.selector), given);
        challenge(makePromise(1));
    }

    /// The pool closes at 100. The last challenge leaves ten seconds to answer and ten to resolve.
    function test_WhenThePoolIsAboutToClose_ItIsTooLate() public {
        postWithout();
        vm.prank(operator);
        pools.endPool(pool);
        InclusionPromise memory given = makePromise(0);
        vm.warp(START + 80);
        refuse(abi.encodeWithSelector(IEpochLedger.WindowClosed.selector, START + 80), given);
        vm.warp(START + 79);
        challenge(given);
        vm.warp(START + 89);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }
}
