// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {EpochRecord, IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of EpochLedger.setPayee. Omission.t.sol tests that omitted work is paid to the payee too.
contract SetPayeeTest is Fixture {
    address internal cold = vm.addr(0xC01D);

    function name(address payee) internal {
        vm.expectEmit();
        emit IEpochLedger.PayeeSet(pool, contributor, payee);
        vm.prank(contributor);
        ledger.setPayee(pool, payee);
    }

    function claim(EpochRecord memory record, uint256 cumulative) internal {
        ledger.claim(pool, record, contributor, cumulative, new bytes32[](0));
    }

    function leafOf(uint256 cumulative) internal view returns (bytes32) {
        return ledger.hashRewardLeaf(block.chainid, address(ledger), pool, contributor, cumulative);
    }

    function test_WhenNobodyIsNamed_TheContributorIsPaid() public view {
        assertEq(ledger.payeeOf(pool, contributor), contributor);
    }

    function test_WhenAPayeeIsNamed_ItIsPaidUntilItIsNamedNoMore() public {
        EpochRecord memory first = post(leafOf(120), 40);
        vm.warp(START + 1);
        EpochRecord memory second = post(leafOf(180), 20);
        vm.warp(START + 21);
        name(cold);
        assertEq(ledger.payeeOf(pool, contributor), cold);
        assertEq(ledger.payeeOf(pool + 1, contributor), contributor);
        claim(first, 120);
        assertEq(token.balanceOf(cold), 120);
        assertEq(ledger.claimedOf(pool, contributor), 120);
        assertEq(ledger.claimedOf(pool, cold), 0);

        name(address(0));
        claim(second, 180);
        assertEq(token.balanceOf(contributor), 60);
        assertEq(token.balanceOf(cold), 120);
    }

    /// A payee cannot change what another contributor receives.
    function test_WhenAnotherNamesAPayee_OnlyItsOwnChanges() public {
        vm.prank(stranger);
        ledger.setPayee(pool, stranger);
        assertEq(ledger.payeeOf(pool, contributor), contributor);
    }
}
