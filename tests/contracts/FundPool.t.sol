// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {IEpochLedger} from "../../contracts/interfaces/IEpochLedger.sol";
import {IPayouts} from "../../contracts/interfaces/IPayouts.sol";
import {Fixture} from "./Fixture.sol";

contract FundPoolTest is Fixture {
    function test_WhenAnyonePays_ItAddsToTheEscrow() public {
        token.mint(stranger, 70);
        vm.prank(stranger);
        token.approve(address(ledger), 70);

        vm.expectEmit();
        emit IEpochLedger.PoolFunded(pool, stranger, 70);
        vm.prank(stranger);
        ledger.fundPool(pool, 70);

        assertEq(ledger.escrowOf(pool), 1_000_070);
        assertEq(ledger.getSettlement(pool).funded, 1_000_070);
        assertEq(token.balanceOf(address(ledger)), 1_000_070);
        assertEq(token.balanceOf(stranger), 0);
    }

    function test_WhenThereAreTwoPools_TheirEscrowsAreSeparate() public {
        uint256 other = makePool(makeTerms());
        give(operator, other, 5);
        assertEq(ledger.escrowOf(pool), 1_000_000);
        assertEq(ledger.escrowOf(other), 5);
    }

    function test_WhenAmountIsZeroOrPoolIsNotOpen_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPayouts.ZeroAmount.selector));
        ledger.fundPool(pool, 0);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.PoolNotOpen.selector, 99));
        ledger.fundPool(99, 1);
        vm.prank(operator);
        pools.endPool(pool);
        vm.expectRevert(abi.encodeWithSelector(IEpochLedger.PoolNotOpen.selector, pool));
        ledger.fundPool(pool, 1);
    }

    function test_WhenAmountDoesNotFit_ItReverts() public {
        uint256 amount = uint256(type(uint96).max) - 1_000_000 + 1;
        vm.expectRevert(
            abi.encodeWithSelector(SafeCast.SafeCastOverflowedUintDowncast.selector, 96, amount + 1_000_000)
        );
        ledger.fundPool(pool, amount);
    }
}
