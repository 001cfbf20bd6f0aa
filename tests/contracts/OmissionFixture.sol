// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochHeader, Receipt, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";
import {ChallengeState, EpochRecord, IEpochLedger, Inclusion, InclusionPromise} from
    "../../contracts/interfaces/IEpochLedger.sol";
import {Fixture} from "./Fixture.sol";

/// Adds a receipt, the operator's promise for it, a stranger that challenges, and epochs with two work leaves.
abstract contract OmissionFixture is Fixture {
    /// An epoch with inclusion proofs.
    struct Answer {
        EpochRecord record;
        EpochHeader header;
        Inclusion[] shown;
    }

    uint256 internal constant BOND = 0.001 ether;
    /// A promise that is due by then can be challenged at once, and until START + 63.
    uint64 internal constant DUE = uint64(START - 1);
    uint64 internal constant SIGNED = uint64(START - 5);
    bytes32 internal constant OTHER_LEAF = keccak256("other leaf");
    Receipt internal receipt;
    bytes32 internal receiptHash;

    function setUp() public override {
        super.setUp();
        vm.deal(stranger, 1 ether);
        vm.deal(trainer, 0);
        receipt = makeReceipt(1, keccak256("file"));
        receiptHash = court.hashReceipt(receipt);
    }

    function makePromise(uint64 dueBy) internal view returns (InclusionPromise memory) {
        return makePromise(receipt, dueBy);
    }

    function makePromise(Receipt memory of_, uint64 dueBy) internal view returns (InclusionPromise memory) {
        bytes32 digest = ledger.digestCountersignature(court.hashReceipt(of_), SIGNED, dueBy);
        return InclusionPromise({signedAt: SIGNED, dueBy: dueBy, signature: sign(OPERATOR_KEY, digest)});
    }

    function challenge(InclusionPromise memory given) internal {
        challenge(receipt, given);
    }

    function challenge(Receipt memory of_, InclusionPromise memory given) internal {
        bytes memory signature = signReceipt(of_);
        vm.prank(stranger);
        ledger.challengeOmission{value: BOND}(of_, signature, given);
    }

    function refuse(bytes memory reason, InclusionPromise memory given) internal {
        refuse(reason, given, NODE_KEY);
    }

    /// Expects a challenge to revert, with a receipt that `key` signed.
    function refuse(bytes memory reason, InclusionPromise memory given, uint256 key) internal {
        bytes memory signature = sign(key, court.digestReceipt(receipt));
        vm.expectRevert(reason);
        vm.prank(stranger);
        ledger.challengeOmission{value: BOND}(receipt, signature, given);
    }

    function makeLeaf(Receipt memory of_) internal view returns (WorkLeaf memory) {
        bytes32 evidence = keccak256("evidence");
        return WorkLeaf(court.hashReceipt(of_), of_.workKey, node, contributor, of_.task, 4, 5, 2, 7, 0, evidence);
    }

    /// Posts an epoch whose work tree has this leaf and another one.
    function postLeaf(WorkLeaf memory leaf) internal returns (Answer memory answer) {
        answer = postRoot(hashPair(ledger.hashWorkLeaf(leaf), OTHER_LEAF));
        answer.shown = show(leaf);
    }

    /// Proof of a leaf of the receipt, under a root that it has with the other leaf.
    function show(WorkLeaf memory leaf) internal view returns (Inclusion[] memory shown) {
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = OTHER_LEAF;
        shown = new Inclusion[](1);
        shown[0] = Inclusion(receipt, leaf, proof);
    }

    function postRoot(bytes32 workRoot) internal returns (Answer memory answer) {
        answer.header = makeHeader(workRoot, keccak256("reward"), 0);
        answer.record = postHeader(answer.header);
    }

    function postWithout() internal {
        postLeaf(makeLeaf(makeReceipt(2, keccak256("another"))));
    }

    function send(Answer memory answer) internal {
        vm.prank(trainer);
        ledger.answerOmissions(answer.record, answer.header, answer.shown);
    }

    function refuse(bytes memory reason, Answer memory answer) internal {
        vm.expectRevert(reason);
        send(answer);
    }

    function stateOf(Receipt memory of_) internal view returns (ChallengeState) {
        return ledger.getChallenge(court.hashReceipt(of_)).state;
    }

    function wrongState(ChallengeState state) internal view returns (bytes memory) {
        return abi.encodeWithSelector(IEpochLedger.WrongChallengeState.selector, receiptHash, state);
    }

    function hashPair(bytes32 a, bytes32 b) internal pure returns (bytes32) {
        return a < b ? keccak256(bytes.concat(a, b)) : keccak256(bytes.concat(b, a));
    }
}
