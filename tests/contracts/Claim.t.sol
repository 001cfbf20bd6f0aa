// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochRecord, IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {Fixture} from "./Fixture.sol";

contract ClaimTest is Fixture {
    function leafOf(address account, uint256 cumulative) internal view returns (bytes32) {
        return ledger.hashRewardLeaf(block.chainid, address(ledger), pool, account, cumulative);
    }

    function pair(bytes32 a, bytes32 b) internal pure returns (bytes32) {
        return a < b ? keccak256(bytes.concat(a, b)) : keccak256(bytes.concat(b, a));
    }

    /// Posts an epoch whose reward tree has two leaves. Returns its record and a proof for each leaf.
    function post(uint64 units, uint256 toContributor, uint256 toStranger)
        internal
        returns (EpochRecord memory record, bytes32[] memory contributorProof, bytes32[] memory strangerProof)
    {
        bytes32 a = leafOf(contributor, toContributor);
        bytes32 b = leafOf(stranger, toStranger);
        record = post(pair(a, b), units);
        contributorProof = new bytes32[](1);
        strangerProof = new bytes32[](1);
        contributorProof[0] = b;
        strangerProof[0] = a;
    }

    function refuse(bytes memory reason, EpochRecord memory record, address who, uint256 amount, bytes32[] memory proof)
        internal
    {
        vm.expectRevert(reason);
        ledger.claim(pool, record, who, amount, proof);
    }

    function test_WhenFinal_AnyCallerPaysTheContributor() public {
        (EpochRecord memory record, bytes32[] memory mine,) = post(100, 120, 180);
        vm.warp(START + 20);
        vm.expectEmit();
        emit IEpochLedger.RewardClaimed(pool, 0, contributor, 120);
        vm.prank(trainer);
        ledger.claim(pool, record, contributor, 120, mine);
        assertEq(token.balanceOf(contributor), 120);
        assertEq(token.balanceOf(trainer), 0);
        assertEq(ledger.claimedOf(pool, contributor), 120);
        assertEq(ledger.owedOf(pool), 180);
        assertEq(ledger.escrowOf(pool), 999_880);
        refuse(abi.encodeWithSelector(IEpochLedger.NothingToClaim.selector), record, contributor, 120, mine);
    }

    function test_WhenClaimedBefore_ItPaysTheRest() public {
        (EpochRecord memory older, bytes32[] memory first,) = post(100, 120, 180);
        vm.warp(START + 1);
        (EpochRecord memory newer, bytes32[] memory second,) = post(50, 200, 250);
        vm.warp(START + 21);
        ledger.claim(pool, older, contributor, 120, first);
        ledger.claim(pool, newer, contributor, 200, second);
        assertEq(token.balanceOf(contributor), 200);
        refuse(abi.encodeWithSelector(IEpochLedger.NothingToClaim.selector), older, contributor, 120, first);
    }

    /// 180 of 300 are claimed against the newer epoch. The epochs up to the older one are worth 120.
    function test_WhenOthersClaimedAgainstANewerEpoch_ItRequiresThatOne() public {
        (EpochRecord memory older, bytes32[] memory mine,) = post(40, 120, 0);
        vm.warp(START + 1);
        (EpochRecord memory newer, bytes32[] memory mineToo, bytes32[] memory its) = post(60, 120, 180);
        vm.warp(START + 21);
        ledger.claim(pool, newer, stranger, 180, its);
        bytes memory reason = abi.encodeWithSelector(IEpochLedger.RewardExceedsEpochs.selector, 300, 120);
        refuse(reason, older, contributor, 120, mine);
        ledger.claim(pool, newer, contributor, 120, mineToo);
        assertEq(ledger.owedOf(pool), 0);
    }

    function test_WhenNotFinal_ItReverts() public {
        (EpochRecord memory record, bytes32[] memory mine,) = post(100, 120, 180);
        vm.warp(START + 19);
        bytes memory reason = abi.encodeWithSelector(IEpochLedger.NotFinal.selector, START + 20);
        refuse(reason, record, contributor, 120, mine);
    }

    function test_WhenTheRecordIsAltered_ItReverts() public {
        (EpochRecord memory record, bytes32[] memory mine,) = post(100, 120, 180);
        vm.warp(START + 20);
        bytes memory unknown = abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 0);
        record.finalAt -= 1;
        refuse(unknown, record, contributor, 120, mine);
        record.finalAt += 1;
        record.cumulative += 1;
        refuse(unknown, record, contributor, 120, mine);
        record.cumulative -= 1;
        record.rewardRoot = leafOf(contributor, 120);
        refuse(unknown, record, contributor, 120, new bytes32[](0));
        record.epoch = 256;
        unknown = abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 256);
        refuse(unknown, record, contributor, 120, mine);
    }

    function test_WhenTheEpochIsDisabled_ItReverts() public {
        (EpochRecord memory record, bytes32[] memory mine,) = post(100, 120, 180);
        vm.prank(arbiter);
        ledger.disableEpoch(pool, record, true);
        vm.warp(START + 20);
        bytes memory unknown = abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 0);
        refuse(unknown, record, contributor, 120, mine);
    }

    function test_WhenTheEpochBelongsToAnotherPool_ItReverts() public {
        (EpochRecord memory record, bytes32[] memory mine,) = post(100, 120, 180);
        uint256 other = makePool(makeTerms());
        give(operator, other, 1000);
        vm.warp(START + 20);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, other, 0));
        ledger.claim(other, record, contributor, 120, mine);
    }

    function test_WhenAmountAccountOrProofIsWrong_ItReverts() public {
        (EpochRecord memory record, bytes32[] memory mine, bytes32[] memory its) = post(100, 120, 180);
        vm.warp(START + 20);
        bytes memory reason = abi.encodeWithSelector(IEpochLedger.InvalidProof.selector);
        refuse(reason, record, contributor, 121, mine);
        refuse(reason, record, stranger, 120, mine);
        refuse(reason, record, contributor, 120, its);
        refuse(reason, record, contributor, 120, new bytes32[](0));
    }

    function test_WhateverTheRootPromises_ClaimsNeverExceedTheEpochs(uint64 units, uint256 promised) public {
        units = uint64(bound(units, 0, 300_000));
        promised = bound(promised, 1, 2_000_000);
        (EpochRecord memory record, bytes32[] memory mine,) = post(units, promised, 0);
        vm.warp(START + 20);
        uint256 worth = uint256(units) * 3;
        if (promised > worth) {
            vm.expectRevert(
                abi.encodeWithSelector(IEpochLedger.RewardExceedsEpochs.selector, promised, worth)
            );
        }
        ledger.claim(pool, record, contributor, promised, mine);
        assertEq(token.balanceOf(contributor), promised > worth ? 0 : promised);
    }
}
