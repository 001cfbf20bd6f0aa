// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IPolicyRegistry} from "../../contracts/interfaces/IPolicyRegistry.sol";
import {Fixture} from "./Fixture.sol";

contract PublishTest is Fixture {
    function publish(uint64 step, bytes32 manifest) internal {
        vm.prank(trainer);
        policies.publish(pool, step, manifest);
    }

    function test_WhenTheTrainerPublishes_ItStoresEachStep() public {
        vm.expectEmit();
        emit IPolicyRegistry.PolicyPublished(pool, 0, keccak256("0"));
        publish(0, keccak256("0"));
        publish(1, keccak256("1"));
        assertEq(policies.stepsOf(pool), 2);
        assertEq(policies.policyOf(pool, 0), keccak256("0"));
        assertEq(policies.policyOf(pool, 1), keccak256("1"));
        assertEq(policies.stepsOf(pool + 1), 0);
        vm.expectRevert(abi.encodeWithSelector(IPolicyRegistry.UnknownStep.selector, pool, 2));
        policies.policyOf(pool, 2);
    }

    function test_WhenTheStepIsNotTheNextOrTheHashIsZero_ItReverts(uint64 step) public {
        publish(0, keccak256("0"));
        if (step != 1) vm.expectRevert(abi.encodeWithSelector(IPolicyRegistry.WrongStep.selector, 1, step));
        publish(step, keccak256("1"));
        uint64 next = policies.stepsOf(pool);
        vm.expectRevert(abi.encodeWithSelector(IPolicyRegistry.ZeroHash.selector));
        publish(next, 0);
    }

    function test_WhenCallerIsNotTrainerOrThePoolIsNotActive_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(IPolicyRegistry.NotTrainer.selector, pool, operator));
        vm.prank(operator);
        policies.publish(pool, 0, keccak256("0"));
        uint256 created = pools.createPool(makeTerms(), validators, PARAMS);
        vm.expectRevert(abi.encodeWithSelector(IPolicyRegistry.PoolNotActive.selector, created));
        vm.prank(trainer);
        policies.publish(created, 0, keccak256("0"));
        vm.prank(operator);
        pools.endPool(pool);
        vm.expectRevert(abi.encodeWithSelector(IPolicyRegistry.PoolNotActive.selector, pool));
        vm.prank(trainer);
        policies.publish(pool, 0, keccak256("0"));
    }
}
