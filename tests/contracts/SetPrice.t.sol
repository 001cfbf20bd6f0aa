// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPoolRegistry, ScheduledPrice} from "../../contracts/interfaces/IPoolRegistry.sol";
import {EpochHeader} from "../../contracts/interfaces/ICoveyTypes.sol";
import {Fixture} from "./Fixture.sol";

/// The price is 3,000,000 at first. A raise waits 10 s, a lowering 20 s.
contract SetPriceTest is Fixture {
    function set(uint96 price) internal {
        vm.prank(operator);
        pools.setPrice(pool, price);
    }

    /// Posts an epoch of 1,000,000 units and returns its reward, which is the price.
    function postMillion() internal returns (uint256) {
        uint256 posted = ledger.getSettlement(pool).posted;
        EpochHeader memory header = makeHeader(keccak256("work"), keccak256("reward"), 1_000_000);
        vm.prank(operator);
        ledger.post(header, none);
        return ledger.getSettlement(pool).posted - posted;
    }

    function setUp() public override {
        super.setUp();
        give(operator, pool, 1e9);
        postMillion();
    }

    function test_WhenRaised_EpochsThatBeginAfterTheChallengeWindowEarnMore() public {
        vm.expectEmit();
        emit IPoolRegistry.PriceSet(pool, 4_000_000, START + 10);
        set(4_000_000);
        vm.warp(START + 9);
        assertEq(postMillion(), 3_000_000);
        assertEq(pools.getTerms(pool).rewardPerMillion, 3_000_000);
        vm.warp(START + 12);
        // The price holds, but this epoch began before.
        assertEq(postMillion(), 3_000_000);
        assertEq(pools.getTerms(pool).rewardPerMillion, 4_000_000);
        vm.warp(START + 13);
        assertEq(postMillion(), 4_000_000);
    }

    function test_WhenLowered_ItWaitsTheUnbondWindow() public {
        set(1);
        vm.warp(START + 19);
        assertEq(postMillion(), 3_000_000);
        vm.warp(START + 20);
        assertEq(postMillion(), 3_000_000);
        vm.warp(START + 21);
        assertEq(postMillion(), 1);
    }

    function test_WhenSetAgainAfterward_AnEpochThatBeganBeforeKeepsItsPrice() public {
        set(4_000_000);
        vm.warp(START + 10);
        set(5_000_000);
        vm.warp(START + 20);
        set(6_000_000);
        // The last epoch was posted at START.
        assertEq(postMillion(), 3_000_000);
        ScheduledPrice[] memory prices = pools.getPrices(pool);
        assertEq(prices.length, 4);
        uint24[4] memory expected = [3_000_000, 4_000_000, 5_000_000, 6_000_000];
        for (uint256 i = 0; i < 4; ++i) {
            assertEq(prices[i].rewardPerMillion, expected[i]);
            assertEq(prices[i].start, i == 0 ? 0 : START + 10 * i);
        }
        assertEq(pools.priceAt(pool, START + 19), 4_000_000);
    }

    function test_WhenAChangeIsPending_ItCanBeReplacedAndCancelled() public {
        set(1);
        set(4_000_000);
        assertEq(pools.getPrices(pool).length, 2);
        vm.expectEmit();
        emit IPoolRegistry.PriceSet(pool, 3_000_000, 0);
        set(3_000_000);
        assertEq(pools.getPrices(pool).length, 1);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NothingToChange.selector));
        set(3_000_000);
    }

    function test_WhenCallerIsNotOperator_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, arbiter));
        vm.prank(arbiter);
        pools.setPrice(pool, 1);
    }
}
