// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {INodeRegistry} from "../../contracts/interfaces/INodeRegistry.sol";
import {Fixture} from "./Fixture.sol";

contract RotateNodeTest is Fixture {
    uint256 internal constant NEXT_KEY = 0x1D;
    address internal next = vm.addr(NEXT_KEY);

    function consent(uint256 nonce) internal view returns (bytes memory) {
        return sign(NEXT_KEY, nodes.digestRegistration(pool, contributor, next, nonce, START));
    }

    function test_WhenTheNewNodeSigned_ItReplacesTheOldOneWhichStaysLiable() public {
        bytes memory signature = consent(0);
        vm.expectEmit();
        emit INodeRegistry.NodeRemoved(pool, node, contributor);
        vm.expectEmit();
        emit INodeRegistry.NodeRegistered(pool, next, contributor);
        vm.prank(contributor);
        nodes.rotateNode(pool, node, next, START, signature);
        assertEq(nodes.contributorOf(pool, node), address(0));
        assertEq(nodes.contributorOf(pool, next), contributor);
        assertEq(nodes.nonceOf(next), 1);
        assertTrue(nodes.isLiable(pool, next, contributor));
        vm.warp(START + 20);
        assertTrue(nodes.isLiable(pool, node, contributor));
        vm.warp(START + 21);
        assertTrue(!nodes.isLiable(pool, node, contributor));
    }

    function test_WhenTheNewNodeDidNotSign_ItReverts() public {
        bytes memory forged = sign(NODE_KEY, nodes.digestRegistration(pool, contributor, next, 0, START));
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, next));
        vm.prank(contributor);
        nodes.rotateNode(pool, node, next, START, forged);
        assertEq(nodes.contributorOf(pool, node), contributor);
    }

    function test_WhenExpiredOrUsed_ItReverts() public {
        bytes memory signature = consent(0);
        vm.warp(START + 1);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.SignatureExpired.selector, START));
        vm.prank(contributor);
        nodes.rotateNode(pool, node, next, START, signature);
        vm.warp(START);
        vm.prank(contributor);
        nodes.rotateNode(pool, node, next, START, signature);
        vm.prank(contributor);
        nodes.removeNode(pool, next);
        registerNode(contributor, CONTRIBUTOR_KEY);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, next));
        vm.prank(contributor);
        nodes.rotateNode(pool, node, next, START, signature);
    }

    function test_WhenAnotherCalls_ItReverts() public {
        bytes memory signature = consent(0);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.NotContributor.selector, pool, node, stranger));
        vm.prank(stranger);
        nodes.rotateNode(pool, node, next, START, signature);
    }
}
