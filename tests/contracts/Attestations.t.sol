// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Attestation, EpochHeader} from "../../contracts/interfaces/ICoveyTypes.sol";
import {EpochRecord, IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {IPoolRegistry, PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {BondKind, IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Fixture} from "./Fixture.sol";

/// A pool that needs two attestations of its three validators for each header.
contract AttestationsTest is Fixture {
    bytes32 internal constant WORK = keccak256("work");
    bytes32 internal constant REWARD = keccak256("reward");

    function makeTerms() internal view override returns (PoolTerms memory terms) {
        terms = super.makeTerms();
        terms.headerQuorum = 2;
    }

    function attest(EpochHeader memory header, uint256 one, uint256 other)
        internal
        view
        returns (Attestation[] memory attestations)
    {
        attestations = new Attestation[](2);
        attestations[0] = attest(header, one);
        attestations[1] = attest(header, other);
    }

    /// Attestations of the validators 0 and 2, which is in order.
    function attest(EpochHeader memory header) internal view returns (Attestation[] memory) {
        return attest(header, validatorKeys[0], validatorKeys[2]);
    }

    function refuse(bytes memory reason, EpochHeader memory header, Attestation[] memory attestations) internal {
        refuse(reason, operator, header, attestations);
    }

    function refuse(
        bytes memory reason,
        address caller,
        EpochHeader memory header,
        Attestation[] memory attestations
    ) internal {
        vm.expectRevert(reason);
        vm.prank(caller);
        ledger.post(header, attestations);
    }

    function tooFew(uint256 valid) internal pure returns (bytes memory) {
        return abi.encodeWithSelector(IStakeManager.QuorumNotReached.selector, valid, 2);
    }

    /// Attestations of all three validators, in order.
    function attestAll(EpochHeader memory header) internal view returns (Attestation[] memory attestations) {
        attestations = new Attestation[](3);
        for (uint256 i = 0; i < 3; ++i) {
            attestations[i] = attest(header, validatorKeys[i]);
        }
    }

    function notIdle(uint256 idleAt) internal pure returns (bytes memory) {
        return abi.encodeWithSelector(IEpochLedger.SignerNotIdle.selector, idleAt);
    }

    function test_WithAQuorum_TheSignerPosts() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 5);
        Attestation[] memory attestations = attest(header);
        vm.prank(operator);
        ledger.post(header, attestations);
        assertEq(ledger.headOf(pool), ledger.hashHeader(header));
        assertEq(ledger.owedOf(pool), 15);
    }

    function test_WithTooFew_ItReverts() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        Attestation[] memory one = new Attestation[](1);
        one[0] = attest(header, validatorKeys[0]);
        refuse(tooFew(0), header, none);
        refuse(tooFew(1), header, one);
    }

    function test_WhenDoubledOrOutOfOrder_ItReverts() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        refuse(tooFew(1), header, attest(header, validatorKeys[1], validatorKeys[1]));
        refuse(tooFew(1), header, attest(header, validatorKeys[2], validatorKeys[0]));
    }

    /// Keys in any order, of which at most two are validators: what the ledger accepts is a quorum of two.
    function test_AnyTwoKeys_AreAcceptedOnlyIfTheyAreTwoValidatorsInOrder(uint8 one, uint8 other) public {
        uint256[5] memory keys = [validatorKeys[0], validatorKeys[1], validatorKeys[2], OPERATOR_KEY, NODE_KEY];
        (one, other) = (one % 5, other % 5);
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        Attestation[] memory attestations = attest(header, keys[one], keys[other]);
        vm.prank(operator);
        try ledger.post(header, attestations) {
            require(one < other && other < 3, "posted without a quorum");
        } catch {
            require(!(one < other && other < 3), "a quorum could not post");
        }
    }

    function test_WhenASignerIsNotAValidator_ItReverts() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        bool isFirst = stranger < validators[0];
        (uint256 a, uint256 b) = isFirst ? (STRANGER_KEY, validatorKeys[0]) : (validatorKeys[0], STRANGER_KEY);
        refuse(tooFew(1), header, attest(header, a, b));
        // A validator that was replaced no longer counts.
        vm.prank(operator);
        pools.replaceValidator(pool, validators[0], stranger);
        refuse(tooFew(1), header, attest(header));
    }

    /// One validator has left since it signed, or its signature is malformed. The other two are a quorum.
    function test_WhenOneOfThreeNoLongerCounts_TheOthersAreEnough(uint8 spoiled, bool isMalformed) public {
        spoiled %= 3;
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        Attestation[] memory attestations = attestAll(header);
        if (isMalformed) {
            attestations[spoiled].r = 0;
        } else {
            vm.prank(operator);
            pools.replaceValidator(pool, validators[spoiled], stranger);
        }
        vm.prank(operator);
        ledger.post(header, attestations);
        assertEq(ledger.epochsOf(pool), 1);
    }

    /// A signature over something else recovers any account, perhaps a high one, which must not hide the next ones.
    function test_WhenAStrangerIsInBetween_TheOthersAreEnough() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        Attestation[] memory attestations = new Attestation[](3);
        uint256 high = STRANGER_KEY;
        while (vm.addr(high) < validators[2]) ++high;
        attestations[0] = attest(header, validatorKeys[0]);
        attestations[1] = attest(header, high);
        attestations[2] = attest(header, validatorKeys[2]);
        vm.prank(operator);
        ledger.post(header, attestations);
        assertEq(ledger.epochsOf(pool), 1);
    }

    function test_WhenAValidatorHasTooLittleBond_ItReverts() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        Attestation[] memory attestations = attest(header);
        vm.prank(validators[2]);
        stakes.unbond(pool, BondKind.VALIDATOR, 1);
        // What leaves a challenge and a veto window from now can still be slashed, so it counts.
        vm.prank(operator);
        ledger.post(header, attestations);
        header = makeHeader(WORK, REWARD, 1);
        attestations = attest(header);
        vm.warp(START + 1);
        assertEq(stakes.lastingBondOf(pool, validators[2]), 19);
        assertEq(stakes.backingOf(pool, BondKind.VALIDATOR, validators[2]), 20);
        refuse(tooFew(1), header, attestations);
    }

    /// Each field of the header is signed. A signature over another header recovers an account that is nobody.
    function test_WhenTheHeaderDiffers_ItReverts(uint8 field) public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        Attestation[] memory attestations = attest(header);
        field %= 5;
        if (field == 0) header.workRoot = REWARD;
        if (field == 1) header.rewardRoot = WORK;
        if (field == 2) header.units = 2;
        if (field == 3) header.leafCount = 3;
        if (field == 4) header.dataHash = WORK;
        vm.expectRevert();
        vm.prank(operator);
        ledger.post(header, attestations);
        assertEq(ledger.epochsOf(pool), 0);
    }

    function test_WhenTheSignatureIsMalformed_ItReverts() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        Attestation[] memory attestations = attest(header);
        attestations[1].r = 0;
        refuse(tooFew(1), header, attestations);
    }

    /// Before the first epoch, the signer is idle 11 s after the pool's start.
    function test_WhenTheSignerIsIdle_AnybodyPostsWithAQuorum() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 5);
        Attestation[] memory attestations = attest(header);
        vm.warp(START + 10);
        refuse(notIdle(START + 11), stranger, header, attestations);
        vm.warp(START + 11);
        refuse(tooFew(0), stranger, header, none);
        vm.prank(stranger);
        ledger.post(header, attestations);
        assertEq(ledger.owedOf(pool), 15);

        // The time begins again with each epoch.
        header = makeHeader(WORK, REWARD, 5);
        attestations = attest(header);
        vm.warp(START + 21);
        refuse(notIdle(START + 22), stranger, header, attestations);
        vm.warp(START + 22);
        vm.prank(stranger);
        ledger.post(header, attestations);
        assertEq(ledger.epochsOf(pool), 2);
    }

    /// The arbiter disables a posted epoch. What validators signed on top of it names its header.
    function test_WhenTheEpochBelowIsDisabled_WhatWasSignedOnTopOfItIsVoid() public {
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        EpochRecord memory record = makeRecord(header);
        Attestation[] memory attestations = attest(header);
        vm.prank(operator);
        ledger.post(header, attestations);
        vm.warp(START + 1);
        EpochHeader memory next = makeHeader(WORK, REWARD, 2);
        Attestation[] memory early = attest(next);
        vm.prank(arbiter);
        ledger.disableEpoch(pool, record, true);
        bytes4 selector = IEpochLedger.WrongPreviousHash.selector;
        refuse(abi.encodeWithSelector(selector, bytes32(0), next.previousHash), next, early);
        next.previousHash = 0;
        refuse(tooFew(0), next, early);
        early = attest(next);
        vm.prank(operator);
        ledger.post(next, early);
        assertEq(ledger.headOf(pool), ledger.hashHeader(next));
    }

    function test_WithoutAHeaderQuorum_OnlyTheSignerPosts() public {
        PoolTerms memory terms = makeTerms();
        terms.headerQuorum = 0;
        pool = makePool(terms);
        give(operator, pool, 1000);
        EpochHeader memory header = makeHeader(WORK, REWARD, 1);
        Attestation[] memory attestations = attest(header);
        vm.warp(START + 1 days);
        refuse(
            abi.encodeWithSelector(IEpochLedger.NotSigner.selector, pool, stranger), stranger, header, attestations
        );
        vm.prank(operator);
        ledger.post(header, none);
    }

    function test_WhenTheHeaderQuorumExceedsTheValidators_CreatePoolReverts() public {
        PoolTerms memory terms = makeTerms();
        terms.headerQuorum = 4;
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.InvalidQuorum.selector, 4, 3));
        vm.prank(operator);
        pools.createPool(terms, validators, PARAMS);
        terms.headerQuorum = 3;
        makePool(terms);
    }
}
