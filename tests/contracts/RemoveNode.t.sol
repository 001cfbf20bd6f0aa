// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {INodeRegistry} from "../../contracts/interfaces/INodeRegistry.sol";
import {Fixture} from "./Fixture.sol";

contract RemoveNodeTest is Fixture {
    function test_WhenTheContributorCalls_ItEndsTheBindingAndLaterTheLiability() public {
        vm.expectEmit();
        emit INodeRegistry.NodeRemoved(pool, node, contributor);
        vm.prank(contributor);
        nodes.removeNode(pool, node);
        assertEq(nodes.contributorOf(pool, node), address(0));
        vm.warp(START + 20);
        assertTrue(nodes.isLiable(pool, node, contributor));
        vm.warp(START + 21);
        assertTrue(!nodes.isLiable(pool, node, contributor));
        assertTrue(nodes.wasBound(pool, node, contributor));
        assertTrue(!nodes.wasBound(pool, node, stranger));
        assertTrue(!nodes.wasBound(pool + 1, node, contributor));
    }

    function test_WhenAnotherCalls_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.NotContributor.selector, pool, node, stranger));
        vm.prank(stranger);
        nodes.removeNode(pool, node);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.NotContributor.selector, pool, node, operator));
        vm.prank(operator);
        nodes.removeNode(pool, node);
    }
}
