// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {World} from "./World.sol";

contract ClaimTest is World {
    function leafOf(address account, uint256 cumulative) internal view returns (bytes32) {
        return ledger.hashRewardLeaf(block.chainid, address(ledger), pool, account, cumulative);
    }

    function pair(bytes32 a, bytes32 b) internal pure returns (bytes32) {
        return a < b ? keccak256(bytes.concat(a, b)) : keccak256(bytes.concat(b, a));
    }

    /// Posts an epoch whose tree has two leaves, and returns each one's proof.
    function post(uint64 units, uint256 toContributor, uint256 toStranger)
        internal
        returns (bytes32[] memory contributorProof, bytes32[] memory strangerProof)
    {
        bytes32 a = leafOf(contributor, toContributor);
        bytes32 b = leafOf(stranger, toStranger);
        vm.prank(operator);
        ledger.post(pool, keccak256("work"), pair(a, b), 2, units, keccak256("data"));
        contributorProof = new bytes32[](1);
        strangerProof = new bytes32[](1);
        contributorProof[0] = b;
        strangerProof[0] = a;
    }

    function test_Claim_PaysTheContributorWhoeverSends() public {
        (bytes32[] memory mine,) = post(100, 120, 180);
        vm.warp(START + 20);
        vm.expectEmit();
        emit IEpochLedger.RewardClaimed(pool, 0, contributor, 120);
        vm.prank(trainer);
        ledger.claim(pool, 0, contributor, 120, mine);
        assertEq(token.balanceOf(contributor), 120);
        assertEq(token.balanceOf(trainer), 0);
        assertEq(ledger.claimedOf(pool, contributor), 120);
        assertEq(pools.owedOf(pool), 180);
        assertEq(pools.escrowOf(pool), 999_880);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.NothingToClaim.selector));
        ledger.claim(pool, 0, contributor, 120, mine);
    }

    function test_Claim_IsCumulative() public {
        (bytes32[] memory first,) = post(100, 120, 180);
        (bytes32[] memory second,) = post(50, 200, 250);
        vm.warp(START + 20);
        ledger.claim(pool, 0, contributor, 120, first);
        ledger.claim(pool, 1, contributor, 200, second);
        assertEq(token.balanceOf(contributor), 200);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.NothingToClaim.selector));
        ledger.claim(pool, 0, contributor, 120, first);
    }

    function test_Claim_OlderRootStillPaysAfterNewerClaims() public {
        (bytes32[] memory mine,) = post(40, 120, 0);
        (, bytes32[] memory its) = post(60, 120, 180);
        vm.warp(START + 20);
        ledger.claim(pool, 1, stranger, 180, its);
        ledger.claim(pool, 0, contributor, 120, mine);
        assertEq(token.balanceOf(contributor), 120);
        assertEq(token.balanceOf(stranger), 180);
        assertEq(pools.owedOf(pool), 0);
    }

    function test_Claim_WaitsForFinality() public {
        (bytes32[] memory mine,) = post(100, 120, 180);
        vm.warp(START + 19);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.NotFinal.selector, START + 20));
        ledger.claim(pool, 0, contributor, 120, mine);
    }

    function test_Claim_RefusesDisabledAndUnknownEpochs() public {
        (bytes32[] memory mine,) = post(100, 120, 180);
        vm.prank(arbiter);
        ledger.disableEpoch(pool, 0);
        vm.warp(START + 20);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.EpochIsDisabled.selector, 0));
        ledger.claim(pool, 0, contributor, 120, mine);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.UnknownEpoch.selector, pool, 1));
        ledger.claim(pool, 1, contributor, 120, mine);
    }

    function test_Claim_RefusesOtherAmountsAccountsAndProofs() public {
        (bytes32[] memory mine, bytes32[] memory its) = post(100, 120, 180);
        vm.warp(START + 20);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.InvalidProof.selector));
        ledger.claim(pool, 0, contributor, 121, mine);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.InvalidProof.selector));
        ledger.claim(pool, 0, stranger, 120, mine);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.InvalidProof.selector));
        ledger.claim(pool, 0, contributor, 120, its);
    }

    function test_Claim_NeverExceedsTheUnitsOfFinalEpochs() public {
        (bytes32[] memory mine, bytes32[] memory its) = post(10, 29, 2);
        post(1000, 29, 2971);
        vm.warp(START + 20);
        ledger.claim(pool, 0, contributor, 29, mine);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.RewardExceedsUnits.selector, 2, 1));
        ledger.claim(pool, 0, stranger, 2, its);
    }

    function test_Claim_NeverExceedsUnitsWhateverTheRootSays(uint64 units, uint256 promised) public {
        units = uint64(bound(units, 0, 300_000));
        promised = bound(promised, 1, 2_000_000);
        (bytes32[] memory mine,) = post(units, promised, 0);
        vm.warp(START + 20);
        uint256 worth = uint256(units) * 3;
        if (promised > worth) {
            vm.expectRevert(abi.encodeWithSelector(IEpochLedger.RewardExceedsUnits.selector, promised, worth));
        }
        ledger.claim(pool, 0, contributor, promised, mine);
        assertEq(token.balanceOf(contributor), promised > worth ? 0 : promised);
    }
}
