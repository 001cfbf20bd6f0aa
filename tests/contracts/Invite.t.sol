// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {PoolTerms} from "../../contracts/interfaces/IPoolRegistry.sol";
import {INodeRegistry} from "../../contracts/interfaces/INodeRegistry.sol";
import {Fixture} from "./Fixture.sol";

/// Tests of NodeRegistry.invite and withdrawInvitation, in an invite-only pool.
contract InviteTest is Fixture {
    uint256 internal closed;

    function setUp() public override {
        super.setUp();
        PoolTerms memory terms = makeTerms();
        terms.isInviteOnly = true;
        closed = makePool(terms);
    }

    function invite(address who) internal {
        address[] memory guests = new address[](1);
        guests[0] = who;
        vm.prank(operator);
        nodes.invite(closed, guests);
    }

    function register() internal {
        uint256 nonce = nodes.nonceOf(node);
        bytes32 digest = nodes.digestRegistration(closed, contributor, node, nonce, START);
        nodes.registerNode(closed, contributor, node, START, sign(CONTRIBUTOR_KEY, digest), sign(NODE_KEY, digest));
    }

    function test_WhenInvited_ItCanRegister() public {
        vm.expectEmit();
        emit INodeRegistry.ContributorInvited(closed, contributor);
        invite(contributor);
        assertTrue(nodes.isInvited(closed, contributor));
        assertTrue(!nodes.isInvited(pool, contributor));
        register();
        assertEq(nodes.contributorOf(closed, node), contributor);
    }

    function test_WhenNotInvited_ItCannotRegister() public {
        invite(stranger);
        bytes32 digest = nodes.digestRegistration(closed, contributor, node, nodes.nonceOf(node), START);
        bytes memory mine = sign(CONTRIBUTOR_KEY, digest);
        bytes memory its = sign(NODE_KEY, digest);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.NotInvited.selector, closed, contributor));
        nodes.registerNode(closed, contributor, node, START, mine, its);
    }

    function test_WhenWithdrawn_NodesStayAndNewOnesAreRefused() public {
        invite(contributor);
        register();
        vm.expectEmit();
        emit INodeRegistry.InvitationWithdrawn(closed, contributor);
        vm.prank(operator);
        nodes.withdrawInvitation(closed, contributor);
        assertEq(nodes.contributorOf(closed, node), contributor);
        bytes32 digest = nodes.digestRegistration(closed, contributor, vm.addr(0x1D), 0, START);
        bytes memory its = sign(0x1D, digest);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.NotInvited.selector, closed, contributor));
        vm.prank(contributor);
        nodes.rotateNode(closed, node, vm.addr(0x1D), START, its);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.NotInvited.selector, closed, contributor));
        vm.prank(operator);
        nodes.withdrawInvitation(closed, contributor);
    }

    function test_WhenCallerIsNotOperator_ItReverts() public {
        address[] memory guests = new address[](1);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.NotOperator.selector, closed, stranger));
        vm.prank(stranger);
        nodes.invite(closed, guests);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.NotOperator.selector, closed, stranger));
        vm.prank(stranger);
        nodes.withdrawInvitation(closed, contributor);
    }
}
