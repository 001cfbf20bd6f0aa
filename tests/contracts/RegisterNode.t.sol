// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

import {IERC1271} from "@openzeppelin/contracts/interfaces/IERC1271.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {INodeRegistry} from "../../contracts/interfaces/INodeRegistry.sol";
import {Fixture} from "./Fixture.sol";

interface VmCode {
    function etch(address account, bytes calldata code) external;
}

/// Contract wallet with one owner.
contract Erc1271Wallet is IERC1271 {
    address private immutable _OWNER;

    constructor(address owner) {
        _OWNER = owner;
    }

    function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4) {
        return ECDSA.recover(hash, signature) == _OWNER ? IERC1271.isValidSignature.selector : bytes4(0);
    }
}

/// Tests of NodeRegistry.registerNode.
contract RegisterNodeTest is Fixture {
    uint256 internal constant OTHER_KEY = 0x1D;
    address internal other = vm.addr(OTHER_KEY);

    function register(uint256 to, address who, uint256 whoKey, uint256 nonce, uint256 deadline) internal {
        bytes32 digest = nodes.digestRegistration(to, who, other, nonce, deadline);
        bytes memory mine = sign(whoKey, digest);
        bytes memory its = sign(OTHER_KEY, digest);
        nodes.registerNode(to, who, other, deadline, mine, its);
    }

    function test_WhenBothSigned_ItBindsAndCountsTheNonce() public {
        vm.expectEmit();
        emit INodeRegistry.NodeRegistered(pool, other, stranger);
        register(pool, stranger, STRANGER_KEY, 0, START);
        assertEq(nodes.contributorOf(pool, other), stranger);
        assertEq(nodes.nonceOf(other), 1);
        assertTrue(nodes.isLiable(pool, other, stranger));
        assertTrue(!nodes.isLiable(pool, other, contributor));
        assertTrue(!nodes.isLiable(pool + 1, other, stranger));
    }

    function test_WhenSignaturesExpired_ItReverts() public {
        bytes32 digest = nodes.digestRegistration(pool, stranger, other, 0, START - 1);
        bytes memory mine = sign(STRANGER_KEY, digest);
        bytes memory its = sign(OTHER_KEY, digest);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.SignatureExpired.selector, START - 1));
        nodes.registerNode(pool, stranger, other, START - 1, mine, its);
    }

    function test_WhenEitherSideDidNotSign_ItReverts() public {
        bytes32 digest = nodes.digestRegistration(pool, stranger, other, 0, START);
        bytes memory mine = sign(STRANGER_KEY, digest);
        bytes memory its = sign(OTHER_KEY, digest);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, stranger));
        nodes.registerNode(pool, stranger, other, START, its, its);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, other));
        nodes.registerNode(pool, stranger, other, START, mine, mine);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, stranger));
        nodes.registerNode(pool, stranger, other, START + 1, mine, its);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, contributor));
        nodes.registerNode(pool, contributor, other, START, mine, its);
    }

    function test_WhenNodeIsTakenOrPoolIsNotOpen_ItReverts() public {
        register(pool, stranger, STRANGER_KEY, 0, START);
        bytes32 digest = nodes.digestRegistration(pool, contributor, other, 1, START);
        bytes memory mine = sign(CONTRIBUTOR_KEY, digest);
        bytes memory its = sign(OTHER_KEY, digest);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.NodeTaken.selector, pool, other, stranger));
        nodes.registerNode(pool, contributor, other, START, mine, its);
        vm.prank(operator);
        pools.endPool(pool);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.PoolNotOpen.selector, pool));
        nodes.registerNode(pool, contributor, other, START, mine, its);
        digest = nodes.digestRegistration(99, contributor, other, 1, START);
        mine = sign(CONTRIBUTOR_KEY, digest);
        its = sign(OTHER_KEY, digest);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.PoolNotOpen.selector, 99));
        nodes.registerNode(99, contributor, other, START, mine, its);
    }

    function test_WhenSignaturesWereUsed_ItReverts() public {
        bytes32 digest = nodes.digestRegistration(pool, stranger, other, 0, START);
        bytes memory mine = sign(STRANGER_KEY, digest);
        bytes memory its = sign(OTHER_KEY, digest);
        nodes.registerNode(pool, stranger, other, START, mine, its);
        vm.prank(stranger);
        nodes.removeNode(pool, other);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, stranger));
        nodes.registerNode(pool, stranger, other, START, mine, its);
    }

    /// An account that copies a pending registration can only send the same one.
    function test_WhenAnotherSends_ItBindsTheSamePair() public {
        bytes32 digest = nodes.digestRegistration(pool, stranger, other, 0, START);
        bytes memory mine = sign(STRANGER_KEY, digest);
        bytes memory its = sign(OTHER_KEY, digest);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, trainer));
        vm.prank(trainer);
        nodes.registerNode(pool, trainer, other, START, mine, its);
        vm.prank(trainer);
        nodes.registerNode(pool, stranger, other, START, mine, its);
        assertEq(nodes.contributorOf(pool, other), stranger);
    }

    function test_WhenTheContributorIsZero_ItReverts() public {
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.ZeroAddress.selector));
        nodes.registerNode(pool, address(0), other, START, "", "");
    }

    function bind(address who, bytes memory mine, bytes32 digest) internal {
        nodes.registerNode(pool, who, other, START, mine, sign(OTHER_KEY, digest));
    }

    /// An EIP-7702 account has a key and code. Its code need not know ERC-1271.
    function test_WhenAKeyHasCodeWithoutErc1271_ItsSignatureCounts() public {
        VmCode(address(vm)).etch(stranger, address(token).code);
        bytes32 digest = nodes.digestRegistration(pool, stranger, other, 0, START);
        bind(stranger, sign(STRANGER_KEY, digest), digest);
        assertEq(nodes.contributorOf(pool, other), stranger);
    }

    function test_WhenTheContributorIsAWallet_ItsAnswerCounts() public {
        address wallet = address(new Erc1271Wallet(stranger));
        bytes32 digest = nodes.digestRegistration(pool, wallet, other, 0, START);
        bytes memory its = sign(OTHER_KEY, digest);
        vm.expectRevert(abi.encodeWithSelector(INodeRegistry.InvalidSignature.selector, wallet));
        nodes.registerNode(pool, wallet, other, START, its, its);
        bind(wallet, sign(STRANGER_KEY, digest), digest);
        assertEq(nodes.contributorOf(pool, other), wallet);
    }
}
