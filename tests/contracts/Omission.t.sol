// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochHeader, Receipt, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";
import {ChallengeState, IEpochLedger, InclusionPromise} from "../../contracts/interfaces/IEpochLedger.sol";
import {BondKind} from "../../contracts/interfaces/IStakeManager.sol";
import {World} from "./World.sol";

/// challengeOmission, answerOmission and resolveOmission.
contract OmissionTest is World {
    uint256 internal constant BOND = 0.001 ether;
    bytes32 internal constant OTHER_LEAF = keccak256("other leaf");

    function setUp() public override {
        super.setUp();
        bond(operator, BondKind.OPERATOR, 1000);
        vm.deal(stranger, 1 ether);
        vm.deal(trainer, 0);
    }

    function makePromise(Receipt memory receipt, uint64 latestEpoch) internal view returns (InclusionPromise memory) {
        bytes32 digest = ledger.digestCountersignature(court.hashReceipt(receipt), 5, latestEpoch);
        return InclusionPromise({blockNumber: 5, latestEpoch: latestEpoch, signature: sign(OPERATOR_KEY, digest)});
    }

    function challenge(Receipt memory receipt, InclusionPromise memory given) internal returns (uint256) {
        vm.prank(stranger);
        return ledger.challengeOmission{value: BOND}(receipt, given);
    }

    function makeLeaf(Receipt memory receipt) internal view returns (WorkLeaf memory) {
        return WorkLeaf({
            receiptHash: court.hashReceipt(receipt),
            workKey: receipt.workKey,
            node: node,
            contributor: contributor,
            task: receipt.task,
            policyVersion: 4,
            outcome: 2,
            reason: 7,
            units: 0,
            evidenceHash: keccak256("evidence")
        });
    }

    /// Posts an epoch with the leaf beside another one.
    function post(WorkLeaf memory leaf) internal returns (EpochHeader memory header, bytes32[] memory proof) {
        bytes32 hash = ledger.hashWorkLeaf(leaf);
        bytes32 root = hash < OTHER_LEAF
            ? keccak256(bytes.concat(hash, OTHER_LEAF))
            : keccak256(bytes.concat(OTHER_LEAF, hash));
        uint64 epoch = ledger.epochsOf(pool);
        bytes32 previous = epoch == 0 ? bytes32(0) : ledger.getEpoch(pool, epoch - 1).headerHash;
        header = EpochHeader(pool, epoch, root, keccak256("reward"), 2, 0, keccak256("data"), previous);
        vm.prank(operator);
        ledger.post(pool, root, keccak256("reward"), 2, 0, keccak256("data"));
        proof = new bytes32[](1);
        proof[0] = OTHER_LEAF;
    }

    function test_ResolveOmission_PaysTheContributorFromTheOperatorsBond() public {
        Receipt memory receipt = makeReceipt(1, keccak256("file"));
        post(makeLeaf(makeReceipt(2, keccak256("another"))));
        InclusionPromise memory given = makePromise(receipt, 0);
        vm.expectEmit();
        emit IEpochLedger.OmissionChallenged(1, pool, contributor, court.hashReceipt(receipt));
        uint256 id = challenge(receipt, given);
        assertEq(stranger.balance, 1 ether - BOND);
        assertEq(ledger.getChallenge(id).amount, 150);

        vm.warp(START + 9);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WindowOpen.selector, START + 10));
        ledger.resolveOmission(id);
        vm.warp(START + 10);
        vm.expectEmit();
        emit IEpochLedger.OmissionUpheld(id, pool, contributor, 150);
        ledger.resolveOmission(id);
        assertEq(token.balanceOf(contributor), 150);
        assertEq(stakes.stakeOf(pool, BondKind.OPERATOR, operator), 850);
        assertEq(stranger.balance, 1 ether);
        assertTrue(ledger.getChallenge(id).state == ChallengeState.Upheld);

        vm.expectRevert(
            abi.encodeWithSelector(IEpochLedger.WrongChallengeState.selector, id, ChallengeState.Upheld)
        );
        ledger.resolveOmission(id);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.AlreadyChallenged.selector, court.hashReceipt(receipt)));
        challenge(receipt, given);
    }

    function test_ResolveOmission_IsCappedByTheBond() public {
        Receipt memory receipt = makeReceipt(1, keccak256("file"));
        receipt.units = 400;
        post(makeLeaf(makeReceipt(2, keccak256("another"))));
        uint256 id = challenge(receipt, makePromise(receipt, 0));
        vm.warp(START + 10);
        ledger.resolveOmission(id);
        assertEq(token.balanceOf(contributor), 1000);
        assertEq(pools.escrowOf(pool), 1_000_000);
    }

    function test_ChallengeOmission_WorksWithoutAnyEpoch() public {
        Receipt memory receipt = makeReceipt(1, keccak256("file"));
        InclusionPromise memory given = makePromise(receipt, 0);
        vm.warp(START + 120);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.NotOverdue.selector));
        challenge(receipt, given);
        vm.warp(START + 121);
        uint256 id = challenge(receipt, given);
        vm.warp(START + 131);
        ledger.resolveOmission(id);
        assertEq(token.balanceOf(contributor), 150);
    }

    function test_ChallengeOmission_RefusesForeignPromisesAndWrongBonds() public {
        Receipt memory receipt = makeReceipt(1, keccak256("file"));
        post(makeLeaf(receipt));
        InclusionPromise memory given = makePromise(receipt, 0);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WrongBond.selector, BOND, 1));
        vm.prank(stranger);
        ledger.challengeOmission{value: 1}(receipt, given);
        given.latestEpoch = 1;
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, operator));
        challenge(receipt, given);
        given.latestEpoch = 0;
        receipt.units = 51;
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, operator));
        challenge(receipt, given);
        receipt.pool = 99;
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.InvalidSignature.selector, address(0)));
        challenge(receipt, given);
    }

    function test_AnswerOmission_EarnsTheBond() public {
        Receipt memory receipt = makeReceipt(1, keccak256("file"));
        WorkLeaf memory leaf = makeLeaf(receipt);
        (EpochHeader memory header, bytes32[] memory proof) = post(leaf);
        uint256 id = challenge(receipt, makePromise(receipt, 0));
        vm.expectEmit();
        emit IEpochLedger.OmissionAnswered(id, pool, 0, trainer);
        vm.prank(trainer);
        ledger.answerOmission(id, header, leaf, proof);
        assertEq(trainer.balance, BOND);
        assertTrue(ledger.getChallenge(id).state == ChallengeState.Answered);
        vm.warp(START + 10);
        vm.expectRevert(
            abi.encodeWithSelector(IEpochLedger.WrongChallengeState.selector, id, ChallengeState.Answered)
        );
        ledger.resolveOmission(id);
        assertEq(stakes.stakeOf(pool, BondKind.OPERATOR, operator), 1000);
    }

    function test_AnswerOmission_RefusesWhatDoesNotShowIt() public {
        Receipt memory receipt = makeReceipt(1, keccak256("file"));
        WorkLeaf memory leaf = makeLeaf(receipt);
        (EpochHeader memory header, bytes32[] memory proof) = post(leaf);
        uint256 id = challenge(receipt, makePromise(receipt, 0));

        leaf.outcome = 1;
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.InvalidProof.selector));
        ledger.answerOmission(id, header, leaf, proof);
        leaf.outcome = 2;
        leaf.contributor = stranger;
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WrongLeaf.selector));
        ledger.answerOmission(id, header, leaf, proof);
        leaf.contributor = contributor;
        header.workRoot = ledger.hashWorkLeaf(leaf);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WrongHeader.selector));
        ledger.answerOmission(id, header, leaf, new bytes32[](0));
        header.epoch = 1;
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 1));
        ledger.answerOmission(id, header, leaf, proof);
        vm.expectRevert(
            abi.encodeWithSelector(IEpochLedger.WrongChallengeState.selector, id + 1, ChallengeState.None)
        );
        ledger.answerOmission(id + 1, header, leaf, proof);
        vm.warp(START + 10);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.WindowClosed.selector, START + 10));
        ledger.answerOmission(id, header, leaf, proof);
    }

    function test_AnswerOmission_WithAnEpochThatFallsReopensTheReceipt() public {
        Receipt memory receipt = makeReceipt(1, keccak256("file"));
        WorkLeaf memory leaf = makeLeaf(receipt);
        (EpochHeader memory header, bytes32[] memory proof) = post(leaf);
        InclusionPromise memory given = makePromise(receipt, 0);
        uint256 id = challenge(receipt, given);
        vm.prank(trainer);
        ledger.answerOmission(id, header, leaf, proof);
        vm.prank(arbiter);
        ledger.disableEpoch(pool, 0);
        uint256 again = challenge(receipt, given);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.EpochIsDisabled.selector, 0));
        ledger.answerOmission(again, header, leaf, proof);
        vm.warp(START + 10);
        ledger.resolveOmission(again);
        assertEq(token.balanceOf(contributor), 150);
    }
}
