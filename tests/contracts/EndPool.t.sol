// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPoolRegistry, PoolState} from "../../contracts/interfaces/IPoolRegistry.sol";
import {Fixture} from "./Fixture.sol";

contract EndPoolTest is Fixture {
    function test_WhenActive_ItEndsOnceAndClosesLater() public {
        assertEq(pools.closesAt(pool), type(uint256).max);
        vm.expectEmit();
        emit IPoolRegistry.PoolEnded(pool, START + 20 + 4 * 20);
        vm.prank(operator);
        pools.endPool(pool);
        assertTrue(pools.stateOf(pool) == PoolState.Ended);
        assertTrue(!pools.isOpen(pool));
        assertEq(pools.closesAt(pool), START + 100);

        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.WrongState.selector, pool, PoolState.Ended));
        vm.prank(operator);
        pools.endPool(pool);
    }

    function test_WhenTheArbiterCalls_ItEndsToo() public {
        vm.prank(arbiter);
        pools.endPool(pool);
        assertTrue(pools.stateOf(pool) == PoolState.Ended);
    }

    function test_WhenNeverStarted_ItEndsToo() public {
        vm.prank(operator);
        uint256 created = pools.createPool(makeTerms(), validators, PARAMS);
        vm.prank(operator);
        pools.endPool(created);
        assertEq(pools.closesAt(created), START + 100);
    }

    function test_WhenCallerIsNeitherOperatorNorArbiter_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, stranger));
        vm.prank(stranger);
        pools.endPool(pool);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, pool, validators[0]));
        vm.prank(validators[0]);
        pools.endPool(pool);
    }
}
