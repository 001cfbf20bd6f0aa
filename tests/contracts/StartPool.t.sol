// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {Pausable} from "@openzeppelin/contracts/utils/Pausable.sol";
import {IPoolRegistry, PoolState} from "../../contracts/interfaces/IPoolRegistry.sol";
import {Fixture} from "./Fixture.sol";

contract StartPoolTest is Fixture {
    uint256 internal created;

    function setUp() public override {
        super.setUp();
        vm.prank(operator);
        created = pools.createPool(makeTerms(), validators, PARAMS);
    }

    function test_WhenCreated_ItActivatesOnce() public {
        vm.expectEmit();
        emit IPoolRegistry.PoolStarted(created);
        vm.prank(operator);
        pools.startPool(created);
        assertTrue(pools.stateOf(created) == PoolState.Active);

        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.WrongState.selector, created, PoolState.Active));
        vm.prank(operator);
        pools.startPool(created);
    }

    function test_WhenCallerIsNotOperator_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, created, arbiter));
        vm.prank(arbiter);
        pools.startPool(created);
        vm.expectRevert(abi.encodeWithSelector(IPoolRegistry.NotOperator.selector, 99, operator));
        vm.prank(operator);
        pools.startPool(99);
    }

    function test_WhenPaused_ItReverts() public {
        vm.prank(admin);
        pools.pause();
        vm.expectRevert(abi.encodeWithSelector(Pausable.EnforcedPause.selector));
        vm.prank(operator);
        pools.startPool(created);
    }
}
