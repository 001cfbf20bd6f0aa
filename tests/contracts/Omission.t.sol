// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Challenge, ChallengeState, IEpochLedger, InclusionPromise} from
    "../../contracts/interfaces/IEpochLedger.sol";
import {IPayouts} from "../../contracts/interfaces/IPayouts.sol";
import {Role} from "../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {OmissionFixture} from "./OmissionFixture.sol";

interface VmCode {
    function etch(address target, bytes calldata code) external;
}

/// Tests of EpochLedger.challengeOmission, resolveOmission and withdrawEther.
contract OmissionTest is OmissionFixture {
    function test_WhenNobodyAnswers_TheOperatorsBondPaysTheContributor() public {
        postWithout();
        InclusionPromise memory given = makePromise(DUE);
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
        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        vm.prank(stranger);
        ledger.withdrawEther();

        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        ledger.resolveOmission(receipt);
        refuse(abi.encodeWithSelector(IEpochLedger.AlreadyChallenged.selector, receiptHash), given);
    }

    function test_WhenThePayeeIsAnotherAccount_ItIsPaid() public {
        postWithout();
        vm.prank(contributor);
        ledger.setPayee(pool, trainer);
        challenge(makePromise(DUE));
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(trainer), 150);
        assertEq(token.balanceOf(contributor), 0);
    }

    /// The challenger is the token contract, which refuses ether.
    function test_WhenTheChallengerRefusesEther_TheContributorIsPaid() public {
        postWithout();
        InclusionPromise memory given = makePromise(DUE);
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
        InclusionPromise memory given = makePromise(DUE);
        VmCode(address(vm)).etch(operator, hex"00");
        challenge(given);
        assertTrue(ledger.getChallenge(receiptHash).state == ChallengeState.Open);
    }

    function test_WhenTheBondIsTooSmall_ItPaysHalfOfItAndNothingFromEscrow() public {
        receipt.units = 400;
        postWithout();
        challenge(makePromise(DUE));
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 500);
        assertEq(token.balanceOf(stakes.BURN()), 500);
        assertEq(ledger.escrowOf(pool), 1_000_000);
    }

    function test_WhenThePromiseIsDue_ItCanBeChallengedForAQuarterOfTheKeptTime() public {
        uint64 dueBy = uint64(START + 30);
        InclusionPromise memory given = makePromise(dueBy);
        vm.warp(START + 30);
        refuse(abi.encodeWithSelector(IEpochLedger.NotOverdue.selector, dueBy), given);
        vm.warp(START + 95);
        refuse(abi.encodeWithSelector(IEpochLedger.TooLate.selector, START + 94), given);
        vm.warp(START + 94);
        challenge(given);
    }

    function test_WhenThePromiseHasJustFallenDue_ItCanBeChallenged() public {
        InclusionPromise memory given = makePromise(uint64(START + 30));
        vm.warp(START + 31);
        challenge(given);
        vm.warp(START + 41);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    /// Epochs that hold nothing put no promise off, however many the operator posts.
    function test_WhenTheOperatorPostsEmptyEpochs_ThePromiseFallsDueAllTheSame() public {
        InclusionPromise memory given = makePromise(uint64(START + 30));
        for (uint256 i = 0; i < 31; ++i) {
            vm.warp(START + i);
            post(keccak256("reward"), 0);
        }
        vm.warp(START + 31);
        challenge(given);
    }

    /// Epochs are kept for 256 s at least. A promise can take 64 of them.
    function test_WhenThePromiseGivesTooMuchTime_ItReverts() public {
        uint64 dueBy = SIGNED + 65;
        vm.warp(START + 61);
        bytes4 selector = IEpochLedger.PromiseTooLong.selector;
        refuse(abi.encodeWithSelector(selector, dueBy, SIGNED + 64), makePromise(dueBy));
        refuse(abi.encodeWithSelector(selector, type(uint64).max, SIGNED + 64), makePromise(type(uint64).max));
        challenge(makePromise(dueBy - 1));
    }

    /// The receipt is overdue 20 s (`unbondWindow`) after the pool's end, whatever was promised.
    function test_WhenThePoolHasEnded_EveryPromiseFallsDue() public {
        uint64 dueBy = uint64(START + 59);
        InclusionPromise memory given = makePromise(dueBy);
        vm.prank(operator);
        pools.endPool(pool);
        vm.warp(START + 19);
        refuse(abi.encodeWithSelector(IEpochLedger.NotOverdue.selector, dueBy), given);
        vm.warp(START + 20);
        challenge(given);
        vm.warp(START + 30);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    /// The bond is empty, and then too small. Whatever the operator bonds later pays the rest, and never more.
    function test_WhenTheBondIsTooSmall_ALaterBondPaysTheRest() public {
        vm.prank(address(ledger));
        stakes.payFromOperator(pool, trainer, 500);
        InclusionPromise memory given = makePromise(DUE);
        challenge(given);
        vm.warp(START + 10);
        vm.expectEmit();
        emit IEpochLedger.OmissionUpheld(pool, receiptHash, contributor, 0);
        ledger.resolveOmission(receipt);
        assertTrue(stateOf(receipt) == ChallengeState.Upheld);
        assertEq(ledger.etherOf(stranger), BOND);
        refuse(abi.encodeWithSelector(IEpochLedger.AlreadyChallenged.selector, receiptHash), given);
        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        ledger.resolveOmission(receipt);

        bond(operator, BondKind.OPERATOR, 80);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 40);
        bond(operator, BondKind.OPERATOR, 1000);
        vm.expectEmit();
        emit IEpochLedger.OmissionUpheld(pool, receiptHash, contributor, 110);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
        assertEq(ledger.getChallenge(receiptHash).paid, 150);
        // The ether of the challenger is credited once.
        assertEq(ledger.etherOf(stranger), BOND);
        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        ledger.resolveOmission(receipt);
    }

    /// Otherwise the promises of a stolen key would drain the bonds of all later operators.
    function test_WhenAnUnbondingWindowHasPassed_ALaterBondPaysNothing() public {
        vm.prank(address(ledger));
        stakes.payFromOperator(pool, trainer, 500);
        challenge(makePromise(DUE));
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
        bond(operator, BondKind.OPERATOR, 1000);
        vm.warp(START + 31);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.TooLate.selector, START + 30));
        ledger.resolveOmission(receipt);
        vm.warp(START + 30);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    /// The signer's key alone could otherwise promise any amount to a node of its own.
    function test_WhenTheReceiptClaimsMoreThanAnEpoch_ItReverts() public {
        receipt.units = 1_000_001;
        receiptHash = court.hashReceipt(receipt);
        bytes4 selector = IEpochLedger.TooManyUnits.selector;
        refuse(abi.encodeWithSelector(selector, 1_000_001, 1_000_000), makePromise(DUE));
        receipt.units = 1_000_000;
        receiptHash = court.hashReceipt(receipt);
        challenge(makePromise(DUE));
    }

    /// The node's deadline is far away, when a higher price holds. The challenge's window closes at START + 10.
    function test_WhenTheDeadlineIsLate_ThePriceIsThatWhenTheWindowCloses() public {
        receipt.deadline = type(uint64).max;
        receiptHash = court.hashReceipt(receipt);
        vm.warp(START + 1);
        vm.prank(operator);
        pools.setPrice(pool, 9_000_000);
        vm.warp(START);
        challenge(makePromise(DUE));
        vm.warp(START + 50);
        assertEq(pools.priceAt(pool, START + 11), 9_000_000);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    /// A receipt without units earns nothing, so nothing is left to pay.
    function test_WhenNothingIsDue_TheChallengeIsUpheldWithoutAPayment() public {
        receipt.units = 0;
        receiptHash = court.hashReceipt(receipt);
        challenge(makePromise(DUE));
        vm.warp(START + 10);
        ledger.resolveOmission(receipt);
        assertTrue(stateOf(receipt) == ChallengeState.Upheld);
    }

    function test_WhenTheBondOrThePromiseIsWrong_ItReverts() public {
        postWithout();
        InclusionPromise memory given = makePromise(DUE);
        bytes memory signature = signReceipt(receipt);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WrongBond.selector, BOND, 1));
        vm.prank(stranger);
        ledger.challengeOmission{value: 1}(receipt, signature, given);
        bytes memory forged = abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, operator);
        given.dueBy = DUE - 1;
        refuse(forged, given);
        given.dueBy = DUE;
        receipt.units = 51;
        refuse(forged, given);
        receipt.pool = 99;
        refuse(abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, address(0)), given);
    }

    /// The promise names a time at which the operator was the signer.
    function test_WhenTheSignerWasReplaced_ItsEarlierPromisesStayValid() public {
        vm.prank(operator);
        pools.proposeRole(pool, Role.Signer, trainer);
        vm.warp(START + 25);
        uint64 late = uint64(START + 20);
        bytes32 digest = ledger.digestCountersignature(receiptHash, late, late);
        InclusionPromise memory forged = InclusionPromise(late, late, sign(OPERATOR_KEY, digest));
        refuse(abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, trainer), forged);
        challenge(makePromise(DUE));
        assertTrue(ledger.getChallenge(receiptHash).state == ChallengeState.Open);
    }

    /// An operator could promise a receipt that it invented, but no node of the contributor has signed it.
    function test_WhenTheNodeDidNotSign_ItReverts() public {
        postWithout();
        bytes memory unsigned = abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, node);
        refuse(unsigned, makePromise(DUE), OPERATOR_KEY);
        bytes memory signature = signReceipt(receipt);
        receipt.units = 51;
        InclusionPromise memory given = makePromise(DUE);
        vm.expectRevert(unsigned);
        vm.prank(stranger);
        ledger.challengeOmission{value: BOND}(receipt, signature, given);
    }

    function test_WhenTheContributorNeverVouchedForTheNode_ItReverts() public {
        postWithout();
        receipt.contributor = stranger;
        bytes memory reason = abi.encodeWithSelector(IEpochLedger.NeverBound.selector, node, stranger);
        refuse(reason, makePromise(DUE));
        receipt = makeReceipt(1, keccak256("file"));
        receipt.node = vm.addr(0xBAD);
        reason = abi.encodeWithSelector(IEpochLedger.NeverBound.selector, receipt.node, contributor);
        refuse(reason, makePromise(DUE), 0xBAD);
    }

    /// A binding counts in its own pool only.
    function test_WhenTheNodeIsBoundInAnotherPool_ItReverts() public {
        receipt.pool = makePool(makeTerms());
        refuse(abi.encodeWithSelector(IEpochLedger.NeverBound.selector, node, contributor), makePromise(DUE));
    }

    /// Liability ends 20 s after the removal, and the promise is due at 59.
    function test_WhenTheNodeWasRemovedLongAgo_TheContributorIsStillPaid() public {
        vm.prank(contributor);
        nodes.removeNode(pool, node);
        vm.warp(START + 60);
        assertTrue(!nodes.isLiable(pool, node, contributor));
        challenge(makePromise(uint64(START + 59)));
        vm.warp(START + 70);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }

    /// The pool closes at 100. The last challenge leaves ten seconds to answer and ten to resolve.
    function test_WhenThePoolIsAboutToClose_ItIsTooLate() public {
        postWithout();
        vm.prank(operator);
        pools.endPool(pool);
        InclusionPromise memory given = makePromise(uint64(START + 59));
        vm.warp(START + 80);
        refuse(abi.encodeWithSelector(IEpochLedger.WindowClosed.selector, START + 80), given);
        vm.warp(START + 79);
        challenge(given);
        vm.warp(START + 89);
        ledger.resolveOmission(receipt);
        assertEq(token.balanceOf(contributor), 150);
    }
}
